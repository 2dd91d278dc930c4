"""The few changes that mx_rec makes to TensorFlow, each for a feature that needs it.

| changed | because |
|---|---|
| tf.compat.v1.train.Saver.__init__ | tables are not variables: they are taken out of var_list |
| tf.compat.v1.train.Saver.save | tables are saved with the variables, and removed with them |
| tf.compat.v1.train.Saver.restore | tables are restored with the variables |
| CheckpointSaverHook's four methods | incremental checkpoints are saved by two clocks |
| SavedModelBuilder._maybe_create_saver | a model loaded without this package has its tables |
| BaseSession.__init__ | table.size() finds the session that a MonitoredSession hides; clusters |
| BaseSession.run | a rewritten one-shot iterator starts by itself; a warning if none is rewritten |
| BaseSession.make_callable, partial_run_setup | the same for steps that do not go through run |
| Iterator.__init__ | get_target_batch gives batches in the nesting of the user's dataset |
| warm_starting_util.warm_start | tables are warm-started with the variables, from several paths |
| Estimator's reading of warm_start_from | lists that do not fit each other are refused at once |
| DatasetV2.eos_map | a new method, which scripts of the original call |

A graph without tables behaves as without them.
"""

import functools
from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.client import session as session_module
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.saved_model import builder_impl
from tensorflow.python.training import warm_starting_util
from tensorflow_estimator.python.estimator import estimator

from mx_rec.core.clusters import check_session
from mx_rec.core.graph_state import remember_session
from mx_rec.graph.eos import eos_map
from mx_rec.graph.iterators import remembering_elements
from mx_rec.graph.sessions import preparing, starting_iterators
from mx_rec.saver.incremental import (patched_hook_after_run, patched_hook_begin,
                                      patched_hook_created, patched_hook_end)
from mx_rec.saver.saver import patched_init, patched_restore, patched_save
from mx_rec.saver.serving import patched_saver_of_builder
from mx_rec.saver.warm_start import patched_settings, patched_warm_start

_STOCK = "_mx_rec_stock"


def apply() -> None:
    """Applies all patches; a second call changes nothing."""
    saver = tf.compat.v1.train.Saver
    _patch(saver, "__init__", patched_init)
    _patch(saver, "save", patched_save)
    _patch(saver, "restore", patched_restore)
    hook = tf.compat.v1.train.CheckpointSaverHook
    _patch(hook, "begin", patched_hook_begin)
    _patch(hook, "after_create_session", patched_hook_created)
    _patch(hook, "after_run", patched_hook_after_run)
    _patch(hook, "end", patched_hook_end)
    _patch(builder_impl._SavedModelBuilder,  # pylint: disable=protected-access
           "_maybe_create_saver", patched_saver_of_builder)
    _patch(warm_starting_util, "warm_start", patched_warm_start)
    _patch(estimator, "_get_default_warm_start_settings", patched_settings)
    _patch(session_module.BaseSession, "__init__", _remembering)
    _patch(session_module.BaseSession, "run", starting_iterators)
    _patch(session_module.BaseSession, "make_callable", preparing)
    _patch(session_module.BaseSession, "partial_run_setup", preparing)
    _patch(iterator_ops.Iterator, "__init__", remembering_elements)
    dataset_ops.DatasetV2.eos_map = eos_map


def _patch(owner: Any, name: str,
           make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces `owner.name`, of a class or a module, by `make(stock)`, once."""
    stock = getattr(owner, name)
    if hasattr(stock, _STOCK):
        return
    replacement = functools.wraps(stock)(make(stock))
    setattr(replacement, _STOCK, stock)
    setattr(owner, name, replacement)


def _remembering(stock: Callable[..., None]) -> Callable[..., None]:
    """Makes BaseSession.__init__, which notes the session at its graph.

    A session that would run tables in a cluster of several tasks is closed again and refused.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        try:
            check_session(self)
        except Exception:
            session_module.BaseSession.close(self)
            raise
        remember_session(self)

    return __init__
