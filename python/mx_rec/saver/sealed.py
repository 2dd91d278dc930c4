"""JSON with a checksum of its own, for the manifest of a whole checkpoint."""

import json
import os
import zlib
from typing import Any, Dict

FORMAT_VERSION = 3

# Manifests of this version have no checksum.
_UNSEALED_VERSION = 2
_SEAL = "crc32"
# The member of a table's manifest with its own checksum.
_TABLE_SEAL = "manifest_crc32c"


def dumps(content: Any) -> str:
    """Returns a manifest as text.

    Args:
        content: A dict of what JSON knows, without `format_version`, which is added.
    """
    content = dict(content, format_version=FORMAT_VERSION)
    return _text(dict(content, **{_SEAL: zlib.crc32(_text(content).encode("utf-8"))}))


def loads(text: str) -> Any:
    """Returns the dict that a manifest holds.

    Raises:
        ValueError: If it is no JSON object, or its checksum is another.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if _SEAL in content or content.get("format_version") != _UNSEALED_VERSION:
        seal = content.pop(_SEAL, None)
        found = zlib.crc32(_text(content).encode("utf-8"))
        if seal != found:
            raise ValueError("its checksum is {}, and its content has {}".format(seal, found))
    return content


def seal_of(table: str) -> Dict[str, Any]:
    """Returns size and checksum of the manifest of a saved table, which bind it to its checkpoint.

    The plugin compares them whenever it reads a table in the directory of a checkpoint.

    Args:
        table: The table's directory.

    Raises:
        OSError: If the table has no manifest.
        ValueError: If it cannot be understood.
    """
    with open(os.path.join(table, "manifest.json"), "rb") as file:
        text = file.read()
    try:
        return {"bytes": len(text), "crc32c": str(json.loads(text.decode("utf-8"))[_TABLE_SEAL])}
    except KeyError as error:
        raise ValueError("{} has no checksum".format(file.name)) from error


def _text(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"
