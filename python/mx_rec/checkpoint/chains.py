"""What the directories of tables beside checkpoints are, and which of them belong together.

A whole save is `sparse-<base>-<step>`, a delta `delta-sparse-<base>-<step>`. The manifest of a
directory has an id, that of a delta the name and the id of what it follows, so that a chain of
deltas leads back to a whole save, and nothing else fits into it.
"""

import json
import os
import re
import zlib
from typing import Any, Dict, List, Optional, Set

from mx_rec.checkpoint.paths import DELTA_PREFIX, SPARSE_PREFIX, sparse_directory

MANIFEST = "manifest.json"

# The member of a manifest that says which variables of unchanged models its tables stand for.
VARIABLES = "variables"

# The member with the checksum of the others, which manifests of one version do not have.
_SEAL, _UNSEALED_VERSION = "crc32", 2

# More deltas on end are taken for a circle.
_LONGEST = 100000


def delta_directory(checkpoint: str) -> str:
    """Returns the directory of a delta: `<dir>/delta-sparse-<base>-<step>`.

    Args:
        checkpoint: `<dir>/<base>-<step>`.
    """
    parent, name = os.path.split(sparse_directory(checkpoint))
    return os.path.join(parent, DELTA_PREFIX + name)


def tables_directory(checkpoint: str) -> str:
    """Returns the directory of a checkpoint's tables: that of a delta where it is one.

    Args:
        checkpoint: `<dir>/<base>-<step>`.
    """
    whole, delta = sparse_directory(checkpoint), delta_directory(checkpoint)
    return delta if os.path.isdir(delta) and not os.path.isdir(whole) else whole


def is_delta(directory: str) -> bool:
    """Returns whether a directory of tables is a delta."""
    return os.path.basename(directory).startswith(DELTA_PREFIX)


def other_kind(directory: str) -> str:
    """Returns the directory of a whole save of the step of a delta, and the other way round."""
    parent, name = os.path.split(directory)
    return os.path.join(parent, name[len(DELTA_PREFIX):] if is_delta(directory)
                        else DELTA_PREFIX + name)


def dense_of(directory: str) -> str:
    """Returns the prefix of the variables' files that belong to a directory of tables."""
    parent, name = os.path.split(directory)
    return os.path.join(parent, name[name.index(SPARSE_PREFIX) + len(SPARSE_PREFIX):])


def base_of(directory: str) -> str:
    """Returns the base name of the checkpoints that a directory of tables belongs to."""
    return re.sub(r"-\d+$", "", os.path.basename(dense_of(directory)))


def step_of(name: str) -> Optional[int]:
    """Returns the step at the end of a name, None without one."""
    match = re.search(r"-(\d+)$", name)
    return int(match.group(1)) if match else None


def checked_manifest(text: str) -> Any:
    """Returns the dict that a manifest holds, without its checksum.

    Raises:
        ValueError: If it is no JSON object, or its checksum is another.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if _SEAL in content or content.get("format_version") != _UNSEALED_VERSION:
        seal = content.pop(_SEAL, None)
        # As the plugin writes it.
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        found = zlib.crc32(text.encode("utf-8"))
        if seal != found:
            raise ValueError("its checksum is {}, and its content has {}".format(seal, found))
    return content


def read_manifest(directory: str) -> Dict[str, Any]:
    """Returns the manifest of a directory of tables, an empty dict where there is none.

    Raises:
        ValueError: If it is damaged.
    """
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            return checked_manifest(file.read())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError("{} is no manifest: {}".format(path, error)) from error


def identity_of(directory: str) -> Optional[str]:
    """Returns the id of the save that a directory of tables is of, None where it says none."""
    try:
        return read_manifest(directory).get("id")
    except ValueError:
        return None


def chain_of(directory: str) -> List[str]:
    """Returns the directories that make up the tables: a whole save, then its deltas in order.

    Args:
        directory: Of a whole save or of a delta.

    Raises:
        ValueError: If a delta's predecessor is missing or is another than it was, or a manifest is
            damaged; the text names the directories.
    """
    chain = [directory]
    parent = os.path.dirname(directory)
    while is_delta(chain[0]):
        previous = read_manifest(chain[0]).get("previous")
        if not isinstance(previous, dict):
            raise ValueError("the delta {} does not say what it follows".format(chain[0]))
        found = os.path.join(parent, os.path.basename(str(previous.get("directory"))))
        if not os.path.isdir(found):
            raise ValueError("the delta {} follows {}, which is missing: it cannot be restored. "
                             "Restore an earlier version.".format(chain[0], found))
        if read_manifest(found).get("id") != previous.get("id"):
            raise ValueError("the delta {} follows another save than the one that is now in {}: it "
                             "cannot be restored.".format(chain[0], found))
        if len(chain) > _LONGEST:
            raise ValueError("the deltas that lead to {} go in a circle".format(directory))
        chain.insert(0, found)
    return chain


def needed(parent: str, base: str) -> Set[str]:
    """Returns the directories that deltas of complete checkpoints need: their chains.

    Args:
        parent: The directory of the checkpoints.
        base: Their base name.
    """
    found = set()  # type: Set[str]
    for path in deltas(parent, base):
        if os.path.isfile(dense_of(path) + ".index"):
            try:
                found.update(chain_of(path))
            except ValueError:
                # It cannot be restored, whatever is kept.
                continue
    return found


def deltas(parent: str, base: str) -> List[str]:
    """Returns the directories of all deltas of one base name.

    Args:
        parent: The directory of the checkpoints.
        base: Their base name.
    """
    paths = [os.path.join(parent, entry) for entry in sorted(os.listdir(parent))
             if entry.startswith(DELTA_PREFIX + SPARSE_PREFIX)]
    return [path for path in paths if base_of(path) == base and os.path.isdir(path)]
