"""Found by a Python process that `python -m mx_rec run` starts, before the program is read.

When the program imports TensorFlow, mx_rec is imported behind it and told the options. Until then
this costs nothing: neither of both is imported here.
"""

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_VARIABLE = "MXREC_RUN"


class _BehindTensorFlow:
    """Finds TensorFlow as the finders behind it do, and lets mx_rec begin once it is loaded."""

    def __init__(self, given):
        self._given = given
        self._is_asking = False

    def find_spec(self, name, path=None, target=None):  # pylint: disable=unused-argument
        """The spec of `tensorflow`, whose loader then begins; None for other modules."""
        if name != "tensorflow" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                del spec.loader.exec_module
                sys.meta_path.remove(self)
                _begin(self._given)

            spec.loader.exec_module = exec_module
        return spec


def _begin(given):
    """Imports mx_rec, which is this one, and tells it the options."""
    if importlib.util.find_spec("mx_rec") is None:
        sys.path.append(_ROOT)
    import mx_rec
    if os.path.dirname(os.path.dirname(os.path.abspath(mx_rec.__file__))) != _ROOT:
        raise ImportError("python -m mx_rec run: the program finds another mx_rec, in {}, before "
                          "the one in {} that was to run it".format(mx_rec.__file__, _ROOT))
    from mx_rec.launch.process import begin
    begin(given)


def _without_this(paths):
    return [path for path in paths if os.path.abspath(path or os.curdir) != _HERE]


def _leave_no_trace():
    """Takes out of the environment what child processes shall not inherit."""
    os.environ.pop(_VARIABLE, None)
    paths = _without_this(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)


def _go_on_to_the_next():
    """Runs the sitecustomize that this one hides, if there is one, as `site` would."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _main():
    text = os.environ.get(_VARIABLE)
    sys.path[:] = _without_this(sys.path)
    if text:
        given = json.loads(text)
        if given["children"]:
            os.environ[_VARIABLE] = json.dumps(dict(given, is_child=True))
        else:
            _leave_no_trace()
        if "tensorflow" in sys.modules:
            _begin(given)
        else:
            sys.meta_path.insert(0, _BehindTensorFlow(given))
    _go_on_to_the_next()


_main()
