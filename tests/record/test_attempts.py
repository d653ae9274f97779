"""Which run counts for a seed."""

import pytest
from records import nothing_measured, record

from mlbench.analysis import compare
from mlbench.analysis.points import points
from mlbench.record import attempts
from mlbench.record.record import Record


def reached(run_id: str, seconds: float, *, seed: int = 7, key: str = "k") -> Record:
    return record(run_id=run_id, key=key, seed=seed, time_to_accuracy=seconds)


def ended(run_id: str, status: str, *, seed: int = 7) -> Record:
    return nothing_measured(run_id=run_id, key="k", seed=seed, status=status)


def test_a_seed_that_was_run_five_times_is_one_run() -> None:
    five = [reached(str(number), 10.0 + number) for number in (3, 1, 0, 4, 2)]
    assert [run.run_id for run in attempts.results(five)] == ["2"]
    (point,) = points([*five, reached("other", 99.0, seed=8)])
    assert point.n == 2 and sorted(point.times) == [12.0, 99.0]
    assert attempts.excluded_summary(five) == "5 attempts: 4 repeated"


@pytest.mark.parametrize(
    ("times", "counts"),
    [([10.0, 20.0], "1"), ([20.0, 10.0], "0"), ([10.0, None], "1"), ([None, 9.0, 8.0], "1")],
)
def test_the_middle_run_counts_and_of_two_the_slower(times: list[float | None], counts: str) -> None:
    runs = [
        ended(str(index), "goal_not_reached") if seconds is None else reached(str(index), seconds)
        for index, seconds in enumerate(times)
    ]
    assert [run.run_id for run in attempts.results(runs)] == [counts]


def test_a_failed_attempt_makes_the_seed_failed_and_an_interrupted_one_does_not() -> None:
    good, failed, stopped = reached("1", 5.0), ended("2", "failed"), ended("3", "interrupted")
    assert attempts.results([good, failed, stopped]) == [failed]
    assert attempts.results([stopped, good]) == [good]
    assert attempts.results([stopped]) == []
    assert attempts.excluded_summary([good, failed, stopped]) == "3 attempts: 1 failed, 1 interrupted"
    assert attempts.excluded_summary([good]) == ""


def test_comparison_and_speed_up_count_alike() -> None:
    a = [reached("1", 5.0), ended("2", "interrupted", seed=8), ended("3", "failed", seed=9)]
    b = [reached(f"{seed}b", 6.0, seed=seed, key="other") for seed in (7, 9)]
    (pair,) = compare.compare(a, b).pairs
    (point,) = points(a)
    assert [run.run_id for run in pair.a.records] == [run.run_id for run in point.records] == ["1", "3"]
