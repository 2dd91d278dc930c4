"""What TensorFlow does beside a test and no test looks at: left out of the tests' process and of those that they fork."""

import gc
import os

# XLA looks whether it has a kernel for each op of each graph, a twentieth of the time, and compiles none of them.
XLA_FLAGS = "--tf_xla_clustering_fuel=0"


def let_xla_rest():
    """Has XLA look at no op, in this process and in those that it starts. Comes before the first session."""
    os.environ.setdefault("TF_XLA_FLAGS", XLA_FLAGS)


def collect_seldom():
    """Garbage is collected less often: a tenth of the time of the tests went into walks over what is imported."""
    gc.freeze()
    gc.set_threshold(20000, 20, 20)


def leave_out():
    """TensorFlow writes no training's graph as text and none into events, and looks for no deprecated arguments in calls.

    That is a third of the time of Estimators.
    """
    from tensorflow.python.summary.writer.writer import SummaryToEventTransformer
    from tensorflow.python.training import training_util
    from tensorflow.python.util import deprecation

    write_graph = training_util.write_graph

    def without_text(graph, directory, name, as_text=True):
        return None if name == "graph.pbtxt" else write_graph(graph, directory, name, as_text)

    training_util.write_graph = without_text
    SummaryToEventTransformer.add_graph = SummaryToEventTransformer.add_meta_graph = lambda *_, **__: None
    deprecation._PRINT_DEPRECATION_WARNINGS = False  # pylint: disable=protected-access
