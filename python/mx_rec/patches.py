"""The few changes that mx_rec makes to TensorFlow, each for a feature that needs it.

`_PATCHES` and the lists after it say what each is for. `DatasetV2.eos_map` is a new method, which
scripts of the original call.

A graph without tables behaves as without them. Apart from them, mx_rec.state.table_variable tells
TensorFlow's registries of conversions how a table's variable is converted, fetched and fed.
"""

import functools
import inspect
import sys
from typing import Any, Callable, NamedTuple, Tuple, Union

import tensorflow as tf

from mx_rec.checkpoint.sources import patched_settings
from mx_rec.cluster.synchronous import patched_sync_apply
from mx_rec.cluster.waiting import patched_wait
from mx_rec.core.clusters import check_session
from mx_rec.core.frozen import patched_function_tool, patched_tensor_info, patched_tool
from mx_rec.export.plain import patched_add, patched_add_with_variables, patched_estimator_export
from mx_rec.export.serving import patched_saver_of_builder
from mx_rec.graph.back import patched_gradients
from mx_rec.graph.eos import eos_map
from mx_rec.graph.imported import patched_import, patched_new_operations
from mx_rec.graph.iterators import remembering_elements
from mx_rec.graph.sessions import (extending_session, fetching, preparing, preparing_options,
                                   preparing_parts, running_parts, starting_iterators)
from mx_rec.graph.variables import (patched_get_collection, patched_initializer,
                                    patched_monitored_session, patched_saveables)
from mx_rec.graph.weights import asking_size, holding, holding_iterator, holding_one
from mx_rec.optimizers.stock import (patched_apply_gradients, patched_get_slot, patched_processor,
                                     patched_slot)
from mx_rec.saver.incremental import (patched_hook_after_run, patched_hook_begin,
                                      patched_hook_created, patched_hook_end)
from mx_rec.saver.objects import patched_object_restore, patched_object_save
from mx_rec.saver.saver import patched_restore, patched_save
from mx_rec.saver.var_lists import patched_build, patched_init
from mx_rec.saver.warm_start import patched_warm_start
from mx_rec.state.graph_state import remember_session
from mx_rec.stock.estimators import patched_add_mode, patched_model_fn
from mx_rec.stock.saved_variables import patched_reader, patched_start
from mx_rec.tensorflow import names
from mx_rec.tensorflow.scopes import keep_scopes_apart
from mx_rec.tensorflow.versions import IS_1, VERSION, Absent, absent, find, has_estimators

_STOCK = "_mx_rec_stock"
_P = "tensorflow.python."


class _Patch(NamedTuple):
    """One change.

    Attributes:
        feature: What needs it, the subject of a sentence.
        owner: The class or module; or where versions have had it, newest first, as `find` takes it.
        name: The function or method of it.
        change: What is called in its place: it takes what was there, and then its arguments. The
            functions `patched_...` of the modules do.
        since: The first version that has it.
    """

    feature: str
    owner: Union[type, Tuple[Tuple[Tuple[int, int], str], ...]]
    name: str
    change: Callable[..., Any]
    since: Tuple[int, int] = (1, 15)


def _in(module: str, since: Tuple[int, int] = (1, 15)) -> Any:
    """A place that has not moved."""
    return ((since, module),)


def _export(name: str, replacement: Any) -> None:
    """Puts a patched function where the public modules of TensorFlow have that of before.

    Some 2.x have two objects for one module, by `tensorflow._api.v2` and by its public name.

    Args:
        name: Its public name in tf.compat.v1, and in a 1.x in tf.
        replacement: The function.
    """
    module, _, function = name.rpartition(".")
    # Set and not read: TensorFlow logs that the second name is deprecated when it is read.
    for root in [tf.compat.v1] + [tf] * IS_1:
        setattr(functools.reduce(getattr, module.split(".") if module else (), root), function,
                replacement)
    stock = getattr(replacement, _STOCK, None)
    for known, public in list(sys.modules.items()):
        if known.partition(".")[0] == "tensorflow" and (not module or known.endswith(
                "." + module)) and getattr(public, "__dict__", {}).get(function) is stock:
            setattr(public, function, replacement)


def _patch(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replaces `owner.name`, of a class or a module, once."""
    stock = getattr(owner, name)
    if hasattr(stock, _STOCK):
        return

    @functools.wraps(stock)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return change(stock, *args, **kwargs)

    signature = inspect.signature(change)
    taken = list(signature.parameters.values())[1:]
    if all(one.kind is not one.VAR_POSITIONAL for one in taken):
        # It may take more than that of before.
        setattr(replacement, "__signature__", signature.replace(parameters=taken))
    setattr(replacement, _STOCK, stock)
    setattr(owner, name, replacement)


def _remembering(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """BaseSession.__init__, which notes the session at its graph.

    A session that would run tables in a cluster of several tasks is closed again and refused.
    """
    stock(self, *args, **kwargs)
    try:
        check_session(self)
    except Exception:
        names.session.BaseSession.close(self)
        raise
    remember_session(self)


_SAVER = tf.compat.v1.train.Saver
_HOOK = tf.compat.v1.train.CheckpointSaverHook
_TRACKABLE = (((2, 9), _P + "checkpoint.checkpoint:TrackableSaver"),
              ((1, 15), _P + "training.tracking.util:TrackableSaver"))
_BUILDER = _in(_P + "saved_model.builder_impl:_SavedModelBuilder")
_BUILDER_1 = _in(_P + "saved_model.builder_impl:SavedModelBuilder")
_SESSION = _in(_P + "client.session:BaseSession")
_VARIABLES = _in(_P + "ops.variables")
_COLLECTIONS = _in(_P + "framework.ops")
_FETCHES = _in(_P + "client.session:_FetchHandler")
_OPTIMIZER = _P + "training.optimizer"
_GRADIENTS = _in(_P + "ops.gradients")
_READERS = (((2, 2), _P + "training.py_checkpoint_reader"),
            ((1, 15), "tensorflow.python:pywrap_tensorflow"))
_ESTIMATOR = "tensorflow_estimator.python.estimator.estimator"

_PATCHES = (
    # Tables are not variables: they are taken out of var_list, saved, removed and restored with the
    # variables. Variables may become tables later: then a Saver is built anew.
    _Patch("tf.train.Saver", _SAVER, "__init__", patched_init),
    _Patch("tf.train.Saver", _SAVER, "_build", patched_build),
    _Patch("tf.train.Saver", _SAVER, "save", patched_save),
    _Patch("tf.train.Saver", _SAVER, "restore", patched_restore),
    # Whole saves and deltas have clocks of their own.
    _Patch("incremental checkpoints", _HOOK, "begin", patched_hook_begin),
    _Patch("incremental checkpoints", _HOOK, "after_create_session", patched_hook_created),
    _Patch("incremental checkpoints", _HOOK, "after_run", patched_hook_after_run),
    _Patch("incremental checkpoints", _HOOK, "end", patched_hook_end),
    # A model loaded without this package has its tables.
    _Patch("SavedModels", _BUILDER, "_maybe_create_saver", patched_saver_of_builder),
    # tf.train.Checkpoint would leave tables out.
    _Patch("the refusal of tf.train.Checkpoint", _TRACKABLE, "save", patched_object_save),
    _Patch("the refusal of tf.train.Checkpoint", _TRACKABLE, "restore", patched_object_restore),
    # Tables are warm-started with the variables, from several paths.
    _Patch("warm starts", _in(_P + "training.warm_starting_util"), "warm_start",
           patched_warm_start),
    # It finds the session that a MonitoredSession hides; and clusters are checked.
    _Patch("table.size() with a hidden session", _SESSION, "__init__", _remembering),
    # A rewritten one-shot iterator starts by itself, and variables become tables: also in steps
    # that do not go through run, once for all parts of a partial run and in the callables of Keras.
    _Patch("sessions", _SESSION, "run", starting_iterators),
    _Patch("sessions", _SESSION, "make_callable", preparing),
    _Patch("sessions", _SESSION, "partial_run_setup", preparing_parts),
    _Patch("sessions", _SESSION, "partial_run", running_parts),
    _Patch("sessions", _SESSION, "_make_callable_from_options", preparing_options),
    _Patch("sessions", _SESSION, "_extend_graph", extending_session),
    # Workers are told what keeps them from tables on servers.
    _Patch("tables on parameter servers", _in(_P + "training.session_manager:SessionManager"),
           "wait_for_session", patched_wait),
    # They are made before the session is; get_collection lists them, a Saver of all saves them as
    # tables, and the initializer starts the slots of a table with the table.
    _Patch("tables in the place of variables",
           _in(_P + "training.monitored_session:_MonitoredSession"), "__init__",
           patched_monitored_session),
    _Patch("tables in the place of variables", _COLLECTIONS, "get_collection",
           patched_get_collection),
    _Patch("tables in the place of variables", _VARIABLES, "_all_saveable_objects",
           patched_saveables),
    _Patch("tables in the place of variables", _VARIABLES, "variables_initializer",
           patched_initializer),
    # A variable that is a table has the rows of the table.
    _Patch("fetches of variables that are tables", _FETCHES, "fetches", fetching),
    _Patch("fetches of variables that are tables", _FETCHES, "targets", fetching),
    # It gives batches in the nesting of the user's dataset.
    _Patch("get_target_batch", _in(_P + "data.ops.iterator_ops:Iterator"), "__init__",
           remembering_elements),
    # Their collections hold variables of tables; no feeding past fused updates, no empty tables.
    _Patch("imported graphs", _in(_P + "framework.meta_graph"),
           "import_scoped_meta_graph_with_return_elements", patched_import),
    _Patch("imported graphs", tf.Graph, "_add_new_tf_operations", patched_new_operations),
    # Checkpoints have tables for them; the last is for tf.train.init_from_checkpoint.
    _Patch("variables of checkpoints that are tables", _READERS, "NewCheckpointReader",
           patched_reader),
    _Patch("variables of checkpoints that are tables", _in(_P + "training.training"),
           "NewCheckpointReader", patched_reader),
    _Patch("variables of checkpoints that are tables", _in(_P + "training.checkpoint_utils"),
           "_set_checkpoint_initializer", patched_start),
    # The only caller of the first in 1.15 is freezing; the second is that of functions. A tool that
    # optimizes for inference leaves out what would load tables.
    _Patch("the refusal to freeze", _in(_P + "framework.graph_util_impl"), "extract_sub_graph",
           patched_tool),
    _Patch("the refusal to freeze", _in(_P + "framework.convert_to_constants"),
           "_run_inline_graph_optimization", patched_function_tool),
    _Patch("the refusal to freeze", _in(_P + "framework.convert_to_constants", (2, 0)),
           "convert_variables_to_constants_from_session_graph", patched_tool, (2, 0)),
    _Patch("the refusal of a table in a signature", _in(_P + "saved_model.utils_impl"),
           "build_tensor_info_internal", patched_tensor_info),
    _Patch("the refusal to freeze", _in(_P + "tools.optimize_for_inference_lib"),
           "optimize_for_inference", patched_tool),
    # Gradients of tables are summed over workers.
    _Patch("synchronous training on parameter servers",
           _in(_P + "training.sync_replicas_optimizer:SyncReplicasOptimizer"), "apply_gradients",
           patched_sync_apply),
    # They update rows of a table's variable, each row once, and slots live with the rows.
    _Patch("TensorFlow's optimizers on tables", _in(_OPTIMIZER), "_get_processor",
           patched_processor),
    # Tables are variables again.
    _Patch("training ops that are made late", _in(_P + "ops.gradients_impl"), "gradients",
           patched_gradients),
    _Patch("training ops that are made late", _GRADIENTS, "gradients", patched_gradients),
    _Patch("TensorFlow's optimizers on tables", _in(_OPTIMIZER + ":Optimizer"), "apply_gradients",
           patched_apply_gradients),
    _Patch("TensorFlow's optimizers on tables", _in(_OPTIMIZER + ":Optimizer"), "get_slot",
           patched_get_slot),
) + tuple(
    _Patch("TensorFlow's optimizers on tables", _in(_OPTIMIZER + ":Optimizer"), maker,
           patched_slot)
    for maker in ("_get_or_make_slot", "_get_or_make_slot_with_initializer", "_zeros_slot")
) + tuple(
    # A model can be exported as TensorFlow's own ops alone.
    _Patch("plain exports", builder, name, change)
    for builder in (_BUILDER, _BUILDER_1)
    for name, change in (("add_meta_graph_and_variables", patched_add_with_variables),
                       ("add_meta_graph", patched_add)))

# Of TensorFlow 1.15. Programs that import tensorflow.train as a module get readers from where they
# are made. Weights and iterators of Keras wait for the run that makes tables.
_KERAS = _in(_P + "keras.backend")
_PATCHES_OF_1 = (
    _Patch("variables of checkpoints that are tables", _in(_P + "pywrap_tensorflow_internal"),
           "NewCheckpointReader", patched_reader),
    _Patch("weights of Keras's models", _KERAS, "batch_set_value", holding),
    _Patch("weights of Keras's models", _KERAS, "set_value", holding_one),
    _Patch("datasets of Keras's models", _KERAS, "get_value", asking_size),
    _Patch("datasets of Keras's models", _in(_P + "keras.engine.training_utils"),
           "initialize_iterator", holding_iterator))

# Of a package that not every version comes with.
_ESTIMATOR_PATCHES = (
    # Lists that do not fit each other are refused at once.
    _Patch("warm starts of Estimators", _in(_ESTIMATOR), "_get_default_warm_start_settings",
           patched_settings),
    # They are made when the model is built; exported models have variables.
    _Patch("tables in the place of variables", _in(_ESTIMATOR + ":Estimator"), "_call_model_fn",
           patched_model_fn),
    _Patch("tables in the place of variables", _in(_ESTIMATOR + ":Estimator"),
           "_add_meta_graph_for_mode", patched_add_mode),
) + tuple(
    _Patch("plain exports of Estimators", _in(_ESTIMATOR + ":Estimator"), name,
           patched_estimator_export)
    for name in ("export_saved_model", "export_savedmodel"))


def apply() -> None:
    """Applies all patches; a second call changes nothing."""
    for patch in _PATCHES + _PATCHES_OF_1 * IS_1 + _ESTIMATOR_PATCHES * has_estimators():
        if VERSION < patch.since:
            continue
        owner = patch.owner
        if isinstance(owner, tuple):
            owner = find(patch.feature, *owner)
            if isinstance(owner, Absent):
                continue
        if hasattr(owner, patch.name):
            _patch(owner, patch.name, patch.change)
        else:
            absent(patch.feature, "{}.{}".format(owner.__name__, patch.name))
    _export("train.warm_start",
            find("warm starts", *_in(_P + "training.warm_starting_util")).warm_start)
    _export("train.NewCheckpointReader", find("readers", *_READERS).NewCheckpointReader)
    variables = find("variables", *_VARIABLES)
    _export("get_collection", find("collections", *_COLLECTIONS).get_collection)
    for name in ("variables_initializer", "initializers.variables"):
        _export(name, variables.variables_initializer)
    _export("gradients", find("gradients", *_GRADIENTS).gradients)
    for name in ("batch_set_value", "set_value") * IS_1:
        _export("keras.backend." + name, getattr(names.keras_backend, name))
    names.dataset_ops.DatasetV2.eos_map = eos_map
    # A run may change a graph that another thread builds.
    keep_scopes_apart()
