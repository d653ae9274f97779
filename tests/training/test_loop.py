"""The loop with real gloo processes: same mathematics whatever the number of workers, honest phases."""

import copy
import itertools
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import mini_worker, run_ranks
from torch import nn

from mlbench.config.goal import Goal
from mlbench.record.build_record import intervals
from mlbench.record.phases import PhaseTimes
from mlbench.training import loop, sampling
from mlbench.training.loop import train
from mlbench.training.precision import STUCK, LossScaler
from mlbench.training.setup import TaskResult, TrainingSetup
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker


class Problem:
    """A small regression: 96 rows of 5 features, in exact batches."""

    def __init__(self, worker: Worker, *, batch: int, epochs: int = 2) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(96, 5, generator=generator, dtype=torch.float64)
        self.y = torch.randn(96, 1, generator=generator, dtype=torch.float64)
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.worker, self.batch, self.epochs = worker, batch, epochs
        self.loaded = time.perf_counter()
        self.elapsed: list[float] = []  # s since the loop loaded, at every validation

    def parts(self, **changes: Any) -> TrainingSetup:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        values: dict[str, Any] = dict(
            model=self.model,
            optimizer=optimizer,
            epochs=self.epochs,
            steps=self.steps,
            forward=lambda model, batch: model(batch[0]),
            loss=lambda output, batch: (output - batch[1]).square().mean(),
            validate=self.validate,
            load=self.load,
            samples=lambda batch: len(batch[1]),
        )
        return TrainingSetup(**(values | changes))

    def steps(self, _: Any, epoch: int) -> Any:
        rows = sampling.shuffled_rows(96, batch=self.batch, epoch=epoch, worker=self.worker)
        return sampling.BatchIterator(rows, lambda chosen: (self.x[chosen], self.y[chosen]))

    def load(self) -> None:
        self.loaded = time.perf_counter()

    def validate(self, model: nn.Module, _: Any) -> dict[str, float]:
        self.elapsed.append(time.perf_counter() - self.loaded)
        part = sampling.shard(96, self.worker)
        error = (model(self.x[part]) - self.y[part]).square().sum().item()
        total, count = self.worker.sum([error, len(part)]).tolist()
        return {"error": total / count, "rows": count}

    def weights(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()


def trained_weights(worker: Worker, batch: int) -> tuple[list[float], Any]:
    problem = Problem(mini_worker(worker, Path()), batch=batch)
    outcome = train(problem.parts(), worker)
    return problem.weights(), outcome.validations


@pytest.mark.slow
def test_two_workers_with_half_the_batch_train_the_same_weights() -> None:
    (single,) = run_ranks(trained_weights, 1, 16)
    two = run_ranks(trained_weights, 2, 8)
    assert single[0] == pytest.approx(two[0][0], abs=1e-9)
    assert two[0][0] == two[1][0]
    assert [v["metrics"] for v in single[1]] == [pytest.approx(v["metrics"]) for v in two[0][1]]


@pytest.mark.parametrize("count", [0, 1, 7, 96, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_shares_are_disjoint_complete_and_even(count: int, workers: int) -> None:
    shares = [sampling.shard(count, Worker(rank=r, world_size=workers)) for r in range(workers)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_epoch_is_disjoint_between_ranks_and_reshuffled() -> None:
    def rows(epoch: int, rank: int, workers: int = 3) -> torch.Tensor:
        worker = Worker(rank=rank, world_size=workers, seed=5)
        return sampling.shuffled_rows(100, batch=8, epoch=epoch, worker=worker)

    first = torch.cat([rows(0, rank).flatten() for rank in range(3)])
    assert len(first) == len(first.unique()) == 96
    assert not torch.equal(rows(0, 0), rows(1, 0))
    assert torch.equal(rows(0, 0), rows(0, 0))
    joined = sampling.shuffled_rows(100, batch=24, epoch=0, worker=Worker(seed=5))
    together = torch.cat([rows(0, rank) for rank in range(3)], dim=1)
    assert torch.equal(joined, together)


def test_the_goal_ends_the_run_at_the_validation_that_met_it() -> None:
    worker = Worker(goal=Goal("error", 1e9, "min"))
    outcome = train(Problem(worker, batch=8).parts(), worker)
    assert outcome.status == "goal_reached" and len(outcome.validations) == 1
    assert outcome.time_to_accuracy == outcome.validations[0]["elapsed"]


def test_a_missed_goal_and_no_goal_train_to_the_last_epoch() -> None:
    for goal, status in ((Goal("error", -1, "min"), "goal_not_reached"), (None, "completed")):
        worker = Worker(goal=goal)
        outcome = train(Problem(worker, batch=8, epochs=3).parts(), worker)
        assert outcome.status == status and outcome.steps == 36
        assert outcome.time_to_accuracy is None


@pytest.mark.parametrize("enabled", [True, False])
def test_heartbeats_come_about_once_a_second_with_phases_and_without(enabled: bool) -> None:
    ticks = itertools.count()
    beats: list[Any] = []
    timer = PhaseTimer(enabled=enabled, now=lambda: next(ticks) * 0.4)  # s
    worker = Worker(timer=timer, heartbeat=beats.append)
    train(Problem(worker, batch=8, epochs=1).parts(), worker)
    assert len([beat for beat in beats if beat.get("step")]) >= 3


def test_a_loss_that_is_not_finite_ends_as_diverged() -> None:
    worker = Worker(goal=Goal("error", 0, "min"))
    problem = Problem(worker, batch=8, epochs=50)
    outcome = train(
        problem.parts(loss=lambda output, batch: (output - batch[1]).square().mean() * math.inf), worker
    )
    assert outcome.status == "diverged"
    assert len(outcome.validations) == 1 and outcome.validations[0]["train_loss"] is None


@pytest.mark.parametrize("metrics", [{"error": 0.0, "other": math.nan}, {"error": -math.inf}])
def test_a_metric_that_is_not_finite_reaches_no_goal(metrics: dict[str, float]) -> None:
    worker = Worker(goal=Goal("error", 1, "min"))
    outcome = train(Problem(worker, batch=8).parts(validate=lambda *_: metrics), worker)
    assert (outcome.status, outcome.time_to_accuracy) == ("diverged", None)
    assert [each["goal_reached"] for each in outcome.validations] == [False]


# An overflow of half precision


def overflowing(updates: set[int], seen: list[float]) -> Any:
    """Return a loss that is infinite at these updates, and remembers what it was at the others."""
    made = 0

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        nonlocal made
        made += 1
        plain = (output - batch[1]).square().mean()
        if made - 1 in updates:
            return plain * math.inf
        seen.append(plain.item())
        return plain

    return loss


def scaled(updates: set[int], *, epochs: int) -> tuple[TaskResult, LossScaler, list[float]]:
    """Train with a loss scale, as a GPU does in fp16, 12 updates an epoch of which some overflow."""
    worker, seen = Worker(), []
    problem = Problem(worker, batch=8, epochs=epochs)
    problem.x, problem.y, problem.model = problem.x.float(), problem.y.float(), problem.model.float()
    scaler = LossScaler(worker.device, first=2.0**10, window=1000, largest=None)
    loss = overflowing(updates, seen)
    return train(problem.parts(loss=loss, scaler=scaler), worker), scaler, seen


def test_an_overflow_skips_its_update_is_counted_and_the_run_goes_on() -> None:
    """Update 13's forward pass overflowed once, and the run ended as diverged."""
    outcome, scaler, seen = scaled({3, 13, 14}, epochs=3)
    assert outcome.status == "completed" and outcome.steps == 36
    assert scaler.skipped_steps() == 3 and scaler.get_scale() == 2.0**7
    assert len(seen) == 33
    means = [sum(part) / len(part) for part in (seen[:11], seen[11:21], seen[21:])]
    assert [v["train_loss"] for v in outcome.validations] == pytest.approx(means, rel=1e-5)


def test_a_run_of_overflows_alone_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, scaler, _ = scaled(set(range(5, 10_000)), epochs=50)
    assert outcome.status == "diverged" and outcome.validations[-1]["train_loss"] is None
    assert outcome.steps == 12 * math.ceil((5 + STUCK) / 12), "at the first validation after"
    monkeypatch.setattr(loop, "CHECK_EVERY", 2)
    outcome, scaler, _ = scaled(set(range(5, 10_000)), epochs=50)
    assert outcome.status == "diverged" and outcome.steps == 5 + STUCK + 1
    assert scaler.skipped_steps() == outcome.steps - 5


def test_an_infinite_loss_whose_update_was_made_is_divergence_with_a_loss_scale_too() -> None:
    worker = Worker()
    problem = Problem(worker, batch=8, epochs=9)
    scaler = LossScaler(worker.device, first=2.0, window=1000, largest=None)

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        return (output - batch[1]).square().mean() + math.inf  # its gradient is finite

    outcome = train(problem.parts(loss=loss, scaler=scaler), worker)
    assert outcome.status == "diverged" and scaler.skipped_steps() == 0


# Loading


def test_loading_is_on_the_clock_once_a_start_and_before_anything_is_trained() -> None:
    did: list[str] = []

    def load() -> None:
        assert worker.timer.started_at > 0, "the clock runs"
        time.sleep(0.05)
        did.append("load")

    worker = Worker()
    problem = Problem(worker, batch=8)

    def steps(data: Any, epoch: int) -> Any:
        did.append(f"epoch {epoch}")
        return problem.steps(data, epoch)

    outcome = train(problem.parts(load=load, steps=steps), worker)
    assert did == ["load", "epoch 0", "epoch 1"]
    assert outcome.phase_times[0].outside["loading"] >= 0.05
    assert "loading" not in outcome.phase_times[1].outside
    assert outcome.validations[0]["elapsed"] >= 0.05
    assert sum(outcome.phase_times[0].phases.values()) < outcome.validations[0]["elapsed"] - 0.05


def test_a_restart_loads_again_and_goes_back_to_a_start_that_was_told_before_loading() -> None:
    """Workers that die while they load begin again on the clock that ran."""
    states: list[Any] = []

    def fail() -> None:
        raise ConnectionError("gone")

    worker = Worker(
        keep_checkpoints=True, report_validation=lambda message, state: states.append(copy.deepcopy(state))
    )
    with pytest.raises(ConnectionError):
        train(Problem(worker, batch=8).parts(load=fail), worker)
    (start,) = states
    assert start["epoch"] == 0 and start["started_at"] == worker.timer.started_at
    time.sleep(0.05)
    loaded: list[int] = []
    again = Worker(resume=start)
    outcome = train(Problem(again, batch=8).parts(load=lambda: loaded.append(1)), again)
    assert loaded == [1] and outcome.steps == 24
    assert outcome.validations[0]["elapsed"] >= 0.05, "what the first start lost stays on the clock"


def test_validations_inside_an_epoch_tell_the_share_of_steps_that_were_made() -> None:
    worker = Worker()
    outcome = train(Problem(worker, batch=8).parts(validate_at=(0.3, 0.6, 0.9, 1.0)), worker)
    epochs = [4 / 12, 8 / 12, 11 / 12, 1, 16 / 12, 20 / 12, 23 / 12, 2]
    assert [v["epoch"] for v in outcome.validations] == pytest.approx(epochs)
    assert [v["step"] for v in outcome.validations] == [4, 8, 11, 12, 16, 20, 23, 24]


def test_a_checkpoint_continues_to_the_same_weights() -> None:
    def run(epochs: int, resume: dict[str, Any] | None, states: list[dict[str, Any]]) -> Any:
        def keep(message: Any, state: dict[str, Any] | None) -> None:
            if state:
                states.append({**state, "states": {k: copied(v) for k, v in state["states"].items()}})

        worker = Worker(keep_checkpoints=True, report_validation=keep, resume=resume)
        problem = Problem(worker, batch=8, epochs=epochs)
        return train(problem.parts(), worker, report_s=0), problem.weights()

    def copied(state: Any) -> Any:
        return copy.deepcopy(state)

    states: list[dict[str, Any]] = []
    whole, weights = run(4, None, states)
    assert [state["epoch"] for state in states] == [0, 1, 2, 3, 4]
    resumed, again = run(4, states[2], [])
    assert again == pytest.approx(weights, abs=1e-12)
    assert resumed.steps == whole.steps
    assert [v["step"] for v in resumed.validations] == [v["step"] for v in whole.validations]
    assert resumed.elapsed >= whole.validations[1]["elapsed"]


def interrupted(worker: Worker) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Train three epochs, then the last again from rank 0's checkpoint; rank 1 counts its samples twice."""
    states: list[dict[str, Any]] = []

    def keep(_: dict[str, Any], state: dict[str, Any] | None) -> None:
        if state:
            states.append(copy.deepcopy(state))

    def trained(worker: Worker) -> list[dict[str, Any]]:
        problem = Problem(worker, batch=8, epochs=3)
        setup = problem.parts(samples=lambda batch: (1 + worker.rank) * len(batch[1]))
        outcome = train(setup, worker, report_s=0)
        return [times.plain() for times in outcome.phase_times]

    whole = trained(replace(worker, timer=PhaseTimer(), keep_checkpoints=True, report_validation=keep))
    objects = [states[2]]
    dist.broadcast_object_list(objects, src=0)  # only rank 0's is kept; the others would find nothing else
    saved = objects[0]
    resumed = trained(replace(worker, timer=PhaseTimer(), resume=saved))
    times = [[PhaseTimes.from_plain(plain) for plain in rank] for rank in worker.gather(resumed)]
    return whole, resumed, [interval.model_dump() for interval in intervals(times)]


def test_a_restart_gives_each_rank_its_own_segments_back() -> None:
    """Rank 0's checkpoint had rank 0's alone, and each rank went on from those."""
    (whole, resumed, spread), (other_whole, other_resumed, same) = run_ranks(interrupted, 2)
    assert len(resumed) == len(other_resumed) == 3
    assert resumed[:2] == whole[:2] and other_resumed[:2] == other_whole[:2] != whole[:2]
    assert [[s["samples"] for s in rank] for rank in (resumed, other_resumed)] == [[48] * 3, [96] * 3]
    assert spread == same and [segment["samples"] for segment in spread] == [144] * 3
    for segment, mine, others in zip(spread, resumed, other_resumed, strict=True):
        both = sorted((mine["phases"]["forward"], others["phases"]["forward"]))
        forward = segment["phases"]["forward"]
        assert [forward["min"], forward["max"]] == both and forward["mean"] == pytest.approx(sum(both) / 2)


def phases(worker: Worker) -> tuple[dict[str, float], float, float, float, float]:
    """Return the phases of 240 steps, the steps' seconds, those outside them, and the elapsed time.

    That is by another clock: from loading to the last validation, and for all of it.
    """
    worker.timer = PhaseTimer()
    problem = Problem(worker, batch=8, epochs=20)
    problem.model = nn.Sequential(
        nn.Linear(5, 512), nn.Tanh(), nn.Linear(512, 512), nn.Linear(512, 1)
    ).double()
    calm = torch.optim.SGD(problem.model.parameters(), lr=1e-4)  # wide layers diverge at more
    setup, begun = problem.parts(optimizer=calm), time.perf_counter()
    times = train(setup, worker).phase_times
    whole = time.perf_counter() - begun
    totals = {phase: sum(each.phases[phase] for each in times) for phase in times[0].phases}
    outside = sum(seconds for each in times for seconds in each.outside.values())
    return totals, sum(each.seconds for each in times), outside, problem.elapsed[-1], whole


@pytest.mark.parametrize("workers", [2])
def test_phases_fill_the_steps_and_steps_and_what_is_outside_fill_the_clock(workers: int) -> None:
    """An independent clock in the last validation saw no more than all, and one around it all no less."""
    for totals, steps, outside, elapsed, whole in run_ranks(phases, workers):
        assert sum(totals.values()) == pytest.approx(steps, rel=1e-9)
        assert elapsed <= steps + outside <= whole
        assert (totals["wait"] + totals["transfer"] > 0) == (workers > 1)
