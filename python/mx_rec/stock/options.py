"""Which variables of a model may become tables: what `init(stock_tables=...)` takes."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mx_rec.constants.constants import (DEFAULT_EVICT_TIME_INTERVAL, MAX_INT32,
                                        MAX_VOCABULARY_SIZE)
from mx_rec.core.rows import (FLOAT32, ROUNDINGS, ROW_DTYPES, SLOT_DTYPES, check_sketch,
                              check_slot_dtype, name_of_dtype)
from mx_rec.state.feature_spec import normal_thresholds
from mx_rec.validator.validator import Bool, Int

# Below so many rows a variable is no larger than what a table has beside its rows.
LEAST_ROWS = 10000

# Units of the time of eviction.
SECONDS = "seconds"
STEPS = "steps"

# Of which rows a penalty on a variable is.
ALL_ROWS = "all rows"
BATCH_ROWS = "rows of the batch"

# One for all variables, or by regular expressions.
_Threshold = Union[None, int, Dict[str, Optional[int]]]
_RowDtype = Union[None, str, Dict[str, Optional[str]]]


class StockTables(NamedTuple):
    """Which variables become tables, and how.

    Attributes:
        names: Regular expressions; a variable qualifies if its name matches one from its start.
        least_rows: Variables with fewer rows stay TensorFlow's, in [1, 1e9].
        lazy_adam: Whether the tables of tf.train.AdamOptimizer, which moves all rows in each step,
            move the rows of the batch alone: other numbers than TensorFlow's, and less to do. So
            they can also have rows on disk or be on parameter servers.
        memory_rows: Rows of each table that are in memory, in [1, 1e9]; the others are on disk.
            It has to hold the distinct ids of a batch. 0: all rows are in memory.
        ssd_data_path: Existing directories for the rows on disk, with `memory_rows`.
        unlimited_ids: Regular expressions of the variables whose ids lose their limits: the modulo
            of a hash bucket and the size of an identity column fall away, and keys have 64 bits.
            True: of all variables that become tables.
        access_threshold: How often a key must have occurred in training to get a row, in
            [-1, 2147483647], of all variables that become tables; or a dict of regular expressions
            and such numbers, of which the first that matches a variable's name from its start
            holds for it. 0: keys are not counted, earlier counts decide. -1 and None: every key
            gets a row.
        eviction_threshold: After how many units of time without an occurrence a key may lose its
            row, in the same forms; -1 and None: never. It needs an access threshold.
        eviction_unit: "seconds" of the clock at which a step runs, or "steps", by the global step.
        evict_time_interval: Seconds between evictions of an Estimator's training, in
            [1, 2147483647]; None is steps alone.
        evict_step_interval: Steps between them, in [1, 2147483647]; None is time alone.
        servers: Whether variables that a job has on TensorFlow's parameter servers become tables
            there. False: they stay TensorFlow's.
        admission_sketch_bytes: The bytes in which keys without rows are counted, in
            [1024, 2**40], in the forms of `access_threshold`; 0 and None: each key exactly.
        l2: What becomes of a variable with a penalty on all of its rows, such as tf.nn.l2_loss of
            it. "all rows": it stays TensorFlow's. "rows of the batch": it is a table, and value and
            gradient of the penalty are those of the distinct rows of a batch, other numbers than
            TensorFlow's; rows outside of it have no gradient, in the optimizer's sparse form.
        row_dtype: As what the rows of tables are kept, "bfloat16" or "float16" (docs/half-rows.md),
            in the forms of `access_threshold`; "float32" and None: as variables are.
        row_rounding: How updates round to a row_dtype of 2 bytes: "stochastic" or "nearest".
        row_conversion: How rows and slots of a checkpoint of other types, and the float32 variables
            of one, are rounded: "nearest" or "stochastic"; None refuses them.
        slot_dtype: As what slots are kept beside a row_dtype of 2 bytes, "bfloat16", in the same
            forms; "float32" and None: as variables are.
    """

    names: Sequence[str] = (".*",)
    least_rows: int = LEAST_ROWS
    lazy_adam: bool = False
    memory_rows: int = 0
    ssd_data_path: Sequence[str] = ()
    unlimited_ids: Union[bool, str, Sequence[str]] = ()
    access_threshold: _Threshold = None
    eviction_threshold: _Threshold = None
    eviction_unit: str = SECONDS
    evict_time_interval: Optional[int] = DEFAULT_EVICT_TIME_INTERVAL
    evict_step_interval: Optional[int] = None
    servers: bool = True
    admission_sketch_bytes: _Threshold = None
    l2: str = ALL_ROWS
    row_dtype: _RowDtype = None
    row_rounding: str = ROUNDINGS[0]
    row_conversion: Optional[str] = None
    slot_dtype: _RowDtype = None


def checked_options(value: Union[bool, str, Sequence[str], StockTables, None]) -> Any:
    """Checks what `init(stock_tables=...)` was given.

    Args:
        value: None or False: no variable becomes a table. True: those that pay. A regular
            expression or a list of them: those whose names match, of any size. Or StockTables.

    Returns:
        StockTables, or None.

    Raises:
        ValueError: If it is none of these, or a setting is out of its range.
    """
    if value is None or value is False:
        return None
    if value is True:
        return StockTables()
    if isinstance(value, str):
        value = [value]
    options = value if isinstance(value, StockTables) else None
    if options is None:
        if not isinstance(value, (list, tuple)):
            raise ValueError("'stock_tables' should be a bool, a regular expression, a list of "
                             "them or StockTables, but is {!r}".format(value))
        options = StockTables(names=list(value), least_rows=1)
    names = _expressions("stock_tables", options.names)
    if not names:
        raise ValueError("'stock_tables' should have one name at least, but has none")
    Int(1, MAX_VOCABULARY_SIZE)("least_rows", options.least_rows)
    Bool()("lazy_adam", options.lazy_adam)
    Bool()("servers", options.servers)
    Int(0, MAX_VOCABULARY_SIZE)("memory_rows", options.memory_rows)
    unlimited = options.unlimited_ids
    if isinstance(unlimited, bool):
        unlimited = [".*"] if unlimited else []
    unlimited = _expressions("unlimited_ids' of 'stock_tables", unlimited)
    paths = options.ssd_data_path
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise ValueError("'ssd_data_path' of stock_tables should be a list of directories, but is "
                         "{!r}".format(options.ssd_data_path))
    if bool(paths) != bool(options.memory_rows):
        raise ValueError("'memory_rows' and 'ssd_data_path' of stock_tables go together, but are "
                         "{!r} and {!r}".format(options.memory_rows, options.ssd_data_path))
    _check_admission(options)
    for name, known in (("l2", (ALL_ROWS, BATCH_ROWS)), ("eviction_unit", (SECONDS, STEPS)),
                        ("row_rounding", ROUNDINGS), ("row_conversion", (None,) + ROUNDINGS)):
        if getattr(options, name) not in known:
            raise ValueError("{!r} of stock_tables should be {}, but is {!r}".format(
                name, " or ".join(map(repr, known)), getattr(options, name)))
    row_dtype = _dtypes("row_dtype", options.row_dtype, ROW_DTYPES)
    slot_dtype = _dtypes("slot_dtype", options.slot_dtype, SLOT_DTYPES)
    if not isinstance(row_dtype, dict) and not isinstance(slot_dtype, dict):
        check_slot_dtype("stock_tables", slot_dtype or FLOAT32, row_dtype or FLOAT32)
    return options._replace(names=names, least_rows=int(options.least_rows),
                            row_dtype=row_dtype, slot_dtype=slot_dtype,
                            memory_rows=int(options.memory_rows), ssd_data_path=tuple(paths),
                            unlimited_ids=unlimited)


def _check_admission(options: StockTables) -> None:
    """Checks the settings of admission and eviction."""
    for name in ("access_threshold", "eviction_threshold"):
        for number in _each(name, getattr(options, name)):
            Int(-1, MAX_INT32, optional=True)(name, number)
    for size in _each("admission_sketch_bytes", options.admission_sketch_bytes):
        check_sketch("stock_tables", 0 if size is None else size)
    if not isinstance(options.access_threshold, dict) \
            and not isinstance(options.eviction_threshold, dict):
        normal_thresholds(options.access_threshold, options.eviction_threshold)
    for name in ("evict_time_interval", "evict_step_interval"):
        Int(1, MAX_INT32, optional=True)(name, getattr(options, name))
    if options.evict_time_interval is None and options.evict_step_interval is None \
            and options.eviction_threshold is not None:
        raise ValueError("'evict_time_interval' and 'evict_step_interval' of stock_tables are both "
                         "None: with an 'eviction_threshold' one of them is needed")


def _dtypes(argument: str, value: Any, known: Sequence[str]) -> _RowDtype:
    """Returns types of rows or slots by their names."""
    def name(one: Any) -> Optional[str]:
        return None if one is None else name_of_dtype(
            "{!r} of stock_tables".format(argument), one, known)

    names = [name(one) for one in _each(argument, value)]
    return dict(zip(value, names)) if isinstance(value, dict) else names[0]


def _each(argument: str, value: Any) -> List[Any]:
    """Returns all that a setting is which may be by regular expressions."""
    if not isinstance(value, dict):
        return [value]
    _expressions(argument + "' of 'stock_tables", list(value))
    return list(value.values())


def _expressions(argument: str, value: Any) -> List[str]:
    """Returns regular expressions as a list; one that is none is an error."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError("names of '{}' should be regular expressions, but are {!r}".format(
            argument, value))
    for name in names:
        try:
            re.compile(name)
        except re.error as error:
            raise ValueError("'{}' has {!r}, which is no regular expression: {}".format(
                argument, name, error)) from error
    return list(names)


def names_it(expressions: Any, name: str) -> bool:
    """Returns whether `names` or `unlimited_ids` of checked options have a variable's name."""
    return any(re.match(one, name) for one in expressions)


def sketch_of(options: StockTables, name: str) -> int:
    """Returns the bytes in which a variable's table counts keys without rows, 0 for exactly."""
    return _of_name(options.admission_sketch_bytes, name) or 0


def dtypes_of(options: StockTables, name: str) -> Tuple[str, str]:
    """Returns as what rows and slots of the table of a variable are kept.

    Raises:
        ValueError: If the rows are none of 2 bytes, and the slots are.
    """
    row_dtype, slot_dtype = (_of_name(value, name) or FLOAT32
                             for value in (options.row_dtype, options.slot_dtype))
    check_slot_dtype("stock_tables, variable {!r},".format(name), slot_dtype, row_dtype)
    return row_dtype, slot_dtype


def thresholds_of(options: StockTables, name: str) -> Tuple[int, int]:
    """Returns the access and the eviction threshold of a variable, -1 for none.

    Raises:
        ValueError: If it has an eviction threshold and no access threshold.
    """
    try:
        return normal_thresholds(_of_name(options.access_threshold, name),
                                 _of_name(options.eviction_threshold, name))
    except ValueError as error:
        raise ValueError("stock_tables, variable {!r}: {}".format(name, error)) from error


def _of_name(value: Any, name: str) -> Any:
    """Returns what a setting that may be by regular expressions is for a variable."""
    if isinstance(value, dict):
        return next((one for regex, one in value.items() if re.match(regex, name)), None)
    return value
