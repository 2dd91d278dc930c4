"""Builds the wheel of the stand-in, so that it never lies on or before the vendor's package.

The packages go to a directory of their own, mx_rec_tf_adapter, and a path file puts that directory
at the end of sys.path: a tf_adapter or npu_bridge in site-packages or on PYTHONPATH comes first,
and no file of it is overwritten.
"""

import os

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = "mx_rec_tf_adapter"
PACKAGES = ["tf_adapter", "npu_bridge", "npu_bridge.estimator", "npu_bridge.estimator.npu",
            "npu_bridge.hccl"]


def run_file(name):
    """Returns what a file of the package defines, without importing the package."""
    path = os.path.join(HERE, "tf_adapter", name)
    namespace = {"__file__": path, "__name__": "setup_" + name}
    with open(path, encoding="ascii") as file:
        exec(compile(file.read(), path, "exec"), namespace)
    return namespace


class BuildWithPathFile(build_py):
    """Builds the package and the path file beside it."""

    def run(self):
        """Does both."""
        super().run()
        self.mkpath(self.build_lib)
        with open(self._path_file(), "w", encoding="ascii") as file:
            file.write(PLACE + "\n")

    def get_outputs(self, include_bytecode=1):
        """Returns what is built, for the list of installed files."""
        return super().get_outputs(include_bytecode) + [self._path_file()]

    def _path_file(self):
        return os.path.join(self.build_lib, PLACE + ".pth")


# A build that pip isolates from the environment does not see it; then the import still refuses.
guard = run_file("_stand_in.py")
foreign = guard["find_foreign"]()
if foreign is not None:
    raise SystemExit(guard["complaint"](foreign))

setup(
    version=run_file("_version.py")["VERSION"],
    packages=[PLACE + "." + package for package in PACKAGES],
    package_dir={PLACE + "." + package: package.replace(".", "/") for package in PACKAGES},
    cmdclass={"build_py": BuildWithPathFile},
)
