"""The few changes that mx_rec makes to TensorFlow, each for a feature that needs it.

| changed | because |
|---|---|
| tf.compat.v1.train.Saver.__init__ | tables are not variables: they are taken out of var_list |
| tf.compat.v1.train.Saver.save | tables are saved with the variables, and removed with them |
| tf.compat.v1.train.Saver.restore | tables are restored with the variables |
| CheckpointSaverHook's four methods | incremental checkpoints are saved by two clocks |
| SavedModelBuilder._maybe_create_saver | a model loaded without this package has its tables |
| SavedModelBuilder.add_meta_graph* | a model can be exported as TensorFlow's own ops alone |
| Estimator.export_saved_model | the same by its argument `plain` |
| BaseSession.__init__ | table.size() finds the session that a MonitoredSession hides; clusters |
| BaseSession.run | a rewritten one-shot iterator starts by itself; a warning if none is rewritten |
| BaseSession.make_callable, partial_run_setup | the same for steps that do not go through run |
| Iterator.__init__ | get_target_batch gives batches in the nesting of the user's dataset |
| TrackableSaver.save, restore | tf.train.Checkpoint would leave tables out: it refuses |
| warm_starting_util.warm_start | tables are warm-started with the variables, from several paths |
| tf.compat.v1.train.warm_start | the same, called by hand |
| Estimator's reading of warm_start_from | lists that do not fit each other are refused at once |
| meta_graph.import_scoped_meta_graph_* | imported collections hold variables of tables |
| Graph._add_new_tf_operations | imported graphs: no feeding past fused updates, no empty tables |
| graph_util_impl.extract_sub_graph | freezing (its only caller by that name) refuses tables |
| convert_to_constants._run_inline_* | freezing of functions refuses tables |
| build_tensor_info_internal | signatures of a SavedModel refuse the variable of a table |
| optimize_for_inference | it refuses tables: it leaves out what would load them |
| training.optimizer._get_processor | TensorFlow's optimizers update rows of a table's variable |
| Optimizer.apply_gradients | the same: each row gets one update |
| Optimizer's three makers of slots | the same: slots of a table live with its rows |
| DatasetV2.eos_map | a new method, which scripts of the original call |

A graph without tables behaves as without them. Apart from them, mx_rec.core.table_variable tells
TensorFlow's registries of conversions how a table's variable is converted, fetched and fed.
"""

import functools
from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.client import session as session_module
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.framework import convert_to_constants, graph_util_impl, meta_graph
from tensorflow.python.saved_model import builder_impl, utils_impl
from tensorflow.python.tools import optimize_for_inference_lib
from tensorflow.python.training import optimizer as optimizer_module
from tensorflow.python.training import warm_starting_util
from tensorflow.python.training.tracking import util as tracking_util
from tensorflow_estimator.python.estimator import estimator

from mx_rec.core.clusters import check_session
from mx_rec.core.frozen import patched_function_tool, patched_tensor_info, patched_tool
from mx_rec.core.graph_state import remember_session
from mx_rec.graph.eos import eos_map
from mx_rec.graph.imported import patched_import, patched_new_operations
from mx_rec.graph.iterators import remembering_elements
from mx_rec.graph.sessions import preparing, starting_iterators
from mx_rec.optimizers.stock import patched_apply_gradients, patched_processor, patched_slot
from mx_rec.saver.incremental import (patched_hook_after_run, patched_hook_begin,
                                      patched_hook_created, patched_hook_end)
from mx_rec.saver.objects import patched_object_restore, patched_object_save
from mx_rec.saver.plain import (patched_add, patched_add_with_variables,
                                  patched_estimator_export)
from mx_rec.saver.saver import Saver, patched_init, patched_restore, patched_save
from mx_rec.saver.serving import patched_saver_of_builder
from mx_rec.saver.warm_start import patched_settings, patched_warm_start
from mx_rec.util.sub_configs import HybridManagerConfig

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
    for builder in (builder_impl._SavedModelBuilder,  # pylint: disable=protected-access
                    builder_impl.SavedModelBuilder):
        _patch(builder, "add_meta_graph_and_variables", patched_add_with_variables)
        _patch(builder, "add_meta_graph", patched_add)
    for export in ("export_saved_model", "export_savedmodel"):
        _patch(estimator.Estimator, export, patched_estimator_export)
    _patch(tracking_util.TrackableSaver, "save", patched_object_save)
    _patch(tracking_util.TrackableSaver, "restore", patched_object_restore)
    _patch(warm_starting_util, "warm_start", patched_warm_start)
    # Set and not read: TensorFlow logs that the second name is deprecated when it is read.
    tf.compat.v1.train.warm_start = tf.train.warm_start = warm_starting_util.warm_start
    _patch(estimator, "_get_default_warm_start_settings", patched_settings)
    _patch(session_module.BaseSession, "__init__", _remembering)
    _patch(session_module.BaseSession, "run", starting_iterators)
    _patch(session_module.BaseSession, "make_callable", preparing)
    _patch(session_module.BaseSession, "partial_run_setup", preparing)
    _patch(iterator_ops.Iterator, "__init__", remembering_elements)
    _patch(meta_graph, "import_scoped_meta_graph_with_return_elements", patched_import)
    _patch(tf.Graph, "_add_new_tf_operations", patched_new_operations)
    _patch(graph_util_impl, "extract_sub_graph", patched_tool)
    _patch(convert_to_constants, "_run_inline_graph_optimization",
           patched_function_tool)
    _patch(utils_impl, "build_tensor_info_internal", patched_tensor_info)
    _patch(optimize_for_inference_lib, "optimize_for_inference", patched_tool)
    _patch(optimizer_module, "_get_processor", patched_processor)
    _patch(optimizer_module.Optimizer, "apply_gradients", patched_apply_gradients)
    for maker in ("_get_or_make_slot", "_get_or_make_slot_with_initializer", "_zeros_slot"):
        _patch(optimizer_module.Optimizer, maker, patched_slot)
    dataset_ops.DatasetV2.eos_map = eos_map
    HybridManagerConfig.table_saver = Saver


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
