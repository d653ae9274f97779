"""What stands out in a run of simulated ranks; of real ones: benchmarks/planted_causes.py."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mlbench.analysis import causes
from mlbench.probe.stamps import COMPARED
from mlbench.record.build_record import _totals
from mlbench.script import intervals
from mlbench.script.steps import Meeting, Step
from mlbench.terminal.result_card import LABEL, WIDTH

STEPS, RANKS = 60, 3
BASE = {"data_wait": 1.0, "forward": 10.0, "loss": 0.5, "backward": 20.0, "metrics": 1.0, "optimizer": 2.0}
Extra = dict[tuple[int, int], dict[str, float]]  # by rank and step: of parts, s


def run(extra: Extra, *, rows: tuple[int, ...] = (4, 4, 4), waited: tuple[float, ...] = (0.0,) * 3) -> Any:
    """Return the record of ranks that meet in each step once all have launched their gradients."""
    random.seed(0)
    ranks: list[list[Step]] = [[] for _ in range(RANKS)]
    begins = [0.0] * RANKS
    for number in range(STEPS):
        parts, launches, saved = [], [], []
        for rank in range(RANKS):
            more = extra.get((rank, number), {})
            saved.append(more.get("saved", 0.0))
            values = {name: seconds * random.uniform(0.98, 1.02) for name, seconds in BASE.items()}
            values |= {name: values.get(name, 0.0) + more.get(name, 0.0) for name in more if name != "saved"}
            validation = values.pop("validation", 0.0)
            parts.append(values | {"validation": validation})
            launches.append(begins[rank] + sum(values.values()) - values["optimizer"] + validation)
        met = max(launches) + extra.get((0, number), {}).get("transfer", 0.5)
        for rank, values in enumerate(parts):
            transfer = met - launches[rank]
            end = met + values["optimizer"]
            values["transfer"] = transfer
            ranks[rank].append(
                Step(
                    begin=begins[rank],
                    end=end,
                    gap=values["data_wait"] + values["metrics"] + values["validation"],
                    overlapped=0.0,
                    meetings=(Meeting(launches[rank], launches[rank], met, COMPARED),),
                    rows=rows[rank],
                    saved=saved[rank],
                    **values,
                )
            )
            begins[rank] = end
    times, ends = intervals.phase_times(
        ranks, since=[0.0] * RANKS, until=None, count=STEPS, start=0.0, clock_error_s=0.0
    )
    for each, seconds in zip(times, waited, strict=True):
        each.cpu_wait_s = seconds
    totals = _totals([[each] for each in times], elapsed=ends[0])
    validations = [SimpleNamespace(elapsed=ends[0])]
    return SimpleNamespace(validations=validations, timed_steps=STEPS, disturbances=[], **totals)


def every(ranks: range | tuple[int, ...], steps: range = range(STEPS), **parts: float) -> Extra:
    return {(rank, step): dict(parts) for rank in ranks for step in steps}


TURNS: Extra = {(step % RANKS, step): {"forward": 20.0} for step in range(STEPS)}


@pytest.mark.parametrize(
    ("extra", "kind", "ranks", "pattern", "number"),
    [
        (every((1,), data_wait=30.0), "data_wait", (1,), "always", "wait for data is 30"),
        (every((0,), forward=15.0), "forward", (0,), "always", "forward is 15"),
        (every((2,), backward=15.0), "backward", (2,), "always", "backward is 15"),
        (every((2,), optimizer=15.0), "optimizer", (2,), "always", "optimizer is 15"),
        (every((2,), range(7, 60, 10), optimizer=200.0), "optimizer", (2,), "bursts", "in 6 of 60"),
        (every((0,), metrics=15.0), "metrics", (0,), "always", "other work is 15"),
        (every((1,), range(7, 60, 10), forward=200.0), "forward", (1,), "bursts", "in 6 of 60 steps"),
        (
            every((0,), range(7, 60, 10), metrics=200.0, saved=200.0),
            "saving",
            (0,),
            "bursts",
            "torch.save took",
        ),
        (every((0,), range(7, 60, 10), validation=300.0), "validation", (0,), "bursts", "validation is"),
        (TURNS, "forward", (0, 1, 2), "turns", "late in 100"),
        (every(range(3), data_wait=30.0), "data_wait", (), "", "waiting for data takes"),
        (every(range(3), transfer=40.0), "transfer", (), "", "averaging gradients takes"),
        (every(range(3), range(7, 60, 10), validation=300.0), "validation", (), "", "outside the steps"),
        (every(range(3), metrics=30.0, saved=30.0), "saving", (), "", "torch.save takes"),
    ],
)
def test_a_planted_cause_is_named_with_its_number(
    extra: Extra, kind: str, ranks: tuple[int, ...], pattern: str, number: str
) -> None:
    cause = causes.of_run(run(extra))
    assert cause is not None and (cause.kind, cause.ranks, cause.pattern) == (kind, ranks, pattern)
    assert number in cause.sentence and cause.next_step


def test_more_rows_and_waits_for_a_cpu_explain_a_slow_rank() -> None:
    slow = every((1,), forward=20.0)
    by_rows, by_cpu = causes.of_run(run(slow, rows=(4, 8, 4))), causes.of_run(run(slow, waited=(1, 900, 2)))
    assert by_rows is not None and by_rows.kind == "rows" and "2 times the rows" in by_rows.sentence
    assert by_cpu is not None and by_cpu.kind == "cpu" and "longer for a CPU" in by_cpu.sentence


@pytest.mark.parametrize("extra", [{}, every((1,), forward=1.0), every((1,), range(5, 7), forward=90.0)])
def test_a_healthy_run_has_no_cause(extra: Extra) -> None:
    assert causes.of_run(run(extra)) is None


def test_ranks_that_wait_for_cpus_in_turns_have_no_cause() -> None:
    assert causes.of_run(run(TURNS, waited=(400, 400, 400))) is None


def test_a_script_of_one_process_has_causes_but_no_late_rank() -> None:
    record = run(every(range(3), data_wait=30.0))
    record.ranks, record.lateness = record.ranks[:1], record.lateness[:1]
    cause = causes.of_run(record)
    assert cause is not None and (cause.kind, cause.ranks) == ("data_wait", ())


def test_what_to_try_is_one_line_of_the_card() -> None:
    for kind in causes.TRY:
        step = causes.Cause(kind, (), "", "").next_step
        assert step is not None and len(step) <= WIDTH - LABEL


def test_no_part_is_named_if_none_has_half_of_the_lateness() -> None:
    slower: dict[str, float] = dict.fromkeys(("data_wait", "forward", "backward"), 5.0)
    extra: Extra = {(1, number): slower for number in range(STEPS)}
    cause = causes.of_run(run(extra))
    assert cause is not None and (cause.kind, cause.ranks, cause.next_step) == ("late", (1,), None)
    assert "longer" not in cause.sentence
