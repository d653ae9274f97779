"""The contract of a task: --task NAME, or every task that is found."""

import math
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from mlbench.contract.options import names
from mlbench.contract.ranks import mini_worker, run_ranks
from mlbench.experiment.config import TrainingConfig, compose
from mlbench.tasks import registry
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each task; one that needs `trained` for each task that trains to a goal."""
    tasks = names(metafunc.config, "task")
    if "trained" in metafunc.fixturenames:
        goals = [name for name in tasks if compose([f"task={name}"]).target is not None]
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", goals)
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", tasks)


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest) -> list[str]:
    """Return the tasks that train to a goal; others measure."""
    found = [name for name in names(request.config, "task") if compose([f"task={name}"]).target is not None]
    if not found:
        pytest.skip("no task that trains")
    return found


def two_steps(parts: TrainingSetup) -> dict[str, Any]:
    """Two steps in evaluation mode (no dropout, no batch statistics), one validation."""
    data = parts.load()
    parts.model.eval()
    losses, seen = [], []
    for step, micro_batches in zip(range(2), parts.steps(data, 0), strict=False):
        parts.before_step(step)
        total = 0.0
        for batch in micro_batches:
            seen += [tensor.clone() for tensor in _tensors(batch)]
            loss = parts.loss(parts.forward(parts.model, batch), batch)
            loss.backward()
            total += loss.item()
        losses.append(total)
    with torch.no_grad():
        metrics = parts.validate(parts.model, data)
    parts.close()
    return {"losses": losses, "seen": seen, "metrics": metrics}


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if hasattr(batch, "__dict__"):
        batch = list(vars(batch).values())
    parts = batch.values() if isinstance(batch, dict) else batch
    return [t for part in parts if not isinstance(part, (int, float, str)) for t in _tensors(part)]


def observe(worker: Worker, names: list[str], root: Path, half: bool) -> dict[str, Any]:
    """Take two steps of every task; `half` halves the batch a worker."""
    seen = {}
    for name in names:
        words = [f"task={name}", "goal=none", "division=open"]
        task = compose(words).task
        if half and "batch_size" in type(task).model_fields and isinstance(task, TrainingConfig):
            task = compose([*words, f"task.batch_size={task.batch_size // 2}"]).task
        seen[name] = two_steps(registry.build(task, mini_worker(worker, root)))
    return seen


@pytest.fixture(scope="module")
def alone(data_root: Path, trained: list[str]) -> dict[str, Any]:
    return run_ranks(observe, 1, trained, data_root, False)[0]


@pytest.fixture(scope="module")
def pair(data_root: Path, trained: list[str]) -> list[dict[str, Any]]:
    return run_ranks(observe, 2, trained, data_root, True)


def test_prepare_makes_the_data_once(name: str, data_root: Path) -> None:
    def progress(step: str, done: int, total: int | None, unit: str) -> None:
        """Take what mlbench.data gives a person to see."""

    task = compose([f"task={name}"]).task
    folder = registry.load(name).prepare(task, data_root, progress=progress)
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    assert registry.load(name).prepare(task, data_root) == folder
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before


def first_batches(
    worker: Worker, trained: list[str], root: Path, spoil: bool
) -> dict[str, list[torch.Tensor] | None]:
    """Return what every task trains on first, None where it fails.

    With `spoil` the prepared files turn to zeros just before the loop would let the task load them. Moves
    to the device copy, as those to a GPU do.
    """
    seen: dict[str, list[torch.Tensor] | None] = {}

    def first_batch(parts: TrainingSetup) -> list[torch.Tensor]:
        for file in root.glob(f"{name}/*/*.arrow") if spoil else ():
            with file.open("r+b") as raw:
                raw.write(bytes(file.stat().st_size))
        data = parts.load()
        return [tensor.clone() for tensor in _tensors(next(iter(parts.steps(data, 0)))[0])]

    move = torch.Tensor.to
    torch.Tensor.to = lambda self, *given, **named: move(self, *given, **named).clone()
    for name in trained:
        setup = registry.build(compose([f"task={name}"]).task, mini_worker(worker, root / name))
        seen[name] = None
        with suppress(Exception) if spoil else nullcontext():
            seen[name] = first_batch(setup)
        setup.close()
    return seen


def test_no_content_of_the_data_is_read_before_the_clock_runs(
    data_root: Path, tmp_path: Path, trained: list[str]
) -> None:
    """All of epsilon, CIFAR, WikiText and WMT were copied, and sorted, in what counted as start-up."""
    for name in trained:
        folder = registry.load(name).prepare(compose([f"task={name}"]).task, data_root)
        shutil.copytree(folder, tmp_path / name / folder.name)
    (right,) = run_ranks(first_batches, 1, trained, tmp_path, False)
    (spoilt,) = run_ranks(first_batches, 1, trained, tmp_path, True)
    assert right.keys() == spoilt.keys() == set(trained)
    for name in trained:
        found = spoilt[name]
        assert found is None or not any(map(torch.equal, right[name], found)), name


def test_two_updates_give_a_finite_loss_and_validation_the_goals_metric(name: str, alone: dict) -> None:
    assert len(alone[name]["losses"]) == 2 and all(map(math.isfinite, alone[name]["losses"]))
    assert math.isfinite(alone[name]["metrics"][compose([f"task={name}"]).task.metric])


def test_one_and_two_workers_with_equal_global_batch_agree(name: str, alone: dict, pair: list) -> None:
    both = [sum(losses) / 2 for losses in zip(*(rank[name]["losses"] for rank in pair), strict=True)]
    assert both == pytest.approx(alone[name]["losses"], rel=1e-4)
    for rank in pair:
        assert rank[name]["metrics"] == pytest.approx(alone[name]["metrics"], rel=1e-6)


def test_ranks_train_on_different_data(name: str, pair: list) -> None:
    first, second = (rank[name]["seen"][0] for rank in pair)
    assert first.shape != second.shape or not torch.equal(first, second)


def test_the_same_seed_gives_the_same_loss(data_root: Path, alone: dict, trained: list[str]) -> None:
    (again,) = run_ranks(observe, 1, trained, data_root, False)
    for name in trained:
        assert again[name]["losses"] == alone[name]["losses"]


def test_a_task_explains_itself(name: str) -> None:
    page = (Path(str(registry.load(name).__file__)).parent / "README.md").read_text().lower()
    assert "licence" in page and "goal" in page


def test_the_driver_needs_no_torch_for_a_task(name: str) -> None:
    module = registry.load(name).__name__
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
