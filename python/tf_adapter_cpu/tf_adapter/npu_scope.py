"""Scopes that say how the device should run the ops made inside: without effect here."""

import contextlib

from .config import NpuExecutePlacement


@contextlib.contextmanager
def without_npu_compile_scope():
    """No effect: every op runs on the host."""
    yield


@contextlib.contextmanager
def keep_dtype_scope():
    """No effect: ops always keep their dtype."""
    yield


@contextlib.contextmanager
def npu_variable_scope(placement=NpuExecutePlacement.ALL):
    """No effect: every variable is in host memory."""
    yield


@contextlib.contextmanager
def npu_stage_scope(stage):
    """No effect: there are no pipeline stages."""
    yield


@contextlib.contextmanager
def npu_mem_type_scope():
    """No effect: there is one memory."""
    yield


@contextlib.contextmanager
def npu_weight_prefetch_scope(buffer_pool_id=0, buffer_pool_size=536870912):
    """No effect: weights are where they are used."""
    yield


@contextlib.contextmanager
def op_specified_engine_scope(engine_name, kernel_lib_name):
    """No effect: there is one engine."""
    yield
