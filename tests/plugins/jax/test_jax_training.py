"""Training with jax in real processes: the contract, the clock, a restart."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ranks import mini_worker, run_ranks

from mlbench.config.compose import compose
from mlbench.contract.by_hand import beginning
from mlbench.contract.test_framework import *  # noqa: F403
from mlbench.record.phases import UNDIVIDED
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.worker import Worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax"),
]
STEPS = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hold the contract by both tasks; how data are opened is the framework's, so one task shows it."""
    if "framework" in metafunc.fixturenames:
        both = "torchs" in metafunc.function.__name__
        pairs = [("jax", name) for name in (("gpt", "logreg") if both else ("logreg",))]
        metafunc.parametrize(("framework", "name"), pairs)


def short(worker: Worker, root: Path, *, epochs: int) -> Any:
    """Return a setup of few steps an epoch."""
    overrides = ["task=logreg", "framework=jax", "goal=none", "division=open", f"task.epochs={epochs}"]
    setup = registry.build(compose(overrides).task, mini_worker(worker, root), "jax")
    whole = setup.steps
    setup.steps = lambda data, epoch: beginning(whole(data, epoch), STEPS)
    return setup


def gpt_losses(worker: Worker, root: Path, overrides: list[str]) -> list[float]:
    """Return the losses of three steps of a small GPT-2."""
    small = ["task=gpt", "framework=jax", "goal=none", "division=open", "task.layers=1", "task.context=32"]
    setup = registry.build(compose([*small, *overrides]).task, mini_worker(worker, root), "jax")
    run = loop.Run(setup, worker)
    worker.timer.start()
    run.data = setup.load()
    losses = []
    for micro_batches in beginning(setup.steps(run.data, 0), 3):
        worker.timer.end_phase("data_wait")
        run.train_step(micro_batches)
        losses.append(run.trainer.losses.total())
        run.trainer.losses.reset()
    return losses


def test_micro_batches_and_checkpoints_change_no_step(data_root: Path) -> None:
    variants = ([], ["task.batch_size=2"], ["task.activation_checkpointing=true"])
    whole, pieces, again = (run_ranks(gpt_losses, 1, data_root, overrides)[0] for overrides in variants)
    assert pieces == pytest.approx(whole, rel=1e-5) and again == pytest.approx(whole, rel=1e-5)


def observed(worker: Worker, root: Path) -> dict[str, Any]:
    """Train and return what was compiled by when, what was measured, and what a restart goes on to."""
    import jax

    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    states: list[Any] = []
    worker.keep_checkpoints = True
    seen: list[int] = []  # how much was compiled at each report

    def reported(_: Any, state: Any) -> None:
        states.append(copy.deepcopy(state))
        seen.append(len(compiled))

    worker.report_validation = reported
    started, start = [], worker.timer.start
    worker.timer.start = lambda **given: (started.append(len(compiled)), start(**given))[1]
    whole = loop.train(short(worker, root, epochs=3), worker, report_s=0.0)
    after_one = next(state for state in states if state["epoch"] == 1)
    again = Worker(control=worker.control, resume=after_one, keep_checkpoints=True)
    resumed = loop.train(short(again, root, epochs=3), again, report_s=0.0)
    return {
        "compiled": [started[0], *seen],
        "phases": [times.plain() for times in whole.phase_times],
        "warnings": whole.warnings,
        "gradient_bytes": whole.gradient_bytes,
        "product": jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((2, 2), "float32")).as_text(),
        "whole": [(each["step"], each["train_loss"], each["metrics"]) for each in whole.validations],
        "resumed": [(each["step"], each["train_loss"], each["metrics"]) for each in resumed.validations],
    }


@pytest.fixture(scope="module")
def alone(data_root: Path) -> dict[str, Any]:
    (result,) = run_ranks(observed, 1, data_root)
    return result


def test_all_is_compiled_once_and_on_the_clock_as_in_torch(alone: dict[str, Any]) -> None:
    """Rule R16: the step and the logits of the validation, after the clock's start and its first report."""
    before, start, first, *later = alone["compiled"]
    assert before == start == 0 and first >= 2 and set(later) == {first}


def test_a_compiled_step_is_one_phase_and_says_so(alone: dict[str, Any]) -> None:
    for times in alone["phases"]:
        assert tuple(times["phases"]) == UNDIVIDED and times["phases"]["train_step"] > 0
        assert sum(times["phases"].values()) == pytest.approx(times["seconds"])
        assert times["overlapped_communication"] == 0 and times["lateness"] == []
    assert "one compiled program" in alone["warnings"][0]
    assert alone["gradient_bytes"] == 200 * 4


def test_float32_is_multiplied_in_float32_on_a_gpu_too(alone: dict[str, Any]) -> None:
    """jax's default is TF32 there."""
    assert "precision = [HIGHEST, HIGHEST]" in alone["product"]


def test_a_restart_goes_on_where_the_checkpoint_was(alone: dict[str, Any]) -> None:
    assert [step for step, _, _ in alone["whole"]] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert alone["resumed"] == alone["whole"]
