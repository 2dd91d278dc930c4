"""FeatureSpec: which entry of a batch holds the ids of which table."""

import itertools
import re
from typing import Dict, NamedTuple, Optional, Tuple, Union

from mx_rec.constants.constants import MAX_INT32
from mx_rec.validator.validator import Bool, Check, Int, Text, checked, is_int

_numbers = itertools.count()


class _IndexKey(Check):
    """A str of 1-255 characters, or an int in [0, 255]."""

    takes_numbers = True

    def check(self, name: str, value: Union[str, int]) -> None:
        """Checks type, then bounds."""
        if isinstance(value, str):
            Text(1, 255)(name, value)
        elif is_int(value):
            Int(0, 255)(name, value)
        else:
            raise ValueError("Invalid parameter type of para '{}', not in ['str', 'int']: it is a "
                             "{}".format(name, type(value).__name__))


class FeatureSpec:
    """Describes one feature of the input pipeline, for lookups without graph modification.

    Args:
        name: 1-255 characters. `self.name` has a unique number appended.
        table_name: 1-255 characters; default: `name`. Cleaned as names of tables are.
        index_key: Where the ids are: a key of a dict batch (1-255 characters) or a position in a
            tuple or list batch (0-255). Default: `name`.
        access_threshold: None or an int in [-1, 2147483647]. A key gets a row once it has
            occurred so often in training. 0: keys are not counted, earlier counts decide. -1 and
            None: every key gets a row.
        eviction_threshold: None or an int in [-1, 2147483647], seconds after which a key that did
            not occur may be evicted; needs access_threshold. -1 and None: never.
        is_timestamp: Whether the entry is the batch's timestamp: an int64 scalar, seconds greater
            than 0.
        batch_size: None or an int in [1, 2147483647].
        faae_coefficient: Factor of the feature's occurrences, an int in [1, 2147483647].
        feat_count: Of older releases; without effect.

    Attributes:
        feat_cnt: Ids per sample, the product of the dimensions after the first; None until an
            insert function has read the feature, and where the shape is not known.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or an eviction threshold
            comes without an access threshold.
    """

    @checked(name=Text(1, 255), table_name=Text(1, 255, optional=True),
             index_key=_IndexKey(optional=True),
             access_threshold=Int(-1, MAX_INT32, optional=True),
             eviction_threshold=Int(-1, MAX_INT32, optional=True),
             is_timestamp=Bool(optional=True), batch_size=Int(1, MAX_INT32, optional=True),
             faae_coefficient=Int(1, MAX_INT32))
    def __init__(self, name: str, table_name: Optional[str] = None,
                 index_key: Union[None, str, int] = None, access_threshold: Optional[int] = None,
                 eviction_threshold: Optional[int] = None, is_timestamp: Optional[bool] = None,
                 batch_size: Optional[int] = None, faae_coefficient: int = 1,
                 feat_count: Optional[int] = None) -> None:
        self.feature_name = name
        self.name = "{}_{}".format(name, next(_numbers))
        self.table_name = re.sub(r"[^0-9A-Za-z_]", "", table_name if table_name else name)
        self.index_key = name if index_key is None else index_key
        self.access_threshold = access_threshold
        self.eviction_threshold = eviction_threshold
        self.is_timestamp = is_timestamp
        self.batch_size = batch_size
        self.faae_coefficient = faae_coefficient
        self.feat_count = feat_count
        self.feat_cnt = None  # type: Optional[int]
        if not self.table_name:
            raise ValueError("the table name {!r} has no letter, digit or underscore".format(
                table_name if table_name else name))
        self.thresholds = normal_thresholds(access_threshold, eviction_threshold)

    def __repr__(self) -> str:
        return "<FeatureSpec {!r}: entry {!r} for table {!r}>".format(
            self.name, self.index_key, self.table_name)


class Insertion(NamedTuple):
    """What one traced insert function read from its batch.

    Attributes:
        is_training: The mode of the pipeline.
        specs: The features that were found in the batch, by unique name.
        components: For each of them, its place among the flat components of the mapped batch.
    """

    is_training: bool
    specs: Dict[str, FeatureSpec]
    components: Dict[str, int]


def normal_thresholds(access: Optional[int], eviction: Optional[int]) -> Tuple[int, int]:
    """Brings thresholds into one form.

    Args:
        access: Admission threshold; None and -1 are none.
        eviction: Eviction threshold in seconds; None and -1 are none.

    Returns:
        Both, with -1 for none.

    Raises:
        ValueError: If there is an eviction threshold without an access threshold.
    """
    access = -1 if access is None else int(access)
    eviction = -1 if eviction is None else int(eviction)
    if eviction >= 0 and access < 0:
        raise ValueError("'eviction_threshold' needs an 'access_threshold': eviction forgets keys "
                         "that admission counts. access_threshold=1 admits every key at once, "
                         "which is eviction alone.")
    return access, eviction
