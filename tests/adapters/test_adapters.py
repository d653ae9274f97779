"""The real trainers of others reach a goal, and leave a record like any run's; nothing is fetched."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import PATIENCE_S
from conftest import ROOT

from mlbench.record.reader import load

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
MODULES = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))


def require(library: str) -> None:
    """Skip where it is not installed; importing it would import torchvision here, too."""
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")


def train(name: str, *arguments: str, workers: int, at: Path) -> subprocess.CompletedProcess[str]:
    script = str(Path(__file__).parent / f"{name}_script.py")
    command = [sys.executable, *(TORCHRUN if workers > 1 else []), script, *arguments]
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": MODULES}
    return subprocess.run(
        command, cwd=at, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize(
    ("name", "library", "metric", "goal", "workers"),
    [
        ("huggingface", "transformers", "eval_own_loss", 0.5, 1),
        ("lightning", "lightning", "val_loss", 0.05, 2),
    ],
)
def test_a_trainer_ends_at_its_goal(
    name: str, library: str, metric: str, goal: float, workers: int, tmp_path: Path
) -> None:
    require(library)
    arguments = [str(tmp_path / "output")] if name == "huggingface" else []
    done = train(name, *arguments, workers=workers, at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(f"GOAL REACHED: {metric}") == 1
    (path,) = tmp_path.glob("runs/*/record.json")
    record = load(path)
    assert (record.status, record.workers, record.contradictions) == ("goal_reached", workers, [])
    values = [validation.metrics[metric] or 1.0 for validation in record.validations]
    assert values[-1] <= goal < min(values[:-1])
    assert record.steps == len(values) * 4 // workers  # 4 batches an epoch, shared out
    assert record.phases["forward"].mean > 0 and record.phases["data_wait"].mean > 0


def test_a_fit_of_lightning_that_fails_is_in_its_record(tmp_path: Path) -> None:
    require("lightning")
    done = train("lightning", "fail", workers=1, at=tmp_path)
    (path,) = tmp_path.glob("runs/*/record.json")
    record = load(path)
    found = (record.status, record.error, record.steps)
    assert found == ("failed", "ValueError: no more rows", 3), done.stdout + done.stderr
