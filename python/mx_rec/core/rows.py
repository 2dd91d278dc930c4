"""As what the rows of a table are stored: the types of their values, and how it rounds."""

from typing import Any, Dict, Optional, Sequence

from mx_rec.constants.constants import MAX_SKETCH_BYTES, MIN_SKETCH_BYTES
from mx_rec.validator.validator import is_int

FLOAT32 = "float32"
ROW_DTYPES = (FLOAT32, "bfloat16", "float16")
SLOT_DTYPES = (FLOAT32, "bfloat16")
ROUNDINGS = ("stochastic", "nearest")


def name_of_dtype(what: str, dtype: Any, known: Sequence[str]) -> str:
    """Returns the name of a type of embeddings or slots.

    Args:
        what: What it is of, for errors.
        dtype: As `create_table` takes it.
        known: ROW_DTYPES or SLOT_DTYPES.

    Raises:
        ValueError: If it is none of them.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name not in known:
        raise ValueError("{} should be one of {}, but is {!r}".format(
            what, ", ".join(map(repr, known)), dtype))
    return str(name)


def check_slot_dtype(what: str, slot_dtype: str, row_dtype: str) -> None:
    """Refuses slots of 2 bytes a value beside embeddings of float32.

    Args:
        what: What it is of, for errors.
        slot_dtype: One of SLOT_DTYPES.
        row_dtype: One of ROW_DTYPES.

    Raises:
        ValueError: If they do not go together.
    """
    if slot_dtype != FLOAT32 and row_dtype == FLOAT32:
        raise ValueError("'slot_dtype' of {} is {!r}, which needs a 'row_dtype' of 2 bytes, but "
                         "that is {!r}".format(what, slot_dtype, row_dtype))


def check_sketch(what: str, size: Any) -> int:
    """Returns the bytes of the counting sketch of `what`, 0 for exact counters; refuses others."""
    if not is_int(size) or (size != 0 and not MIN_SKETCH_BYTES <= size <= MAX_SKETCH_BYTES):
        raise ValueError("'admission_sketch_bytes' of {} should be 0, for exact counters, or an "
                         "int between {} and {}, but is {!r}".format(
                             what, MIN_SKETCH_BYTES, MAX_SKETCH_BYTES, size))
    return int(size)


def row_storage(table_name: str, row_dtype: Any, slot_dtype: Any, row_rounding: str,
                row_conversion: Optional[str]) -> Dict[str, Any]:
    """Returns what the engine is told of it: nothing of what it does anyway.

    Args:
        table_name: Name of the table, for errors.
        row_dtype: As `create_table` takes it.
        slot_dtype: As `create_table` takes it.
        row_rounding: One of ROUNDINGS.
        row_conversion: One of ROUNDINGS, or None.

    Raises:
        ValueError: If row_dtype is no type of embeddings or slot_dtype none of slots, or they do
            not go together.
    """
    table = "the table {!r}".format(table_name)
    dtype = name_of_dtype("'row_dtype' of " + table, row_dtype, ROW_DTYPES)
    of_slots = name_of_dtype("'slot_dtype' of " + table, slot_dtype, SLOT_DTYPES)
    check_slot_dtype(table, of_slots, dtype)
    found = {}  # type: Dict[str, Any]
    if dtype != FLOAT32:
        found["dtype"] = dtype
        if row_rounding != ROUNDINGS[0]:
            found["rounding"] = row_rounding
    if of_slots != FLOAT32:
        found["slot_dtype"] = of_slots
    if row_conversion is not None:
        found["conversion"] = row_conversion
    return found
