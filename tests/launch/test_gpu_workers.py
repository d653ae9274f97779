"""Workers of a node with two GPUs, which Ray believes to be there: each takes its own and sees the other.

NCCL reaches a GPU of its node only where its process sees it, and Ray by itself shows a worker no other.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
SCRIPT = """
import os, sys
from pathlib import Path
from unittest import mock

from mlbench.clusters import node, ray_env, reaper
from mlbench import clock
from mlbench.record import temporary_folder
from mlbench.config.compose import compose

folder = Path(sys.argv[1])
os.environ.update(reaper.environment())  # marks the processes of its Ray
ray_env.require_token()
ray_env.disable_background_work()
ray_env.stay_on_loopback()
ray_env.configure_train(timeout_s=60)
import ray
from ray.train import RunConfig, ScalingConfig

from mlbench.launch.ray_hooks import ProcessGroupConfig
from mlbench.launch.ray_train_private import LeanTrainer
from mlbench.launch.worker_process import WorkerSpec


def loop(spec):
    import torch
    from mlbench.launch import worker_process

    cuda = {"is_available": lambda: True, "set_device": mock.DEFAULT}
    with mock.patch.multiple(torch.cuda, **cuda) as patched:
        worker = worker_process.build_worker(spec)
    patched["set_device"].assert_called_once_with(worker.device)
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    (folder / str(worker.rank)).write_text(f"{worker.local_rank} {worker.device} {visible}")


ray.init("local", num_cpus=2, num_gpus=2, include_dashboard=False,
         _temp_dir=str(temporary_folder.create()[0]), object_store_memory=node.OBJECT_STORE_BYTES)
spec = WorkerSpec(compose(["backend=nccl", "workers=2"]), 1, 1, ("127.0.0.1", 9), "", "", None, clock.epoch())
LeanTrainer(
    loop,
    train_loop_config=spec,
    backend_config=ProcessGroupConfig("gloo", timeout_s=600),
    scaling_config=ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 1, "GPU": 1}),
    run_config=RunConfig(name="gpus", storage_path=str(folder / "ray")),
).fit()
ray.shutdown()
reaper.end(reaper.owner(), but=os.getpid())  # a controller was seen to outlive its Ray
"""


def test_each_worker_takes_its_own_gpu_and_sees_all_of_its_node(tmp_path: Path) -> None:
    """Only Ray gives its workers their GPUs, and hides those of others from them."""
    hidden = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT, env={**hidden, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    workers = [(tmp_path / rank).read_text().split() for rank in ("0", "1")]
    assert [(local, device) for local, device, _ in workers] == [("0", "cuda:0"), ("1", "cuda:1")]
    assert [sorted(visible.split(",")) for _, _, visible in workers] == [["0", "1"]] * 2
