"""`compile=graphs`: steps that are captured and replayed, on a stand-in that runs what a graph would."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from ranks import mini_worker, run_ranks
from stand_in_graphs import cuda_graphs

from mlbench import run
from mlbench.config.compose import compose
from mlbench.contract.by_hand import beginning
from mlbench.record.phases import UNDIVIDED
from mlbench.tasks import registry
from mlbench.training import graphs, loop
from mlbench.training.worker import Worker

STEPS = graphs.WARM_UP_STEPS + 4
TASKS = {
    "logreg": ["task=logreg"],
    "resnet20": ["task=resnet20", "task.batch_size=4"],
    "gpt": ["task=gpt", "task.layers=1", "task.context=16", "task.d_model=16", "task.batch_size=2"],
}


def trained(worker: Worker, root: Path, task: str, how: str | None) -> dict[str, Any]:
    """Return the loss of every step, the weights and metrics after them, and what was captured."""
    experiment = compose([*TASKS[task], "goal=none", "division=open"])
    worker.compile, worker.sync = how, experiment.sync
    with cuda_graphs() as made:
        setup = registry.build(experiment.task, mini_worker(worker, root))
        try:
            measured = loop.Run(setup, worker)
            worker.timer.start()
            data, losses = setup.load(), []
            measured.trainer.train()
            for micro_batches in beginning(setup.steps(data, 0), STEPS):
                worker.timer.end_phase("data_wait")
                measured.train_step(micro_batches)
                losses.append(measured.trainer.losses.total())
            times, _ = worker.timer.pop()
            model = setup.model  # type: ignore[attr-defined]
            weights = [weight.detach().flatten().tolist() for weight in model.parameters()]
            buffers = [buffer.flatten().tolist() for buffer in model.buffers()]
        finally:
            setup.close()
    return {
        "losses": losses,
        "weights": weights,
        "buffers": buffers,
        "phases": times.phases,
        "seconds": times.seconds,
        "replays": [graph.replays for graph in made],
        "warnings": setup.warnings,
    }


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.slow] if "resnet" in task else []) for task in TASKS]
)
def test_replayed_steps_are_the_eager_ones(task: str, data_root: Path) -> None:
    eager = trained(Worker(), data_root, task, None)
    captured = trained(Worker(), data_root, task, "graphs")
    for part in ("losses", "weights", "buffers"):
        assert captured[part] == eager[part], part
    pieces = 2 if task == "gpt" else 1  # the first micro-batch overwrites, later ones add
    assert len(captured["replays"]) >= pieces and eager["replays"] == []
    assert captured["replays"][0] == STEPS - graphs.WARM_UP_STEPS
    assert tuple(captured["phases"]) == UNDIVIDED
    assert sum(captured["phases"].values()) == pytest.approx(captured["seconds"])
    assert any("replayed CUDA graph" in sentence for sentence in captured["warnings"])


@pytest.mark.slow
def test_two_workers_replay_their_all_reduce(data_root: Path) -> None:
    eager, captured = (run_ranks(trained, 2, data_root, "gpt", how) for how in (None, "graphs"))
    for ours, theirs in zip(captured, eager, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-6)
        assert ours["weights"] == captured[0]["weights"] and len(ours["replays"]) > 0


def by_inductor(root: Path) -> dict[str, Any]:
    return trained(Worker(), root, "logreg", "inductor_graphs")


@pytest.mark.slow
def test_inductors_kernels_are_captured_too(data_root: Path) -> None:
    """In a process that is given all the time a compiler takes on a busy machine."""
    eager = trained(Worker(), data_root, "logreg", None)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        captured = pool.submit(by_inductor, data_root).result()
    assert captured["losses"] == pytest.approx(eager["losses"], rel=1e-5)
    assert captured["replays"] == [STEPS - graphs.WARM_UP_STEPS]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["task=resnet20"], "backend=gloo has none"),
        (["task=transformer", "backend=nccl"], "task=transformer has many"),
        (["task=resnet20", "backend=nccl", "workers=2", "sync=fsdp"], "not what sync=fsdp does"),
    ],
)
def test_what_no_graph_can_hold_is_refused_before_a_worker_starts(
    overrides: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*overrides, "compile=graphs", "--dry-run"]) == 2
    assert reason in capsys.readouterr().err
