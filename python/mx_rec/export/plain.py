"""SavedModels of TensorFlow's own ops, which load where nobody knows this package."""

import contextlib
import inspect
import os
import shutil
import tempfile
import threading
import uuid
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.bundles import bundle
from mx_rec.checkpoint.paths import is_remote
from mx_rec.export.plain_graph import Cut, Wanted, saver_of
from mx_rec.export.plain_options import FIND, REFUSE, PlainOptions
from mx_rec.export.plain_rows import PlainTable, take_rows
from mx_rec.export.plain_storage import STORAGES
from mx_rec.export.plain_updates import SIGNATURES, Updates
from mx_rec.export.warmup import write_warmup
from mx_rec.state.table_variable import table_name_of


class _Mode(threading.local):
    """What `plain_exports` asks for in this thread; None outside of it."""

    options = None  # type: Optional[PlainOptions]


_mode = _Mode()


def export_plain(session: Any, export_dir: str, inputs: Optional[Dict[str, Any]] = None,
                 outputs: Optional[Dict[str, Any]] = None,
                 signature_def_map: Optional[Dict[str, Any]] = None,
                 tags: Sequence[str] = (tf.compat.v1.saved_model.SERVING,),
                 assets_collection: Optional[List[tf.Tensor]] = None,
                 main_op: Optional[tf.Operation] = None, clear_devices: bool = True,
                 as_text: bool = False, training_lookups: str = REFUSE, updates: bool = False,
                 spare_rows: Union[None, int, Dict[str, int]] = None, rows_as: str = "float32",
                 warmup: Sequence[Dict[str, Any]] = ()) -> str:
    """Writes a SavedModel of TensorFlow's own ops, for processes without this package.

    Every lookup becomes a hash table from key to row number and variables with the rows. The model
    predicts what the lookups with is_train=False of the session predict, bit for bit; keys that
    have no row then get zeros, or the rows of `serving_default_value`, and never get one. It loads
    with TensorFlow 1.15 and 2.x: tf.compat.v1.saved_model.load, tf.contrib.predictor, the eager
    tf.saved_model.load. The part of the graph that trains, and optimizers' slots, are left out.

    Each table is exported as of one moment. It is written first, with its slots, into a hidden
    directory beside `export_dir`, or in the system's directory for temporary files if `export_dir`
    is remote. The model stands under `export_dir` when it is complete.

    Args:
        session: A session whose tables and variables are exported.
        export_dir: Directory of the model; it is made, and has to be empty if there is one.
        inputs: Names of inputs and tensors of the one signature, `serving_default`.
        outputs: Names of outputs and tensors of this signature.
        signature_def_map: Signatures by name, in the place of `inputs` and `outputs`.
        tags: Tags of the model.
        assets_collection: String tensors with the paths of asset files; None is those in the
            collection ASSET_FILEPATHS that the model uses.
        main_op: The op that a loader runs, such as tf.compat.v1.tables_initializer().
        clear_devices: Whether ops lose their devices.
        as_text: Whether the model is written as text.
        training_lookups: What becomes of lookups with is_train=True on which outputs depend:
            "refuse", an error; "find", they find rows as lookups with is_train=False do.
        updates: Whether the model gets signatures more, by which `mx_rec.serving` brings it the
            rows and variables of later checkpoints while it serves.
        spare_rows: With updates, rows of each table for keys that it does not have yet, or a dict
            of such numbers by table; None is a quarter of its rows, and at least 1,024.
        rows_as: How rows are stored: "float32"; "float16"; "int8" with a scale for each row. The
            model's lookups give float32.
        warmup: Examples of inputs of the signature `serving_default`, a dict from the inputs' names
            to arrays each: TensorFlow Serving runs them before the model serves.

    Returns:
        `export_dir`.

    Raises:
        AssertionError: If `export_dir` exists and is not empty.
        ValueError: If arguments do not fit, or something that outputs depend on cannot be exported;
            the text names the op.
        tf.errors.OpError: If there is no room, on the disk or in memory.
    """
    options = PlainOptions(training_lookups, updates, spare_rows, rows_as, warmup).checked()
    if (signature_def_map is None) == (inputs is None and outputs is None):
        raise ValueError("export_plain needs either 'inputs' and 'outputs' or 'signature_def_map'.")
    export_dir = tf.compat.as_text(os.fspath(export_dir)).rstrip("/")
    if tf.io.gfile.exists(export_dir) and (not tf.io.gfile.isdir(export_dir)
                                           or tf.io.gfile.listdir(export_dir)):
        raise AssertionError(
            "Export directory already exists, and isn't empty. Please choose a different export "
            "directory, or delete all the contents of the specified directory: {}".format(
                export_dir))
    saved_model = tf.compat.v1.saved_model
    if signature_def_map is None:
        with session.graph.as_default():
            signature_def_map = {
                saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
                    saved_model.signature_def_utils.predict_signature_def(inputs or {},
                                                                          outputs or {})}
    parent, name = os.path.split(export_dir if is_remote(export_dir)
                                 else os.path.abspath(export_dir))
    beside = os.path.join(parent, ".{}.{}.exporting".format(name, uuid.uuid4().hex))
    try:
        builder = saved_model.builder.SavedModelBuilder(beside)
        given = {"self": builder, "sess": session, "tags": list(tags),
                 "signature_def_map": signature_def_map, "assets_collection": assets_collection,
                 "main_op": main_op, "clear_devices": clear_devices}  # type: Dict[str, Any]
        with session.graph.as_default(), _stock():
            _add_plain(type(builder).add_meta_graph_and_variables, given, options,
                       assets_collection is None)
            builder.save(as_text)
        _place(beside, export_dir)
    except BaseException:
        if tf.io.gfile.exists(beside):
            tf.io.gfile.rmtree(beside)
        raise
    logger.info("exported a model of TensorFlow's own ops to %s.", export_dir)
    return export_dir


@contextlib.contextmanager
def plain_exports(training_lookups: str = REFUSE, **options: Any) -> Iterator[None]:
    """Makes exports in its block what `export_plain` writes.

    They are the Estimators' export_saved_model, also of exporters in
    tf.estimator.train_and_evaluate, simple_save and SavedModelBuilder, in this thread.

    Args:
        training_lookups: As of `export_plain`.
        **options: updates, spare_rows, rows_as and warmup, as of `export_plain`.

    Raises:
        ValueError: If an option does not fit.
    """
    chosen = PlainOptions(training_lookups, **options).checked()
    before, _mode.options = _mode.options, chosen
    try:
        yield
    finally:
        _mode.options = before


def patched_add_with_variables(stock: Callable[..., None], self: Any, *args: Any,
                               **kwargs: Any) -> None:
    """A builder's add_meta_graph_and_variables, which heeds `plain_exports`."""
    if _mode.options is None:
        stock(self, *args, **kwargs)
        return
    given = dict(inspect.signature(stock).bind(self, *args, **kwargs).arguments)
    _add_plain(stock, given, _mode.options)


def patched_add(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """A builder's add_meta_graph, which refuses a second graph in `plain_exports`."""
    if _mode.options is not None:
        raise NotImplementedError(
            "a plain SavedModel has one graph: its lookups are bound to the rows that were "
            "exported with it. Export each graph into a directory of its own.")
    stock(self, *args, **kwargs)


def patched_estimator_export(stock: Callable[..., Any], self: Any, *args: Any, plain: bool = False,
                             **kwargs: Any) -> Any:
    """Estimator.export_saved_model, which has the argument `plain`, and options of it."""
    if not plain:
        return stock(self, *args, **kwargs)
    options = {name: kwargs.pop(name) for name in PlainOptions._fields if name in kwargs}
    with plain_exports(**options):
        return stock(self, *args, **kwargs)


@contextlib.contextmanager
def _stock() -> Iterator[None]:
    """Keeps a builder that is used here from being diverted once more."""
    before, _mode.options = _mode.options, None
    try:
        yield
    finally:
        _mode.options = before


def _place(beside: str, export_dir: str) -> None:
    """Gives a complete model its name."""
    if is_remote(export_dir):
        if tf.io.gfile.exists(export_dir):
            tf.io.gfile.rmtree(export_dir)
        tf.io.gfile.rename(beside, export_dir)
        return
    for directory, _, files in os.walk(beside):
        for path in [os.path.join(directory, name) for name in files] + [directory]:
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
    # An empty directory of that name is replaced; a full one is an error.
    os.rename(beside, export_dir)


def _add_plain(stock: Callable[..., None], given: Dict[str, Any], options: PlainOptions,
               finds_assets: bool = False) -> None:
    """Runs a builder's add_meta_graph_and_variables on the plain form of a session's graph.

    Args:
        stock: The method.
        given: Its arguments by name, with `self`.
        options: What becomes of lookups, and of updates.
        finds_assets: Whether the assets are those of the graph that the model uses.
    """
    session = given["sess"]
    graph = session.graph
    signatures = dict(given.get("signature_def_map") or {})
    ops = {key: given[key] for key in ("main_op", "legacy_init_op", "init_op")
           if given.get(key) is not None}
    assets_key = "assets_list" if "assets_list" in given else "assets_collection"
    assets = list(given.get(assets_key) or ())
    taken = sorted(set(signatures).intersection(SIGNATURES)) if options.updates else []
    if taken:
        raise ValueError("the model cannot be updated: the signatures that do it would be called "
                         "{}, which it has already.".format(", ".join(taken)))
    cut = Cut(graph, Wanted(
        _tensors(signatures, "inputs"), _tensors(signatures, "outputs"),
        [_name_of(op) for op in ops.values()] + [asset.name for asset in assets]),
        options.training_lookups == FIND)
    options.check_tables([table_name_of(op) for op in cut.tables])
    saver_def = saver_of(cut)
    builder = given["self"]
    export_dir = tf.compat.as_text(builder._export_dir)  # pylint: disable=protected-access
    directory = None if is_remote(export_dir) else os.path.dirname(os.path.abspath(export_dir))
    scratch = tempfile.mkdtemp(prefix=".tables.", suffix=".exporting", dir=directory)
    try:
        rows = take_rows(session, cut.tables, scratch)
        plain = tf.Graph()
        with plain.as_default():
            scopes = _scopes(cut)
            tables = {op.name: PlainTable(
                rows[op.name], scopes[op.name],
                options.spare_of(rows[op.name].name, rows[op.name].count),
                STORAGES[options.rows_as]) for op in cut.tables}
            ours = plain.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
            cut.build(tables)
            updates = None
            if options.updates:
                updates = Updates(list(tables.values()), [
                    one for one in plain.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                    if all(one is not other for other in ours)], cut.scope("updates"))
                signatures.update(updates.signatures())
            saver = _PlainSaver(session, saver_def, list(tables.values()), updates)
            if finds_assets:
                assets = plain.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS)
            else:
                assets = [plain.get_tensor_by_name(asset.name) for asset in assets]
            given = dict(given, saver=saver, signature_def_map=_renamed(signatures, cut.fed))
            given[assets_key] = assets or None
            given.pop("train_op", None)
            for key, op in ops.items():
                given[key] = plain.as_graph_element(_name_of(op))
            stock(**given)
            write_warmup(export_dir, options.warmup, signatures)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _scopes(cut: Cut) -> Dict[str, str]:
    """Returns a name scope for each table, by the name of its op."""
    top = cut.scope()
    scopes = {}  # type: Dict[str, str]
    for op in cut.tables:
        name = wanted = "{}/{}".format(top, table_name_of(op))
        number = 0
        while name in scopes.values():
            number += 1
            name = "{}_{}".format(wanted, number)
        scopes[op.name] = name
    return scopes


def _name_of(op: Any) -> str:
    """Returns the name of an op or a tensor, or of what a TensorFlow 2 builder takes for it."""
    return op if isinstance(op, str) else op.name


def _tensors(signatures: Dict[str, Any], side: str) -> List[str]:
    """Returns the names of all tensors of one side of signatures."""
    names = []  # type: List[str]
    for signature in signatures.values():
        for info in getattr(signature, side).values():
            names.extend(_names_of(info))
    return names


def _names_of(info: Any) -> List[str]:
    """Returns the names of the tensors of a TensorInfo."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        coo = info.coo_sparse
        return [coo.values_tensor_name, coo.indices_tensor_name, coo.dense_shape_tensor_name]
    if kind == "composite_tensor":
        return [name for one in info.composite_tensor.components for name in _names_of(one)]
    return [info.name] if info.name else []


def _renamed(signatures: Dict[str, Any], fed: Dict[str, str]) -> Dict[str, Any]:
    """Returns signatures with placeholders for what an iterator yields."""
    result = {}
    for key, signature in signatures.items():
        result[key] = type(signature)()
        result[key].CopyFrom(signature)
        for info in list(result[key].inputs.values()) + list(result[key].outputs.values()):
            if info.name in fed:
                info.name = fed[info.name] + ":0"
    return result


class _PlainSaver:
    """Stands for the Saver that a builder uses: writes variables and tables, names their restore.

    Args:
        session: Of the original graph.
        saver_def: The SaverDef of that graph's variables, whose ops are also in the default graph.
        tables: The tables of the default graph; their restore is made a part of the other one.
        updates: What the model keeps for its updates, or None.
    """

    def __init__(self, session: Any, saver_def: Any, tables: List[PlainTable],
                 updates: Optional[Updates]) -> None:
        self.saver_def = saver_def
        self._session = session
        self._tables = tables
        graph = tf.compat.v1.get_default_graph()
        filename = graph.get_tensor_by_name(saver_def.filename_tensor_name)
        restored = [op for table in tables for op in table.restore(filename)]
        restored += updates.restore() if updates is not None else []
        restore = graph.get_operation_by_name(saver_def.restore_op_name)
        restore._add_control_inputs(restored)  # pylint: disable=protected-access

    def save(self, sess: Any, save_path: Any, **kwargs: Any) -> str:
        """Writes the checkpoint of a SavedModel."""
        del sess, kwargs
        prefix = tf.compat.as_text(save_path)
        with bundle(prefix) as writer:
            self._session.run(self.saver_def.save_tensor_name,
                              {self.saver_def.filename_tensor_name: writer.new_part()})
            for table in self._tables:
                table.write(writer)
        return prefix

    def export_meta_graph(self, clear_devices: bool = False, strip_default_attrs: bool = False,
                          **kwargs: Any) -> Any:
        """Returns the MetaGraphDef of the default graph."""
        del kwargs
        graph = tf.compat.v1.get_default_graph()
        return tf.compat.v1.train.export_meta_graph(
            graph_def=graph.as_graph_def(add_shapes=True), saver_def=self.saver_def,
            clear_devices=clear_devices, strip_default_attrs=strip_default_attrs)
