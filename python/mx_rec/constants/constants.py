"""Collection names, limits and enumerations that model scripts import."""

import enum
from typing import Any, Dict, List

# Graph collections. The value of each constant is its own name.
ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"
ASCEND_CUTTING_POINT_INITIALIZER = "ASCEND_CUTTING_POINT_INITIALIZER"
ASCEND_SPARSE_LOOKUP_ENTRANCE = "ASCEND_SPARSE_LOOKUP_ENTRANCE"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS = "ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS"
ASCEND_TIMESTAMP = "ASCEND_TIMESTAMP"
ASCEND_TABLE_NAME_MUST_CONTAIN = None

# Channels: which of the two pipelines a lookup belongs to.
TRAIN_CHANNEL_ID = 0
EVAL_CHANNEL_ID = 1

# Names of op libraries, as scripts give them to import_host_pipeline_ops; all mean the plugin.
LIBASC_OPS_SO = "libasc_ops.so"
LIBREC_CPU_SO = "librec_cpu.so"
LIBREC_EOS_OPS_SO = "librec_eos_ops.so"
LIBREC_TF_REC_V1_CPU_SO = "librec_tf_rec_v1_cpu.so"

# Limits.
MAX_INT32 = 2147483647
MIN_INT64 = -(2 ** 63)
MAX_INT64 = 2 ** 63 - 1
MAX_VOCABULARY_SIZE = 10 ** 9
MAX_DEVICE_VOCABULARY_SIZE = 10 ** 9
MAX_ROW_BUDGET = 2 * 10 ** 9
MAX_EMBEDDING_SIZE = 8192
MIN_SKETCH_BYTES = 2 ** 10
MAX_SKETCH_BYTES = 2 ** 40
MAX_WHILE_SIZE = 800
MULTI_LOOKUP_TIMES = 128
DEFAULT_EVICT_TIME_INTERVAL = 60 * 60 * 24
DEFAULT_SEED = 10086

# Checkpoint files.
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
HDFS_FILE_PREFIX = ("viewfs://", "hdfs://")

# The key that never gets a row: its embedding is zeros and its gradient is dropped.
PADDING_KEY = -1


class BaseEnum(enum.Enum):
    """An enumeration whose members can be found by value."""

    @classmethod
    def mapping(cls, value: Any) -> "BaseEnum":
        """Finds the member with `value`.

        Args:
            value: The value of a member.

        Returns:
            The member.

        Raises:
            KeyError: If no member has that value.
        """
        members: Dict[Any, "BaseEnum"] = {member.value: member for member in cls}
        if value not in members:
            raise KeyError("{!r} is not a value of {}; values are {}.".format(
                value, cls.__name__, sorted(members, key=str)))
        return members[value]

    @classmethod
    def values(cls) -> List[Any]:
        """Returns the values of all members, in order of definition."""
        return [member.value for member in cls]


class All2allGradientsOp(BaseEnum):
    """What happens to the summed gradient of a key before the update.

    Both are the same here: one process trains a table, and a sum over one rank is its mean.
    """

    SUM_GRADIENTS = "sum_gradients"
    SUM_GRADIENTS_AND_DIV_BY_RANKSIZE = "sum_gradients_and_div_by_ranksize"


class CacheModeEnum(BaseEnum):
    """Storage modes, as older scripts spell them."""

    HBM = "HBM"
    DDR = "DDR"
    SSD = "SSD"


class ApplyGradientsStrategy(BaseEnum):
    """How gradients of repeated keys are applied, as older scripts spell it."""

    DIRECT_APPLY = "direct_apply"
    SUM_SAME_ID_GRADIENTS_AND_APPLY = "sum_same_id_gradients_and_apply"
