"""Seeds where they decide something: which points `repeats=auto` measures again, and when it ends."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import record, save

from mlbench.analysis import bootstrap, compare
from mlbench.record import study
from mlbench.studies import sequential, session
from mlbench.studies.spec import compose_points, read

WORDS = ["task=logreg", "workers=1,2,4", "repeats=auto"]
PRICES = [1.0, 2.0, 4.0]


def times(*middles: float, n: int, spread: float = 0.02) -> list[list[float]]:
    rng = np.random.default_rng(3)
    return [list(middle * np.exp(rng.normal(0, spread, n))) for middle in middles]


@pytest.mark.parametrize(
    ("middles", "left"),
    [
        ((10, 10, 10), {0, 1, 2}),
        ((100, 10, 1), set()),  # the last is the fastest and the cheapest
        ((10, 10, 1), set()),
        ((10, 9.99, 20), {0, 1}),  # the last is slower and dearer: it is not measured again
        ((100, 50, 10), set()),
        ((10, 5, 60), {0, 1}),  # one is the fastest, and nobody knows which of the two is the cheapest
    ],
)
def test_what_may_still_be_the_best_is_measured_again(middles: tuple[float, ...], left: set[int]) -> None:
    assert sequential.survivors(times(*middles, n=8), PRICES) == left


def test_a_look_asks_for_more_than_a_page_does() -> None:
    samples = times(10.0, 10.7, n=5)
    assert compare.slower_of_all(samples) == {(1, 0)}
    assert sequential.survivors(samples, [1.0, 1.0]) == {0, 1}
    assert sequential.survivors(samples, [1.0, 1.0], level=bootstrap.LEVEL) == set()


def test_equal_points_are_called_different_in_at_most_5_percent_of_studies() -> None:
    """Beside benchmarks/verdicts.py, which has the numbers: 150 studies know a share of 5 % to 1.8 points."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(150):
        drawn, n = np.exp(rng.normal(0, 0.1, (2, sequential.MOST))), sequential.FIRST
        while n < sequential.MOST and sequential.survivors(drawn[:, :n].tolist(), [1.0, 1.0]):
            n += 1
        wrong += bool(compare.slower_of_all(drawn[:, :n].tolist()))
    assert wrong / 150 < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)


def measured(root: Path, seconds: dict[int, float], **changes: Any) -> session.StudyResult:
    """Return a study of `repeats=auto` of which every planned seed has a run of about so many seconds."""
    spec = read([*WORDS, f"output_root={root}"])
    result = session.load_results(spec)
    result.study, _, _ = session.extended_plan(spec, result.study, compose_points(spec))
    run(result, seconds, **changes)
    return result


def run(result: session.StudyResult, seconds: dict[int, float], **changes: Any) -> None:
    """Write the records of all seeds that have none."""
    there = {record.seed for record in study.records(result.study, result.output_root)}
    for trial in study.trials(result.study):
        if trial.seed in there:
            continue
        workers = int(next(w for w in trial.point.overrides if w.startswith("workers=")).partition("=")[2])
        name = f"2026-11-21T00-logreg-w{workers}-{trial.seed:x}"
        (result.output_root / name).mkdir()
        above = trial.point.seeds.index(trial.seed) % 2 == 0  # seeds are drawn, so not by them
        took = seconds[workers] * (1.01 if above else 0.99)
        values = {"run_id": name, "key": trial.point.key, "seed": trial.seed, "time_to_accuracy": took}
        save(record("task=logreg", f"workers={workers}", **values | changes), result.output_root / name)


def more(result: session.StudyResult, **limits: float) -> list[int]:
    """Return the worker counts of the points that get another seed."""
    experiments, _ = compose_points(read([*WORDS, f"output_root={result.output_root}"]))
    planned = session._more_seeds(experiments, experiments, limits, result)
    return sorted(experiments[trial.point.key].workers for trial in planned)


def test_points_get_seeds_until_their_order_is_decided(tmp_path: Path) -> None:
    seconds = {1: 10.0, 2: 10.001, 4: 30.0}
    result = measured(tmp_path, seconds)
    assert {len(point.seeds) for point in result.study.points} == {sequential.FIRST}
    rounds = []
    while planned := more(result):
        rounds.append(planned)
        saved = study.load(result.folder)
        assert saved == result.study
        run(result, seconds)
    counts = {len(point.seeds) for point in result.study.points}
    assert max(counts) == sequential.MOST and rounds[-1] == [1, 2], "4 workers were given up before"
    assert 4 not in sum(rounds[5:], []), "so few seeds show a factor of three"


def test_a_seed_without_a_result_ends_its_point_s_seeds_alone(tmp_path: Path) -> None:
    result = measured(tmp_path, {1: 10.0, 2: 10.0, 4: 10.0})
    assert more(result) == [1, 2, 4]
    assert more(result) == [], "none of them has been run"


def test_a_point_of_runs_that_shared_cpus_or_missed_gets_no_seeds(tmp_path: Path) -> None:
    assert more(measured(tmp_path, {1: 10.0, 2: 10.0, 4: 10.0}, oversubscribed=True)) == []


def test_time_that_is_up_plans_nothing(tmp_path: Path) -> None:
    assert more(measured(tmp_path, {1: 10.0, 2: 10.0, 4: 10.0}), ends=1.0) == []


def test_tune_is_proposed_what_is_planned_and_then_what_the_results_ask_for(tmp_path: Path) -> None:
    """The searcher inside Tune's own limit of one trial at a time, without a Ray."""
    import cloudpickle
    from ray.tune.search import ConcurrencyLimiter, Searcher

    from mlbench.studies.tune import NextTrial, TrialContext

    first, second = (
        study.Trial(study.StudyPoint(key=key, overrides=(), seeds=(1,)), 0, 1) for key in ("a", "b")
    )
    places, environment = (tmp_path, tmp_path, tmp_path), {"TOKEN": "a secret"}
    context = TrialContext({first.id: first}, {}, (), *places, environment, "now", {})
    plans = [[second], []]
    limited = ConcurrencyLimiter(NextTrial(context, lambda: plans.pop(0)), 1)
    assert b"a secret" not in cloudpickle.dumps(limited), "Tune writes it to disk"
    assert limited.suggest("1") == {"trial": "a-1"}
    assert limited.suggest("2") is None and len(plans) == 2, "the first is still running"
    limited.on_trial_complete("1", {})
    assert limited.suggest("2") == {"trial": "b-1"} and list(context.trials) == ["a-1", "b-1"]
    limited.on_trial_complete("2", {})
    assert limited.suggest("3") == Searcher.FINISHED


@pytest.mark.parametrize("interrupted", [False, True])
def test_ctrl_c_is_no_limit_that_is_spent(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(result: session.StudyResult, *_: object, **__: object) -> None:
        result.interrupted = interrupted

    monkeypatch.setattr(session, "_run_missing", run)
    monkeypatch.setattr(session.sequential, "undecided", lambda _, **__: ["k"])
    monkeypatch.setattr(session.parent_runs, "kill", lambda *_, **__: None)
    notes = session.measure(read([*WORDS, f"output_root={tmp_path}", f"data_root={tmp_path}"])).notes
    assert len(notes) == (not interrupted) and all("has no result" in note for note in notes)
