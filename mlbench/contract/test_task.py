"""The contract of a task: --task NAME, or every task that is found."""

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from mlbench.config.compose import choices, compose
from mlbench.config.experiment import TrainingConfig
from mlbench.contract import by_hand
from mlbench.contract.options import import_without, names
from mlbench.contract.ranks import RankPool, mini_worker, run_ranks
from mlbench.tasks import registry
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each task. One that needs `trained` for each task that trains to a goal."""
    tasks = names(metafunc.config, "task")
    if "trained" in metafunc.fixturenames:
        goals = [name for name in tasks if compose([f"task={name}"]).target is not None]
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", goals)
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", tasks)


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest) -> list[str]:
    """Return the tasks that train to a goal. Others measure."""
    tasks = [name for name in names(request.config, "task") if compose([f"task={name}"]).target is not None]
    if not tasks:
        pytest.skip("no task that trains")
    return tasks


def two_steps(parts: TrainingSetup, *, validate: bool = True) -> dict[str, Any]:
    """Two steps in evaluation mode (no dropout, no batch statistics), and one validation."""
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
    unused = [name for name, w in parts.model.named_parameters() if w.requires_grad and w.grad is None]
    with torch.no_grad():
        metrics = parts.validate(parts.model, data) if validate else {}
    parts.close()
    return {"losses": losses, "seen": seen, "metrics": metrics, "unused": unused}


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if hasattr(batch, "__dict__"):
        batch = list(vars(batch).values())
    parts = batch.values() if isinstance(batch, dict) else batch
    return [t for part in parts if not isinstance(part, (int, float, str)) for t in _tensors(part)]


def observe(
    worker: Worker, names: list[str], root: Path, half: bool, validate: bool = True
) -> dict[str, Any]:
    """Take two steps of every task. `half` halves the batch a worker."""
    seen = {}
    for name in names:
        overrides = [f"task={name}", "goal=none", "division=open"]
        task = compose(overrides).task
        if half and "batch_size" in type(task).model_fields and isinstance(task, TrainingConfig):
            task = compose([*overrides, f"task.batch_size={task.batch_size // 2}"]).task
        seen[name] = two_steps(registry.build(task, mini_worker(worker, root)), validate=validate)
    return seen


@pytest.fixture(scope="module")
def alone(data_root: Path, trained: list[str]) -> dict[str, Any]:
    return run_ranks(observe, 1, trained, data_root, False)[0]


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def pair(data_root: Path, trained: list[str], two: RankPool) -> list[dict[str, Any]]:
    return two.run(observe, trained, data_root, True)


# What the strategies have to come to with two workers, by their words (mlbench/contract/by_hand.py).
PLAIN: dict[tuple[str, ...], by_hand.Quantity] = {
    ("sync=ddp",): "gradients",
    ("sync=zero1",): "gradients",
    ("sync=fsdp",): "gradients",
    ("sync=all_reduce",): "gradients",
    ("sync=all_reduce", "sync.quantity=weights"): "weights",
    ("sync=compression", "sync.method=topk", "sync.density=1"): "gradients",  # nothing is left out
    ("sync=local_sgd",): "last weights",  # its first average would come later
    ("sync=local_sgd", "sync.every=1"): "weights",
    ("sync=decentralised",): "weights",  # of two workers a ring is the whole graph
}


Steps = dict[tuple[str, ...], by_hand.Result]


@pytest.fixture(scope="module")
def strategies(data_root: Path, two: RankPool) -> Callable[[str], list[Steps]]:
    """Return what gives both ranks' two steps of a task with every strategy."""
    commands = list(dict.fromkeys([*PLAIN, *((f"sync={name}",) for name in choices("sync"))]))

    @cache
    def steps(name: str) -> list[Steps]:
        registry.load(name).prepare(compose([f"task={name}"]).task, data_root)
        return two.run(by_hand.all_steps, name, commands, data_root)

    return steps


def test_prepare_makes_the_data_once(name: str, data_root: Path) -> None:
    def progress(step: str, done: int, total: int | None, unit: str) -> None:
        """Take what mlbench.data gives a person to see."""

    task = compose([f"task={name}"]).task
    folder = registry.load(name).prepare(task, data_root, progress=progress)
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    assert registry.load(name).prepare(task, data_root) == folder
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before


def spoil(path: Path) -> None:
    """Turn the values of an Arrow file to zeros. Its schema and number of rows stay."""
    with pa.memory_map(str(path)) as source:
        begin = source.read_buffer().address
        source.seek(0)
        columns = pa.ipc.open_file(source).read_all().itercolumns()
        chunks = [chunk for column in columns for chunk in column.chunks]
        buffers = [each for chunk in chunks for each in chunk.buffers() if each is not None and each.size]
        places = [(each.address - begin, each.size) for each in buffers]
    with path.open("r+b") as raw:
        for offset, size in places:
            raw.seek(offset)
            raw.write(bytes(size))


def first_result(
    worker: Worker, name: str, root: Path, file: str, early: bool
) -> tuple[list[torch.Tensor], dict[str, float]] | None:
    """Return what training sees first and what validation gives. None if they fail.

    `file` is spoilt just before the loop would let the task load it, or `early`, before the task is built.
    Moves to the device copy, as those to a GPU do.
    """
    move = torch.Tensor.to
    torch.Tensor.to = lambda self, *given, **named: move(self, *given, **named).clone()
    (path,) = root.glob(f"*/{file}")
    with suppress(Exception), torch.no_grad(), ExitStack() as stack:
        if early:
            spoil(path)
        setup = registry.build(compose([f"task={name}"]).task, mini_worker(worker, root))
        stack.callback(setup.close)
        if not early:
            spoil(path)
        data = setup.load()
        batch = [tensor.clone() for tensor in _tensors(next(iter(setup.steps(data, 0)))[0])]
        setup.model.eval()
        return batch, setup.validate(setup.model, data)
    return None


def read_too_early(worker: Worker, trained: list[str], prepared: Path, root: Path) -> list[str]:
    """Return the files whose content a task has taken in before the loop let it load."""

    def result(name: str, file: str, early: bool) -> Any:
        folder = root / f"{name}-{file}-{early}"
        task = compose([f"task={name}"]).task
        shutil.copytree(registry.load(name).prepare(task, prepared), folder / task.dataset)
        return first_result(worker, name, folder, file, early)

    def seen(batch: Any) -> Any:
        return batch and ([tensor.numpy().tobytes() for tensor in batch[0]], repr(batch[1]))

    files = []
    for name in trained:
        task = compose([f"task={name}"]).task
        for path in sorted(registry.load(name).prepare(task, prepared).glob("*.arrow")):
            # Whatever was read in between is right in the one and spoilt in the other.
            if seen(result(name, path.name, False)) != seen(result(name, path.name, True)):
                files.append(f"{name} {path.name}")
    return files


def test_no_content_of_the_data_is_read_before_the_clock_runs(
    data_root: Path, tmp_path: Path, trained: list[str]
) -> None:
    """Of no file of the data set: what is trained on, what is validated on, vocabularies."""
    assert run_ranks(read_too_early, 1, trained, data_root, tmp_path) == [[]]


def test_two_updates_give_a_finite_loss_and_validation_the_goals_metric(name: str, alone: dict) -> None:
    assert len(alone[name]["losses"]) == 2 and all(map(math.isfinite, alone[name]["losses"]))
    assert math.isfinite(alone[name]["metrics"][compose([f"task={name}"]).task.metric])


def test_every_weight_that_is_trained_gets_a_gradient(name: str, alone: dict) -> None:
    assert not alone[name]["unused"], "sync=ddp waits for their gradients: freeze them, requires_grad_(False)"


def test_one_and_two_workers_with_equal_global_batch_agree(name: str, alone: dict, pair: list) -> None:
    both = [sum(losses) / 2 for losses in zip(*(rank[name]["losses"] for rank in pair), strict=True)]
    assert both == pytest.approx(alone[name]["losses"], rel=1e-4)
    for rank in pair:
        assert rank[name]["metrics"] == pytest.approx(alone[name]["metrics"], rel=1e-6)


def test_two_workers_take_the_same_steps_as_plain_averages_with_every_strategy(
    name: str, trained: list[str], strategies: Callable[[str], list[Steps]]
) -> None:
    for rank in strategies(name):
        for command, quantity in PLAIN.items():
            assert not by_hand.different(rank[command], rank[quantity,]), command


def test_all_workers_validate_one_finite_model_with_every_strategy(
    name: str, trained: list[str], strategies: Callable[[str], list[Steps]]
) -> None:
    first, second = strategies(name)
    for command in (command for command in first if by_hand.ALONE not in command):
        for before, after in zip(first[command].tensors, second[command].tensors, strict=True):
            for key, value in before.items():
                assert torch.equal(value, after[key]) and value.isfinite().all(), (command, key)
        assert first[command].metrics == second[command].metrics
        assert all(map(math.isfinite, first[command].metrics.values()))


def test_one_worker_trains_the_same_with_every_strategy(
    name: str, trained: list[str], strategies: Callable[[str], list[Steps]]
) -> None:
    results = {command: steps for rank in strategies(name) for command, steps in rank.items()}
    alone = {command: steps for command, steps in results.items() if by_hand.ALONE in command}
    assert len(alone) >= len(choices("sync"))
    for command, steps in alone.items():
        assert not by_hand.different(steps, alone["sync=ddp", by_hand.ALONE]), command


def test_ranks_train_on_different_data(name: str, pair: list) -> None:
    first, second = (rank[name]["seen"][0] for rank in pair)
    assert first.shape != second.shape or not torch.equal(first, second)


def test_the_same_seed_gives_the_same_loss(data_root: Path, alone: dict, trained: list[str]) -> None:
    (again,) = run_ranks(observe, 1, trained, data_root, False, False)
    for name in trained:
        assert again[name]["losses"] == alone[name]["losses"]


def test_a_task_explains_itself(name: str) -> None:
    page = (Path(str(registry.load(name).__file__)).parent / "README.md").read_text().lower()
    assert "licence" in page and "goal" in page


def test_the_driver_needs_no_torch_for_a_task(name: str) -> None:
    import_without(registry.load(name), {"torch"})
