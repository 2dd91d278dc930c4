"""LazyAdam for tables with dynamic expansion, under the path that scripts import."""

from mx_rec.optimizers.lazy_adam import (CustomizedLazyAdamByAddress,  # noqa: F401
                                         create_hash_optimizer_by_address)
