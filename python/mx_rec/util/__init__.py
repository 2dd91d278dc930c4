"""Start-up, configuration and look-ups that model scripts call by name."""

from mx_rec.util import (global_env_conf, host_ops, initialize, log, stock_tables,  # noqa: F401
                         sub_configs)
from mx_rec.util.communication import hccl_ops  # noqa: F401
