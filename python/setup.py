"""Builds the wheel: the Python package and, beside it, the plugin for this platform."""

import os

from setuptools import setup
from setuptools.command.install import install
from setuptools.dist import Distribution

HERE = os.path.dirname(os.path.abspath(__file__))
PLUGIN = os.path.join(HERE, "mx_rec", "libmx_rec.so")


def read_version():
    """Returns VERSION of mx_rec/_version.py without importing the package."""
    namespace = {}
    with open(os.path.join(HERE, "mx_rec", "_version.py"), encoding="ascii") as file:
        exec(file.read(), namespace)
    return namespace["VERSION"]


class PlatformDistribution(Distribution):
    """A distribution that holds machine code, though no extension module of Python."""

    def has_ext_modules(self):
        """Says so."""
        return True


class PlatformInstall(install):
    """An installation into the place for machine code."""

    def finalize_options(self):
        """Chooses the place."""
        super().finalize_options()
        self.install_lib = self.install_platlib


def commands():
    """Returns the commands that differ: the plugin fits any Python 3, but one platform."""
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        return {"install": PlatformInstall}

    class PluginWheel(bdist_wheel):
        """A wheel for any Python 3 of this platform; refuses to leave the plugin out."""

        def run(self):
            """Builds the wheel."""
            if not os.path.isfile(PLUGIN):
                raise SystemExit("{} does not exist. Build it with `cargo build --release` and "
                                 "copy target/release/libmx_rec.so there.".format(PLUGIN))
            super().run()

        def get_tag(self):
            """Returns python, ABI and platform tag."""
            return "py3", "none", super().get_tag()[2]

    return {"bdist_wheel": PluginWheel, "install": PlatformInstall}


setup(version=read_version(), distclass=PlatformDistribution, cmdclass=commands())
