"""Unpacks TensorFlow's C headers, and the headers that they include, from a wheel."""

import argparse
import posixpath
import re
import sys
import zipfile

PREFIX = "tensorflow/include/"
ROOT = PREFIX + "tensorflow/c/"
# The headers that a C file can include; the rest is C++ and drags all of TensorFlow in.
IN_C = re.compile(r"/include/(tensorflow|tsl)/c/|/ctstring")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


def closure(wheel):
    """Finds the C headers and what they include, directly or not.

    Args:
        wheel: An open `zipfile.ZipFile`.

    Returns:
        Sorted names of members of the wheel.
    """
    present = set(wheel.namelist())
    todo = [name for name in present if name.startswith(ROOT) and name.endswith(".h")]
    done = set(todo)
    while todo:
        name = todo.pop()
        text = wheel.read(name).decode("utf-8", "replace")
        for path in INCLUDE.findall(text):
            for found in (PREFIX + path, posixpath.join(posixpath.dirname(name), path)):
                if found in present and found not in done and IN_C.search(found):
                    done.add(found)
                    todo.append(found)
    return sorted(done)


def main():
    """Unpacks the headers; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", help="a TensorFlow 2.x wheel")
    parser.add_argument("directory", help="where tensorflow/include/... is laid")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as wheel:
        names = closure(wheel)
        if ROOT + "c_api.h" not in names:
            print("{} has no {}c_api.h".format(args.wheel, ROOT), file=sys.stderr)
            return 1
        wheel.extractall(args.directory, names)
    print("unpacked {} headers to {}".format(len(names), args.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
