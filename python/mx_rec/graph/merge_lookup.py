"""`do_merge_lookup`, for scripts that compute gradients with bare tf.gradients."""

from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.validator.validator import Bool, checked


@checked(is_train=Bool())
def do_merge_lookup(is_train: bool = True) -> None:
    """Marks the lookups of one mode as merged.

    To be called, if at all, before gradients are made. It changes no result here: the optimizers
    for tables join the gradients of all lookups of a table, so that each key gets one update,
    whether or not it is called.

    Args:
        is_train: Training or evaluation lookups.

    Raises:
        ValueError: If is_train is not a bool.
        RuntimeError: If all tables with training lookups are looked up with is_grad=False.
        EnvironmentError: If `init` was not called.
    """
    config = Settings.get_instance()
    tables = [table for table in graph_state().tables.values()
              if table.multi_lookup_times[is_train]]
    if is_train and tables and not any(table.is_grad for table in tables):
        raise RuntimeError("No gradients provided for any variable: the lookups of all tables "
                           "({}) have is_grad=False.".format(
                               ", ".join(table.table_name for table in tables)))
    config.train_params_config.set_merged_multi_lookup(is_train, True)
