"""The version of the package; the plugin must report the same one."""

VERSION = "0.1.0"
