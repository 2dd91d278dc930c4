"""What `init` was told: the settings of this process, which every layer above may read."""

from typing import Any, Optional

from mx_rec.constants.constants import MAX_INT32
from mx_rec.state.training import OptimizerConfig, TrainParamsConfig
from mx_rec.validator.validator import Bool, Int


class Settings:
    """The arguments of `init`, checked; one instance at a time.

    Attributes:
        is_assumed: Whether the script has not called `init`: `python -m mx_rec run` has set what
            its options say, and an `init` of the script takes these over.
        modify_graph: Whether some lookup asked for graph modification.
        optimizer_config: The optimizer created last.
        train_params_config: Iterators, collections and paths around training.
    """

    _single_instance = None  # type: Optional[Settings]

    def __init__(self, max_steps: int = -1, train_steps: int = -1, eval_steps: int = -1,
                 save_steps: int = -1, if_load: bool = False, use_dynamic: bool = True,
                 use_dynamic_expansion: bool = False, bind_cpu: bool = True,
                 use_lccl: bool = False, is_incremental_checkpoint: bool = False,
                 save_checkpoint_due_time: Optional[int] = None,
                 save_delta_checkpoints_secs: Optional[int] = None,
                 restore_model_version: Optional[int] = None,
                 recent_key_count_threshold: int = 0, use_hot: bool = True,
                 stock_tables: Any = None, graph_pass: bool = True) -> None:
        self.is_assumed = False
        self.modify_graph = False
        self.optimizer_config = OptimizerConfig()
        self.train_params_config = TrainParamsConfig()
        self._stock_tables = stock_tables
        self._graph_pass = graph_pass
        self._numbers = {"max_steps": max_steps, "train_steps": train_steps,
                         "eval_steps": eval_steps, "save_steps": save_steps}
        self._if_load = if_load
        self._use_static = not use_dynamic
        self._use_dynamic_expansion = use_dynamic_expansion
        self._bind_cpu = bind_cpu
        self._use_lccl = use_lccl
        self._is_incremental_checkpoint = is_incremental_checkpoint
        self._save_checkpoint_due_time = save_checkpoint_due_time
        self._save_delta_checkpoints_secs = save_delta_checkpoints_secs
        self._restore_model_version = restore_model_version
        self._recent_key_count_threshold = recent_key_count_threshold
        self._use_hot = use_hot

    @staticmethod
    def get_instance() -> "Settings":
        """Returns the settings of this process.

        Raises:
            EnvironmentError: If `init` was not called.
        """
        if Settings._single_instance is None:
            raise EnvironmentError("Please init the environment for mx_rec at first. (call "
                                   "mx_rec.util.initialize.init() before anything else)")
        return Settings._single_instance

    @staticmethod
    def set_instance(instance: "Optional[Settings]") -> None:
        """Makes `instance` the settings of this process; None ends them."""
        Settings._single_instance = instance

    @staticmethod
    def passes_graphs() -> bool:
        """Returns whether lookups are fused and joined before a graph's first run."""
        instance = Settings._single_instance
        return instance is None or instance.graph_pass

    @staticmethod
    def assumed() -> "Optional[Settings]":
        """Returns the settings of `python -m mx_rec run` while the script has not called `init`."""
        instance = Settings._single_instance
        return instance if instance is not None and instance.is_assumed else None

    @property
    def graph_pass(self) -> bool:
        """Whether lookups are fused and joined before a graph's first run."""
        return self._graph_pass

    @property
    def use_lccl(self) -> bool:
        """Accepted and without effect."""
        return self._use_lccl

    @property
    def bind_cpu(self) -> bool:
        """Accepted and without effect."""
        return self._bind_cpu

    @property
    def use_hot(self) -> bool:
        """Accepted and without effect."""
        return self._use_hot

    @property
    def use_dynamic_expansion(self) -> bool:
        """Whether tables grow without a preset size."""
        return self._use_dynamic_expansion

    @property
    def is_incremental_checkpoint(self) -> bool:
        """Whether checkpoints are base and delta saves."""
        return self._is_incremental_checkpoint

    @property
    def save_checkpoint_due_time(self) -> Optional[int]:
        """Seconds between base saves."""
        return self._save_checkpoint_due_time

    @property
    def save_delta_checkpoints_secs(self) -> Optional[int]:
        """Seconds between delta saves."""
        return self._save_delta_checkpoints_secs

    @property
    def restore_model_version(self) -> Optional[int]:
        """Global step of the version to restore; None is the newest."""
        return self._restore_model_version

    @property
    def recent_key_count_threshold(self) -> int:
        """Keys with fewer recent occurrences are left out of a delta."""
        return self._recent_key_count_threshold

    @property
    def stock_tables(self) -> Any:
        """Which variables become tables (stock.options.StockTables), None for none."""
        return self._stock_tables

    @property
    def max_steps(self) -> int:
        """Total number of training steps; -1 is until the data end."""
        return self._numbers["max_steps"]

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._set_number("max_steps", value)

    @property
    def train_steps(self) -> int:
        """Training steps between two evaluations."""
        return self._numbers["train_steps"]

    @train_steps.setter
    def train_steps(self, value: int) -> None:
        self._set_number("train_steps", value)

    @property
    def eval_steps(self) -> int:
        """Steps of one evaluation."""
        return self._numbers["eval_steps"]

    @eval_steps.setter
    def eval_steps(self, value: int) -> None:
        self._set_number("eval_steps", value)

    @property
    def save_steps(self) -> int:
        """Training steps between two saves."""
        return self._numbers["save_steps"]

    @save_steps.setter
    def save_steps(self, value: int) -> None:
        self._set_number("save_steps", value)

    @property
    def if_load(self) -> bool:
        """Whether a checkpoint will be restored before training."""
        return self._if_load

    @if_load.setter
    def if_load(self, value: bool) -> None:
        Bool()("if_load", value)
        self._if_load = value

    @property
    def use_static(self) -> bool:
        """Whether batches have fixed shapes, so that send_count is needed."""
        return self._use_static

    @use_static.setter
    def use_static(self, value: bool) -> None:
        Bool()("use_static", value)
        self._use_static = value

    def _set_number(self, name: str, value: int) -> None:
        self._numbers[name] = Int(-1, MAX_INT32)(name, value)
