"""Row-wise Adagrad for tables with dynamic expansion, under the path that scripts import."""

from mx_rec.optimizers.rowwise_adagrad import (CustomizedRowwiseAdagradByAddress,  # noqa: F401
                                               create_hash_optimizer_by_address)
