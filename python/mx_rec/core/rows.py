"""As what the embeddings of a table are stored: the type of their values, and how it rounds."""

from typing import Any, Dict, Optional

FLOAT32 = "float32"
ROW_DTYPES = (FLOAT32, "bfloat16", "float16")
ROUNDINGS = ("stochastic", "nearest")


def name_of_row_dtype(what: str, row_dtype: Any) -> str:
    """Returns the name of a type of embeddings.

    Args:
        what: What it is of, for errors.
        row_dtype: As `create_table` takes it.

    Raises:
        ValueError: If it is none.
    """
    dtype = row_dtype if isinstance(row_dtype, str) else getattr(row_dtype, "name", None)
    if dtype not in ROW_DTYPES:
        raise ValueError("{} should be one of {}, but is {!r}".format(
            what, ", ".join(map(repr, ROW_DTYPES)), row_dtype))
    return str(dtype)


def row_storage(table_name: str, row_dtype: Any, row_rounding: str,
                row_conversion: Optional[str]) -> Dict[str, Any]:
    """Returns what the engine is told of it: nothing of what it does anyway.

    Args:
        table_name: Name of the table, for errors.
        row_dtype: As `create_table` takes it.
        row_rounding: One of ROUNDINGS.
        row_conversion: One of ROUNDINGS, or None.

    Raises:
        ValueError: If row_dtype is no type of embeddings.
    """
    dtype = name_of_row_dtype("'row_dtype' of the table {!r}".format(table_name), row_dtype)
    found = {}  # type: Dict[str, Any]
    if dtype != FLOAT32:
        found["dtype"] = dtype
        if row_rounding != ROUNDINGS[0]:
            found["rounding"] = row_rounding
    if row_conversion is not None:
        found["conversion"] = row_conversion
    return found
