"""JSON with a checksum of its own: the manifest of a whole checkpoint, which the plugin writes."""

import json
import zlib
from typing import Any

# Manifests of this version have no checksum.
_UNSEALED_VERSION = 2
_SEAL = "crc32"


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


def _text(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"
