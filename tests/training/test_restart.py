"""What a restart gives back to ranks on hosts with clocks of their own, with real gloo processes."""

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankPool
from test_loop import Problem

from mlbench.config.compose import compose
from mlbench.config.goal import Goal
from mlbench.training.clock_offset import ClockOffset
from mlbench.training.loop import train
from mlbench.training.setup import TaskResult
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

AHEAD_S = {"gone": 5e5, "old": 1e6, "new": -3e5}  # s by which each host's monotonic clock is ahead
NEAR_S = 3600.0  # s, on any machine; a clock that is taken for another is off by days


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def clock_of(host: str) -> PhaseTimer:
    return PhaseTimer(now=lambda: AHEAD_S[host] + time.perf_counter(), clock_id=host)


def from_rank_0(state: Any) -> Any:
    """Return rank 0's state on every rank, which is the one that is kept."""
    states = [state]
    dist.broadcast_object_list(states, src=0)
    return states[0]


def run(
    worker: Worker, timer: PhaseTimer, *, epochs: int = 2, **changes: Any
) -> tuple[TaskResult, list[dict[str, Any]], list[list[int]]]:
    """Train; return the result, the states that were kept, and the steps of every message that was sent."""
    states: list[dict[str, Any]] = []
    sent: list[list[int]] = []

    def keep(message: Any, state: dict[str, Any] | None) -> None:
        sent.append([part["validation"]["step"] for part in message["parts"]])
        states.extend([copy.deepcopy(state)] if state else [])

    setup = {name: changes.pop(name) for name in ("load", "loss", "stateful") if name in changes}
    own = replace(worker, timer=timer, keep_checkpoints=True, report_validation=keep, **changes)
    result = train(Problem(own, batch=8, epochs=epochs).parts(**setup), own, report_s=0)
    return result, states, sent


def moved(worker: Worker) -> dict[str, Any]:
    """Rank 0 goes on on another host than it began on, rank 1 where it was."""
    begun: list[float] = []
    timers = [clock_of("gone" if worker.rank == 0 else "old"), clock_of("new" if worker.rank == 0 else "old")]
    goal = Goal("error", -1.0, "min")
    first, states, _ = run(worker, timers[0], load=lambda: begun.append(time.perf_counter()), goal=goal)
    saved = from_rank_0(states[1])
    second, again, sent = run(worker, timers[1], resume=saved, goal=goal)
    true_s = time.perf_counter() - begun[0]
    return {
        "first": first.validations,
        "second": second.validations,
        "bytes": [[times.bytes_sent for times in each.phase_times] for each in (first, second)],
        "true_s": true_s,
        "begun": begun[0],
        "started_at": timers[0].started_at,
        "clocks": again[-1]["clocks"],
        "sent": sent,
    }


@pytest.fixture(scope="module")
def ranks_that_moved(pool: RankPool) -> list[dict[str, Any]]:
    return pool.run(moved)


def test_the_clock_goes_on_on_another_host_from_one_that_was_there(
    ranks_that_moved: list[dict[str, Any]],
) -> None:
    for rank in ranks_that_moved:
        last = rank["second"][-1]
        assert last["elapsed"] == pytest.approx(rank["true_s"], abs=NEAR_S)
        assert last["wall"] == ranks_that_moved[0]["started_at"] + last["elapsed"], "as rank 0 began"
        assert rank["clocks"].keys() == {"new", "old"}, "the host that is gone tells nothing any more"
        for host, started in rank["clocks"].items():
            assert started - AHEAD_S[host] == pytest.approx(rank["begun"], abs=NEAR_S)


def test_what_was_measured_before_a_restart_stays_and_is_not_sent_again(
    ranks_that_moved: list[dict[str, Any]],
) -> None:
    for rank in ranks_that_moved:
        assert rank["second"][0] == ranks_that_moved[0]["first"][0]
        assert [each["step"] for each in rank["second"]] == [6, 12]
        # The log has the first epoch; the restart sends its begin, the second epoch and what is left.
        assert [steps for steps in rank["sent"] if steps] == [[12]]


def test_a_restart_s_first_validation_has_the_bytes_since_the_checkpoint(
    ranks_that_moved: list[dict[str, Any]],
) -> None:
    """Those before it are in the validations before it."""
    for rank in ranks_that_moved:
        (first, second), (before, since) = rank["bytes"]
        assert first == second == before == since > 0


def drawing(worker: Worker) -> tuple[list[float], list[float]]:
    """Return what this rank draws in its last epoch, and what it draws there after a restart."""
    drawn: list[float] = []

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        drawn.append(torch.rand(()).item())  # as dropout does
        return (output - batch[1]).square().mean()

    seed = {"load": lambda: torch.manual_seed(100 + worker.rank)}
    _, states, _ = run(worker, PhaseTimer(), loss=loss, epochs=3, **seed)
    saved = from_rank_0(states[2])
    whole, drawn[:] = list(drawn), []
    run(worker, PhaseTimer(), loss=loss, epochs=3, resume=saved)
    return whole[12:], drawn


def test_random_numbers_go_on_after_a_restart_on_each_rank_with_its_own(pool: RankPool) -> None:
    """Dropout repeated its masks of the first epochs."""
    (first, first_again), (second, second_again) = pool.run(drawing)
    assert len(first) == 6 and first == first_again
    assert second == second_again and set(first).isdisjoint(second)


def errors(worker: Worker) -> list[float]:
    """Return the clocks' errors of all validations of one report; the ranks are on two hosts."""
    own = replace(worker, timer=clock_of("gone" if worker.rank == 0 else "old"))
    result = train(Problem(own, batch=8).parts(), own, report_s=NEAR_S)
    return [times.clock_error_s for times in result.phase_times]


def test_every_validation_of_a_report_has_the_clocks_error(pool: RankPool) -> None:
    zero, other = pool.run(errors)
    assert zero == [0.0, 0.0] and 0 < other[0] == other[1] < NEAR_S


class Counter:
    """A part of a task that counts what it was loaded with."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_what_a_task_keeps_beside_its_model_comes_back() -> None:
    """A schedule that begins anew trains with the first epochs' rate."""
    before, after = Counter(), Counter()
    before.value = 7
    _, states, _ = run(Worker(), PhaseTimer(), stateful={"schedule": before})
    run(Worker(), PhaseTimer(), stateful={"schedule": after}, resume=states[1])
    assert after.value == 7


def without_and_with_a_validation_inside(worker: Worker) -> list[tuple[list[float], float]]:
    """Train with models of one's own; return the weights and the last validation's error."""
    results = []
    for validate_at in ((1.0,), (0.5, 1.0)):
        own = replace(worker, sync=compose(["sync=local_sgd", "sync.every=100", "division=open"]).sync)
        problem = Problem(own, batch=8)
        validations = train(problem.parts(validate_at=validate_at), own).validations
        results.append((problem.weights(), validations[-1]["metrics"]["error"]))
    return results


def test_a_validation_sees_the_mean_model_and_gives_every_worker_its_own_back(pool: RankPool) -> None:
    first, second = pool.run(without_and_with_a_validation_inside)
    for (weights, error), (again, error_again) in (first, second):
        assert weights == again and error == error_again
    (mine, error), (others, same) = first[0], second[0]
    assert mine != others and error == same
    problem = Problem(Worker(), batch=8)
    mean = (torch.tensor(mine) + torch.tensor(others)) / 2
    torch.nn.utils.vector_to_parameters(mean.double(), problem.model.parameters())
    with torch.no_grad():
        assert problem.validate(problem.model, None)["error"] == pytest.approx(error, rel=1e-5)


def offsets(worker: Worker) -> list[float]:
    """Return how far each estimate of the offset to rank 0's clock is from the truth; two ranks a host."""
    host = "gone" if worker.rank == 0 else "old"
    clock = ClockOffset(replace(worker, timer=clock_of(host)))
    clock.measure()
    return [estimate.offset - (AHEAD_S["gone"] - AHEAD_S[host]) for estimate in clock.estimates]


def test_every_rank_of_another_host_knows_its_offset_and_keeps_the_estimate_before() -> None:
    with RankPool(3) as pool:
        zero, *others = pool.run(offsets)
    assert zero == [0.0, 0.0]
    for rank in others:
        assert len(rank) == 2 and rank == pytest.approx([0.0, 0.0], abs=NEAR_S)
