"""The warm-up of a run and its steady state: simulated series, and a script that compiles."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_measure import PYTHON, SCRIPTS, measure, only_record

from mlbench.record.build_record import _totals
from mlbench.record.phases import PhaseTimes
from mlbench.script import intervals
from mlbench.script.steps import Step
from mlbench.script.warm_up import LEAST, WarmUp, prefix

SERIES = 200
Series = Callable[[], list[float]]


def steady(count: int, spread: float = 0.3, seconds: float = 1.0) -> list[float]:
    return [seconds * random.lognormvariate(0, spread) for _ in range(count)]


def with_pause(at: int, count: int) -> list[float]:
    return [10.0 if number == at else each for number, each in enumerate(steady(count))]


@pytest.mark.parametrize(
    ("series", "right", "share"),
    [
        (lambda: steady(200), (0,), 0.97),
        (lambda: steady(8), (0,), 0.9),
        (lambda: [50.0, *steady(50)], (1,), 0.95),
        (lambda: [50.0, 8.0, 3.0, *steady(50, 0.1)], (3,), 0.95),
        (lambda: [50.0, 30.0, *steady(2, 0.1), 20.0, 20.0, *steady(50, 0.1)], (6,), 0.95),
        (lambda: with_pause(4, 12), (0,), 0.9),
        (lambda: with_pause(60, 200), (0,), 0.97),
        (lambda: [each * (8 if n % 10 == 9 else 1) for n, each in enumerate(steady(100))], (0,), 0.97),
        (lambda: [*steady(100, seconds=3.0), *steady(100)], (None,), 0.97),  # another speed, not a warm-up
        (lambda: [50.0, *steady(LEAST - 1, 0.1)], (None,), 1.0),
        (lambda: steady(LEAST - 1), (None,), 1.0),
        (lambda: [], (None,), 1.0),
    ],
)
def test_slow_steps_at_the_begin_are_told_from_pauses(
    series: Series, right: tuple[int | None, ...], share: float
) -> None:
    random.seed(0)
    assert sum(prefix(series()) in right for _ in range(SERIES)) >= share * SERIES


def step(begin: float, seconds: float, *, compiled: float = 0.0, rows: int = 4) -> Step:
    parts = dict.fromkeys(("gap", "validation", "data_wait", "loss", "backward", "transfer"), 0.0)
    rest = {"optimizer": 0.0, "metrics": 0.0, "overlapped": 0.0, "forward": seconds}
    whole = {"rows": rows, "tokens": 0}
    return Step(
        begin, begin + seconds, **parts, **rest, **whole, meetings=(), compiled=compiled, observed=False
    )


def test_rate_phases_and_percentiles_are_those_of_the_steady_state_and_the_clock_keeps_all() -> None:
    durations = [30.0, 5.0, *[1.0] * 20, 8.0, *[1.0] * 20]
    steps, at = list[Step](), 0.0
    for seconds in durations:
        steps.append(step(at, seconds, compiled=6.0 if seconds == 8.0 else 0.0))
        at += seconds
    warm_up, per_rank, since = WarmUp(), list[PhaseTimes](), 0.0
    for part in (steps[:10], steps[10:]):
        times, (since,) = intervals.phase_times(
            [part], since=[since], until=None, count=len(part), start=0.0, clock_error_s=0.0, warm_up=warm_up
        )
        per_rank += [PhaseTimes.from_plain(json.loads(json.dumps(each.plain()))) for each in times]
    totals = _totals([per_rank], elapsed=at)
    assert (totals["warm_up"].steps, totals["warm_up"].seconds) == (3, 43.0)
    assert (totals["samples"], totals["samples_per_s"], totals["unsteady"]) == (4 * 43, 4.0, False)
    assert totals["phases"]["forward"].mean == 40.0 and totals["outside"]["warm_up"].mean == 43.0
    assert totals["step_s"]["p99"] == pytest.approx(1.0, rel=0.01)
    assert totals["warm_up"].compilation_s == 6.0


@pytest.mark.parametrize(("count", "unsteady"), [(4, True), (30, False)])
def test_an_observed_step_is_in_no_rate_also_of_a_run_that_is_too_short(count: int, unsteady: bool) -> None:
    steps = [step(float(at), 1.0) for at in range(count)]
    steps.append(step(float(count), 3.0)._replace(observed=True, tokens=64))
    times, _ = intervals.phase_times(
        [steps], since=[0.0], until=None, count=count + 1, start=0.0, clock_error_s=0.0, warm_up=WarmUp()
    )
    totals = _totals([times], elapsed=count + 3.0)
    assert (totals["warm_up"].steps, totals["warm_up"].observation_s) == (1, 3.0)
    assert (totals["samples_per_s"], totals["tokens_per_s"], totals["unsteady"]) == (4.0, None, unsteady)
    assert totals["phases"]["forward"].mean == count and totals["step_s"]["p99"] < 1.1


def test_a_run_that_compiles_until_its_end_is_not_steady_and_keeps_all_steps() -> None:
    steps = [step(10.0 * number, 10.0, compiled=9.0) for number in range(8)]
    (times,), _ = intervals.phase_times(
        [steps], since=[0.0], until=None, count=8, start=0.0, clock_error_s=0.0
    )
    assert times.unsteady and times.warm_up is None
    totals = _totals([[times]], elapsed=80.0)
    assert (totals["samples_per_s"], totals["unsteady"], totals["warm_up"]) == (0.4, True, None)


@pytest.mark.slow
def test_a_compiled_script_s_rate_is_that_after_compilation_and_recompilation(tmp_path: Path) -> None:
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "compiled.py", 40, 20])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    own = [float(seconds) for seconds in re.findall(r"step \d+ (\S+)", done.stdout)]
    assert record.warm_up is not None and record.contradictions == []
    assert record.warm_up.steps >= 2 and record.warm_up.compilation_s > 0.5 * record.warm_up.seconds
    assert record.warm_up.seconds >= 0.7 * (own[0] + own[20])
    steady = record.samples - record.warm_up.samples, sum(own) - record.warm_up.seconds
    assert record.samples_per_s == pytest.approx(steady[0] / steady[1], rel=0.15)
    assert record.validations[-1].elapsed == pytest.approx(sum(own), rel=0.1)
    assert "(compilation)" in done.stderr
