"""Runs a program from the initial values that a run of it had before, with the same seeds.

    usage: same_start.py save|load|nudgeN FILE (SCRIPT | -m MODULE) [arguments]

`save` runs it as it is and writes all variables to FILE (NumPy's .npz) when they have their initial
values; `load` gives variables, and tables in the place of variables, these values at that moment.
`nudge1`, `nudge2` and so on give each float the one below or above it, other ones by each number:
what that changes is what rounding may change. Random numbers of TensorFlow, NumPy and Python have
one seed in all, unless the program sets its own, so that losses can be compared step by step.
"""

import os
import random
import re
import runpy
import sys
from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as sessions

_SEED = 20


class Start:
    """The moment at which the variables of the first graph have their initial values.

    Args:
        action: "save", "load", or "nudge" and a number.
        path: The file.
    """

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path
        self._run = sessions.BaseSession.run
        self._is_over = False
        self._asked = {}  # type: Dict[Any, Any]
        # Those that have become tables as well, which have left the collections then.
        self._made = {}  # type: Dict[Any, List[Any]]

    def watch(self) -> None:
        """Looks for the moment after each run of a session of this process."""
        start = self

        def run(self: Any, *given: Any, **named: Any) -> Any:
            result = start._run(self, *given, **named)
            if not start._is_over:
                start._look(self)
            return result

        sessions.BaseSession.run = run
        add = tf.Graph.add_to_collection

        def noted(graph: tf.Graph, name: str, value: Any) -> None:
            add(graph, name, value)
            if name == tf.compat.v1.GraphKeys.GLOBAL_VARIABLES:
                start._made.setdefault(graph, []).append(value)

        tf.Graph.add_to_collection = noted

    def _look(self, session: Any) -> None:
        v1 = tf.compat.v1
        graph = session.graph
        variables = graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
        if not graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES):
            return
        was_final, graph._finalized = graph._finalized, False
        try:
            with graph.as_default(), graph.control_dependencies(None):
                key = graph, len(variables)
                if key not in self._asked:
                    self._asked[key] = v1.report_uninitialized_variables(variables)
                if len(self._run(session, self._asked[key])):
                    return
                self._is_over = True
                if self._action == "save":
                    np.savez(self._path, **self._run(
                        session, {one.name.replace("/", "|"): one for one in self._made[graph]}))
                else:
                    self._load(session, self._made[graph])
        finally:
            graph._finalized = was_final

    def _load(self, session: Any, variables: Any) -> None:
        v1 = tf.compat.v1
        with np.load(self._path) as file:
            values = {name.replace("|", "/"): file[name] for name in file.files}
        names = {one.name for one in variables}
        if names != set(values):
            raise SystemExit("same_start: other variables than in {}: {}".format(
                self._path, ", ".join(sorted(names ^ set(values)))))
        if self._action != "load":
            random_state = np.random.RandomState(int(self._action[len("nudge"):]))
            for name in sorted(values):
                if values[name].dtype.kind == "f":
                    signs = random_state.randint(0, 2, values[name].shape) * 2 - 1
                    values[name] = np.nextafter(values[name], signs * np.inf,
                                                dtype=values[name].dtype)
        feeds, done = {}, []
        for one in variables:
            value = v1.placeholder(one.dtype.base_dtype, one.shape)
            feeds[value] = values[one.name]
            done.append(v1.assign(one, value).op)
        # In one run: a graph that has grown is prepared anew.
        self._run(session, done, feeds)
        print("same_start: {} variables start at the values of {}".format(
            len(variables), os.path.basename(self._path)), flush=True)


def run_program(target: str, arguments: List[str]) -> None:
    """Runs a program as Python does.

    Args:
        target: A script, or -m.
        arguments: Its own, behind the name of the module with -m.
    """
    if target == "-m":
        sys.argv = arguments
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [target] + arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
        runpy.run_path(target, run_name="__main__")


def main() -> None:
    """Runs what the command line asks for."""
    action, path, target = sys.argv[1:4]
    if not re.match("(save|load|nudge[0-9]+)$", action):
        raise SystemExit(__doc__)
    random.seed(_SEED)
    np.random.seed(_SEED)
    make = tf.Graph.__init__

    def seeded(self: tf.Graph, *given: Any, **named: Any) -> Optional[Any]:
        make(self, *given, **named)
        self.seed = _SEED

    tf.Graph.__init__ = seeded
    # The default graph that there is.
    tf.compat.v1.get_default_graph().seed = _SEED
    Start(action, path).watch()
    run_program(target, sys.argv[4:])


if __name__ == "__main__":
    main()
