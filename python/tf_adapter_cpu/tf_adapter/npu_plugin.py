"""Starting, stopping and setting up the device, of which there is none: all of it does nothing."""

from . import _checks


def set_device_sat_mode(mode):
    """Does nothing: CPUs overflow to infinity, which is mode 1.

    Args:
        mode: 0 (saturation), 1 (infinity and NaN) or 2.

    Raises:
        ValueError: If it is none of them.
    """
    _checks.one_of("mode", mode, (0, 1, 2))
    if mode != 1:
        _checks.log_ignored("set_device_sat_mode", ["mode {}".format(mode)])


def is_inf_nan_enabled():
    """Returns True: floats overflow to infinity."""
    return True


def npu_resource_init(graph_run_mode=1, op_debug_level=0, enable_profiling=False,
                      profiling_options=None, auto_tune_mode=None, precision_mode=None,
                      enable_scope_fusion_passes=None, enable_exception_dump=0, aoe_mode=None,
                      work_path=None, op_compiler_cache_mode=None, op_compiler_cache_dir=None,
                      debug_dir=None, hcom_multi_mode=False, distribute_config=None):
    """Does nothing: there is no device to start."""


def npu_resource_shutdown():
    """Does nothing: there is no device to stop."""


def npu_close():
    """Does nothing: there is no device to close."""
