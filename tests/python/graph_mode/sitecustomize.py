"""For processes that tests start with TensorFlow 2.x: importing it turns graph mode on."""

import importlib.abc
import importlib.machinery
import sys


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow where it is, and runs `disable_v2_behavior` once it is imported."""

    def find_spec(self, fullname, path, target=None):
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if hasattr(module, "compat") and not module.__version__.startswith("1."):
                module.compat.v1.disable_v2_behavior()

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
