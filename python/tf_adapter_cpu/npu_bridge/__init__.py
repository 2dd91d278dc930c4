"""A stand-in for the vendor's `npu_bridge`: our `tf_adapter` under the vendor's paths.

Importing it raises ImportError where the vendor's package is present. It does not matter what a
script calls `tf_adapter`: many have a tf_adapter.py of their own, which imports this package.
"""

from npu_bridge._stand_in import shared

# Refuses where the vendor's package is present.
__version__ = shared("_version").VERSION
