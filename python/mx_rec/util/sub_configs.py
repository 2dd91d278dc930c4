"""The sub-configurations that hang on ConfigInitializer; most are views of the present graph."""

import os
from typing import Any, Dict, List, Optional, Set

import tensorflow as tf

from mx_rec.core.admission import evict
from mx_rec.saver.saver import Saver
from mx_rec.state.graph_state import find_session, graph_state, outermost_graph
from mx_rec.state.table_variable import is_table_variable
from mx_rec.state.training import OptimizerConfig, TrainParamsConfig  # noqa: F401  also from here
from mx_rec.validator.validator import Text


class SparseEmbedConfig:
    """The tables of the present default graph."""

    @property
    def table_instance_dict(self) -> Dict[tf.Tensor, Any]:
        """Table variable -> table object."""
        found = {}  # type: Dict[tf.Tensor, Any]
        for table in graph_state().tables.values():
            found.setdefault(table.variable, table)
        return found

    @property
    def name_to_var_dict(self) -> Dict[str, tf.Tensor]:
        """Table name -> table variable."""
        return {name: table.variable for name, table in graph_state().tables.items()}

    @property
    def table_name_set(self) -> Set[str]:
        """The names of all tables."""
        return set(graph_state().tables)

    @property
    def removing_var_list(self) -> List[str]:
        """Names of the variables that are not part of the dense checkpoint."""
        return sorted({table.variable.op.name for table in graph_state().tables.values()})

    def get_table_instance(self, key: tf.Tensor) -> Any:
        """Finds a table by its variable.

        Raises:
            KeyError: If `key` is not the variable of a table of the present graph.
        """
        for table in graph_state().tables.values():
            if is_table_variable(key) and table.variable.op is key.op:
                return table
        raise KeyError("{} is not the variable of a table of this graph; tables are {}.".format(
            key, sorted(self.table_name_set)))

    def get_table_instance_by_name(self, table_name: str) -> Any:
        """Finds a table by its name.

        Raises:
            KeyError: If the present graph has no such table.
        """
        tables = graph_state().tables
        if table_name not in tables:
            raise KeyError("there is no table {!r} in this graph; tables are {}.".format(
                table_name, sorted(tables)))
        return tables[table_name]

    def get_table_instance_by_tensor(self, tensor: tf.Tensor) -> Any:
        """Finds a table by its variable or by any output of the op that makes it.

        Raises:
            KeyError: If no table of the present graph is made by that op.
        """
        op = getattr(tensor, "op", None)
        for table in graph_state().tables.values():
            if op is not None and table.variable.op is op:
                return table
        raise KeyError("{} does not belong to a table of this graph; tables are {}.".format(
            tensor, sorted(self.table_name_set)))


class FeatureSpecConfig:
    """The features that insert functions of the present graph read."""

    def __init__(self) -> None:
        self._exported = {}  # type: Dict[str, Any]

    @property
    def feature_spec_dict(self) -> Dict[str, Any]:
        """Unique feature name -> FeatureSpec."""
        found = dict(self._exported)
        for insertion in graph_state().insertions.values():
            found.update(insertion.specs)
        return found

    def insert_feature_spec(self, spec: Any) -> None:
        """Adds a feature that no insert function has read."""
        self._exported[spec.name] = spec


class HybridManagerConfig:
    """The state of the pipeline of the present graph.

    There is no host process to manage: tables live in the session that runs the graph.
    """

    @property
    def asc_manager(self) -> Optional[Any]:
        """The graph's state once the pipeline was started, else None."""
        state = graph_state()
        return state if state.frozen else None

    @property
    def freeze(self) -> bool:
        """Whether the pipeline of the present graph was started."""
        return graph_state().frozen

    @freeze.setter
    def freeze(self, value: bool) -> None:
        graph_state().frozen = bool(value)

    def trigger_evict(self) -> bool:
        """Evicts stale keys of all tables in the present session; see mx_rec.core.admission.evict.

        Returns:
            True: it is done.
        """
        evict()
        return True

    def save_host_data(self, root_dir: str) -> None:
        """Saves the tables of the present graph from the present session, without variables.

        Args:
            root_dir: The directory `sparse-<name>-<step>` of a checkpoint, or its prefix without
                `sparse-`. What is there is replaced as a whole.

        Raises:
            ValueError: If the path is not valid.
            RuntimeError: If no session was opened on the present graph, or the last was closed.
        """
        Saver(max_to_keep=0).save(find_session(outermost_graph()), _prefix_of(root_dir))

    def restore_host_data(self, root_dir: str) -> None:
        """Replaces the content of the tables of the present graph by what was saved.

        Args:
            root_dir: As `save_host_data`.

        Raises:
            FileExistsError: If there is no such directory, or it lacks a table.
            RuntimeError: As `save_host_data`.
        """
        Saver().restore(find_session(outermost_graph()), _prefix_of(root_dir))

    def fetch_device_emb(self) -> None:
        """Does nothing: rows lie in memory, and no device has newer ones."""

    def get_table_size(self, table_name: str) -> int:
        """Returns the number of rows of a table of the present graph."""
        return SparseEmbedConfig().get_table_instance_by_name(table_name).size()

    def get_table_capacity(self, table_name: str) -> int:
        """Returns the row budget of a table of the present graph."""
        return SparseEmbedConfig().get_table_instance_by_name(table_name).capacity()


def _prefix_of(root_dir: str) -> str:
    """Returns the prefix of the checkpoint whose directory of tables `root_dir` is."""
    Text(1, 1024)("root_dir", root_dir)
    head, base = os.path.split(root_dir.rstrip(os.sep))
    return os.path.join(head, base[len("sparse-"):] if base.startswith("sparse-") else base)
