"""npu_bridge has the vendor's paths, and works beside a script's own tf_adapter.py."""

import importlib
import os
import subprocess
import sys

import pytest
import tensorflow as tf

ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

PATHS = {
    "estimator.npu_ops": ["dropout", "initialize_system", "shutdown_system"],
    "estimator.npu.npu_config": ["NPURunConfig", "DumpConfig", "ProfilingConfig", "DynamicInputConfig"],
    "estimator.npu.npu_estimator": ["NPUEstimator", "NPUEstimatorSpec"],
    "estimator.npu.npu_optimizer": ["NPUDistributedOptimizer", "NPUOptimizer", "allreduce"],
    "estimator.npu.npu_hook": ["NPUBroadcastGlobalVariablesHook", "NPUCheckpointSaverHook", "NPUOutputTensorHook",
                               "SetIterationsVarHook"],
    "estimator.npu.npu_loss_scale_optimizer": ["NPULossScaleOptimizer"],
    "estimator.npu.npu_loss_scale_manager": ["FixedLossScaleManager", "ExponentialUpdateLossScaleManager"],
    "estimator.npu.npu_scope": ["without_npu_compile_scope"],
    "estimator.npu.npu_plugin": ["set_device_sat_mode", "npu_close"],
    "estimator.npu.util": ["set_iteration_per_loop", "IterationPerLoop"],
    "estimator.npu.keras_to_npu": ["model_to_npu_estimator"],
    "estimator.npu.npu_strategy": ["NPUStrategy"],
    "estimator.npu.npu_callbacks": ["npu_callbacks_append"],
    "estimator.npu.npu_rnn": ["npu_dynamic_rnn"],
    "estimator.npu.npu_dynamic_rnn": ["DynamicRNN", "DynamicGRUV2"],
    "estimator.npu_unary_ops": ["gelu", "gelu_grad"],
    "hccl.hccl_ops": ["allreduce", "allgather", "broadcast"],
}


def run(script, directory, path=(ROOM,)):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
    ran = subprocess.run([sys.executable, script], env=env, cwd=str(directory), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    return ran.returncode, ran.stdout.decode()


@pytest.mark.parametrize("path", sorted(PATHS))
def test_the_vendors_paths_hold_the_names_of_tf_adapter(path):
    module = importlib.import_module("npu_bridge." + path)
    for name in PATHS[path]:
        assert callable(getattr(module, name))
    parent, _, last = ("npu_bridge." + path).rpartition(".")
    assert getattr(importlib.import_module(parent), last) is module


def test_both_packages_share_their_modules():
    import tf_adapter
    from npu_bridge.estimator.npu import npu_config, util
    from npu_bridge.hccl import hccl_ops

    assert hccl_ops is tf_adapter.hccl_ops and util is tf_adapter.util
    assert npu_config.NPURunConfig is tf_adapter.NPURunConfig


@pytest.mark.parametrize("module", ["npu_bridge.npu_init", "tf_adapter"])
def test_a_star_import_gives_tensorflow_and_the_modules_of_the_vendor(module):
    names = {}
    exec("from {} import *".format(module), names)
    assert names["tf"] is tf
    for name in ("NPURunConfig", "NPUEstimator", "npu_hooks_append", "DumpConfig", "hccl_ops", "npu_ops", "npu_plugin",
                 "npu_scope", "npu_rnn", "npu_unary_ops", "SetIterationsVarHook", "util", "config_pb2", "RewriterConfig", "get_rank_id", "FixedLossScaleManager"):
        assert name in names, name
    if module == "npu_bridge.npu_init":
        from tensorflow.python.client import session

        assert names["session"] is session and names["os"] is os and callable(names["npu_close"])


def test_a_script_with_a_tf_adapter_of_its_own_gets_npu_bridge(tmp_path):
    (tmp_path / "tf_adapter.py").write_text(
        "from npu_bridge.npu_init import NPUEstimator, NPURunConfig, npu_hooks_append\nOWN = True\n")
    (tmp_path / "main.py").write_text(
        "import tf_adapter\nfrom tf_adapter import NPURunConfig, npu_hooks_append\n"
        "from npu_bridge.npu_init import *\nfrom npu_bridge.estimator.npu.npu_config import NPURunConfig as Again\n"
        "assert tf_adapter.OWN and NPURunConfig is Again\n"
        "print(type(npu_hooks_append([])[0]).__name__, hccl_ops.__name__)\n")
    code, text = run("main.py", tmp_path)
    assert code == 0, text
    assert text.split()[-2] == "NPUBroadcastGlobalVariablesHook"


def test_a_tf_adapter_file_of_the_script_is_no_vendors_package(tmp_path):
    (tmp_path / "tf_adapter.py").write_text("OWN = True\n")
    (tmp_path / "main.py").write_text("import npu_bridge.npu_init as all_names\nprint(all_names.NPURunConfig.__name__)\n")
    assert run("main.py", tmp_path) == (0, "NPURunConfig\n")


def test_the_vendors_npu_bridge_is_what_is_imported_or_ours_refuses(tmp_path):
    (tmp_path / "vendor" / "npu_bridge").mkdir(parents=True)
    (tmp_path / "vendor" / "npu_bridge" / "__init__.py").write_text("OWNER = 'vendor'\n")
    vendor = str(tmp_path / "vendor")
    (tmp_path / "main.py").write_text("import npu_bridge\nprint(npu_bridge.OWNER)\n")
    assert run("main.py", tmp_path, (vendor, ROOM)) == (0, "vendor\n")
    code, text = run("main.py", tmp_path, (ROOM, vendor))
    assert code == 1 and "ImportError: the vendor's TensorFlow adapter is present" in text
