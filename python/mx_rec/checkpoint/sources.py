"""The checkpoints that a warm start begins with, and what is wanted of each."""

import contextlib
import os
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint.chains import chain_of
from mx_rec.checkpoint.commit import listed_tables
from mx_rec.checkpoint.paths import single_slashes
from mx_rec.checkpoint.remote import directory_of, local_copy
from mx_rec.tensorflow.names import NewCheckpointReader

_KEYS = "key"


class Source(NamedTuple):
    """One checkpoint and what is wanted of it.

    Attributes:
        checkpoint: Prefix of the checkpoint's files.
        directories: Directory of each of its tables, by name.
        names: What strings that name tables or variables may match, in the checkpoint.
        variables: vars_to_warm_start: None, one expression, or a list.
        vocabulary: var_name_to_vocab_info.
        previous: var_name_to_prev_var_name.
    """

    checkpoint: str
    directories: Dict[str, str]
    names: List[str]
    variables: Any
    vocabulary: Dict[str, Any]
    previous: Dict[str, str]


def patched_settings(stock: Callable[[Any], Any], warm_start_from: Any) -> Any:
    """The reader of Estimator's `warm_start_from`, which refuses lists that do not fit."""
    settings = stock(warm_start_from)
    if settings is not None:
        _split(*settings)
    return settings


def sources_of(graph: tf.Graph, checkpoints: Any, variables: Any = ".*", vocabulary: Any = None,
               previous: Any = None) -> List[Source]:
    """Looks up the checkpoints of a warm start.

    Args:
        graph: The graph that starts.
        checkpoints: These and the others are those of TensorFlow's warm_start, or lists.
        variables: See there.
        vocabulary: See there.
        previous: See there.

    Returns:
        The checkpoints, in order.

    Raises:
        FileNotFoundError: If there is none at a path.
        OSError: If its file system refuses.
        ValueError: If its manifest is damaged, or the lists do not fit each other.
    """
    return [_open(graph, *part) for part in _split(checkpoints, variables, vocabulary, previous)]


def _split(checkpoints: Any, variables: Any, vocabulary: Any,
           previous: Any) -> List[Tuple[str, Any, Dict[str, Any], Dict[str, str]]]:
    """Returns the settings of each checkpoint, in order.

    Raises:
        ValueError: If there is a list of checkpoints, and the others are no lists that fit it.
    """
    if not isinstance(checkpoints, (list, tuple)):
        return [(tf.compat.as_str(checkpoints), variables, vocabulary or {}, previous or {})]
    count = len(checkpoints)
    for checkpoint in checkpoints:
        if not isinstance(checkpoint, (str, bytes)) or not checkpoint:
            raise ValueError("'ckpt_to_initialize_from' should hold paths, but holds "
                             "{!r}".format(checkpoint))
    if vocabulary and not isinstance(vocabulary, (list, tuple)):
        logger.warning("'var_name_to_vocab_info' is ignored: with several checkpoints it should "
                       "be a list with a dict or None for each of them.")
        vocabulary = None
    lists = [("vars_to_warm_start", variables, (str, list, tuple)),
             ("var_name_to_vocab_info", vocabulary or [None] * count, dict),
             ("var_name_to_prev_var_name", previous or [None] * count, dict)]  # type: List[Any]
    for name, values, kinds in lists:
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise ValueError(
                "'ckpt_to_initialize_from' has {} checkpoints, so that '{}' should be a list of "
                "{} (None for a checkpoint without), but is {!r}".format(count, name, count,
                                                                         values))
        for value in values:
            if value is not None and not isinstance(value, kinds):
                raise ValueError("'{}' holds {!r}, which it cannot for one checkpoint".format(
                    name, value))
    return [(tf.compat.as_str(one), part, names or {}, others or {})
            for one, part, names, others in zip(checkpoints, *[values for _, values, _ in lists])]


def _open(graph: tf.Graph, path: str, variables: Any, vocabulary: Dict[str, Any],
          previous: Dict[str, str]) -> Source:
    """Looks a checkpoint up.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If its file system refuses.
        ValueError: If its manifest is damaged.
    """
    path = single_slashes(path)
    checkpoint = path  # type: Optional[str]
    if tf.io.gfile.isdir(path):
        checkpoint = tf.train.latest_checkpoint(path)
        if checkpoint is None:
            raise FileNotFoundError(
                "there is no checkpoint to start from in the directory {}: it has no file "
                "'checkpoint', or that names files that are gone.".format(path))
    elif not tf.compat.v1.train.checkpoint_exists(path):
        raise FileNotFoundError("there is no checkpoint to start from at {}: neither a directory "
                                "nor files of that prefix exist.".format(path))
    assert checkpoint is not None
    directories = _table_directories(graph, checkpoint)
    names = sorted(NewCheckpointReader(checkpoint).get_variable_to_shape_map())
    if isinstance(variables, tuple):
        variables = list(variables)
    return Source(checkpoint, directories, names, variables or None, vocabulary, previous)


def _table_directories(graph: tf.Graph, checkpoint: str) -> Dict[str, str]:
    """Returns the local directory of each table that was saved with a checkpoint, by name.

    Copies of what is on other file systems stay for as long as the graph.

    Raises:
        OSError: If the file system refuses.
        ValueError: If the manifest is damaged.
    """
    copies = contextlib.ExitStack()
    directory = copies.enter_context(local_copy(directory_of(checkpoint)))
    weakref.finalize(graph, copies.close)
    if not os.path.isdir(directory):
        return {}
    chain_of(directory)
    names = listed_tables(directory)
    if names is None:
        names = sorted(name for name in os.listdir(directory)
                       if os.path.isdir(os.path.join(directory, name, _KEYS)))
    return {name: os.path.join(directory, name) for name in names}
