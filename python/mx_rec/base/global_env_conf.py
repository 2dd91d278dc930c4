"""The environment variables that mx_rec knows, read and checked once at import."""

import os
from typing import NamedTuple, Sequence

from mx_rec.constants.constants import MAX_INT32

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_SWITCH = ("0", "1")


class EnvironmentVariables(NamedTuple):
    """The values of the variables; a variable that is not set has its default.

    Only `log_level` and `tf_device` change what this package does. The others tune hardware
    that it does not use: they are checked, so that a mistake is seen, and kept.
    """

    log_level: str
    glog_stderrthreshold: int
    tf_device: str
    acl_timeout: int
    hd_channel_size: int
    key_process_thread_num: int
    max_unique_thread_num: int
    fast_unique: bool
    hot_emb_update_step: int
    use_combine_faae: bool
    record_key_count: bool
    ssd_save_compact_level: int
    use_shm_swap: bool
    huge_tlb_enable: bool
    cm_worker_size: int
    apply_gradients_strategy: str


def read_environment() -> EnvironmentVariables:
    """Reads the variables from the process environment.

    Returns:
        The checked values.

    Raises:
        ValueError: If a variable has a value outside its range; the message names it.
    """
    return EnvironmentVariables(
        log_level=_option("MXREC_LOG_LEVEL", _LOG_LEVELS, "INFO"),
        glog_stderrthreshold=_integer("GLOG_stderrthreshold", -2, 2, 0),
        tf_device=_option("TF_DEVICE", ("NPU", "GPU", "CPU", "NONE"), "NONE"),
        acl_timeout=_integer("AclTimeout", -1, MAX_INT32, -1),
        hd_channel_size=_integer("HD_CHANNEL_SIZE", 2, 8192, 40),
        key_process_thread_num=_integer("KEY_PROCESS_THREAD_NUM", 1, 10, 6),
        max_unique_thread_num=_integer("MAX_UNIQUE_THREAD_NUM", 1, 8, 8),
        fast_unique=_switch("FAST_UNIQUE"),
        hot_emb_update_step=_integer("HOT_EMB_UPDATE_STEP", 1, 1000, 1000),
        use_combine_faae=_switch("USE_COMBINE_FAAE"),
        record_key_count=_switch("RECORD_KEY_COUNT"),
        ssd_save_compact_level=_integer("SSD_SAVE_COMPACT_LEVEL", 0, 2, 2),
        use_shm_swap=_switch("USE_SHM_SWAP"),
        huge_tlb_enable=_switch("HUGE_TLB_ENABLE"),
        cm_worker_size=_integer("CM_WORKER_SIZE", 0, 512, 0),
        apply_gradients_strategy=_option(
            "APPLY_GRADIENTS_STRATEGY", ("direct_apply", "sum_same_id_gradients_and_apply"),
            "direct_apply"),
    )


def _option(name: str, options: Sequence[str], default: str) -> str:
    value = os.environ.get(name, default)
    if value not in options:
        raise ValueError("the environment variable {} is {!r}; it should be one of {}.".format(
            name, value, ", ".join(options)))
    return value


def _integer(name: str, least: int, most: int, default: int) -> int:
    value = os.environ.get(name, default)
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError("the environment variable {} is {!r}; it should be an integer from {} to "
                         "{}.".format(name, value, least, most))
    return number


def reads_past_page_cache() -> bool:
    """Whether rows on disk are read past the page cache (O_DIRECT): MXREC_SSD_DIRECT, 0 by default.

    It is read when a table is made, which keeps it.

    Raises:
        ValueError: If the variable is neither 0 nor 1.
    """
    return _option("MXREC_SSD_DIRECT", _SWITCH, "0") == "1"


def cluster_wait_seconds() -> int:
    """How long a worker waits for tables on parameter servers that were made by other settings than
    its own: MXREC_CLUSTER_WAIT_SECS, 300 by default.

    It is read when a worker begins to wait.

    Raises:
        ValueError: If the variable is no integer from 0 on.
    """
    return _integer("MXREC_CLUSTER_WAIT_SECS", 0, MAX_INT32, 300)


def _switch(name: str) -> bool:
    return _option(name, _SWITCH, "0") == "1"


global_env = read_environment()
