"""What `init` was told: the settings of this process, which every layer above may read."""

from typing import Any, Optional

from mx_rec.constants.constants import MAX_INT32
from mx_rec.state.training import OptimizerConfig, TrainParamsConfig
from mx_rec.validator.validator import Bool, Int


# What a script may change after `init`, with the rules for it.
_SETTABLE = {"max_steps": Int(-1, MAX_INT32), "train_steps": Int(-1, MAX_INT32),
             "eval_steps": Int(-1, MAX_INT32), "save_steps": Int(-1, MAX_INT32),
             "if_load": Bool(), "use_static": Bool()}


class Settings:
    """The arguments of `init`, checked; one instance at a time.

    The numbers of steps, `if_load` and `use_static` may be set later, and are checked then.

    Attributes:
        is_assumed: Whether the script has not called `init`: `python -m mx_rec run` has set what
            its options say, and an `init` of the script takes these over.
        modify_graph: Whether some lookup asked for graph modification.
        optimizer_config: The optimizer created last.
        train_params_config: Iterators, collections and paths around training.
        max_steps: Total number of training steps; -1 is until the data end.
        train_steps: Training steps between two evaluations.
        eval_steps: Steps of one evaluation.
        save_steps: Training steps between two saves.
        if_load: Whether a checkpoint will be restored before training.
        use_static: Whether batches have fixed shapes, so that send_count is needed.
        use_dynamic_expansion: Whether tables grow without a preset size.
        bind_cpu, use_lccl, use_hot: Accepted and without effect.
        is_incremental_checkpoint: Whether checkpoints are base and delta saves.
        save_checkpoint_due_time: Seconds between base saves.
        save_delta_checkpoints_secs: Seconds between delta saves.
        restore_model_version: Global step of the version to restore; None is the newest.
        recent_key_count_threshold: Keys with fewer recent occurrences are left out of a delta.
        stock_tables: Which variables become tables (stock.options.StockTables), None for none.
        graph_pass: Whether lookups are fused and joined before a graph's first run.
    """

    _single_instance = None  # type: Optional[Settings]

    # What holds where `init` is not told it.
    max_steps = train_steps = eval_steps = save_steps = -1
    if_load = use_static = False
    use_dynamic_expansion = use_lccl = is_incremental_checkpoint = False
    bind_cpu = use_hot = graph_pass = True
    save_checkpoint_due_time = None  # type: Optional[int]
    save_delta_checkpoints_secs = None  # type: Optional[int]
    restore_model_version = None  # type: Optional[int]
    recent_key_count_threshold = 0
    stock_tables = None  # type: Any

    def __init__(self, **told: Any) -> None:
        self.is_assumed = False
        self.modify_graph = False
        self.optimizer_config = OptimizerConfig()
        self.train_params_config = TrainParamsConfig()
        for name, value in told.items():
            super().__setattr__(name, _SETTABLE[name](name, value) if name in _SETTABLE else value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTABLE:
            value = _SETTABLE[name](name, value)
        elif hasattr(Settings, name):
            raise AttributeError("{!r} is what init was told, and cannot be set".format(name))
        super().__setattr__(name, value)

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
