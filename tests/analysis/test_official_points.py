"""Official belongs to a point: five drawn seeds of one plan, every attempt counted and told."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import studies
from records import record, save
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis.points import Point, points
from mlbench.record import events, study
from mlbench.record.attempts import History
from mlbench.record.record import Record
from mlbench.record.study import Invocation
from mlbench.report import answers, grouping

SEEDS = (1, 2, 3, 4, 5)
DRAWN = History(planned=frozenset(SEEDS), drawn=frozenset(SEEDS), logged=frozenset(SEEDS))


def runs(**changes: Any) -> list[Record]:
    """Return five eligible runs of one point, 10 to 14 s."""
    return [
        studies.run(2, seed, time=9.0 + seed).model_copy(
            update={"eligible": True, "official_reasons": [], "key": "k"} | changes
        )
        for seed in SEEDS
    ]


def stopped(seed: int, *, after: float) -> Record:
    """Return a run that was interrupted after so many seconds of training."""
    whole = studies.run(2, seed, time=20.0, status="interrupted")
    validation = whole.validations[0].model_copy(update={"elapsed": after, "goal_reached": False})
    return whole.model_copy(
        update={"validations": [validation], "key": "k", "official_reasons": ["the run was interrupted"]}
    )


def point(records: list[Record], history: History = DRAWN) -> Point:
    (result,) = points(records, histories={"k": history})
    return result


def certainty(records: list[Record], history: History = DRAWN) -> str:
    (group,) = grouping.groups(records, histories={"k": history})
    return answers.answer(group)[2]


def test_five_drawn_seeds_of_one_plan_are_official(snapshot: SnapshotAssertion) -> None:
    assert point(runs()).unofficial == ()
    assert certainty(runs()) == snapshot


def test_what_two_folders_know_of_a_point_adds_up() -> None:
    """The seeds of one, and an attempt that was deleted from the other, which a notebook reads together."""
    both = DRAWN | History(planned=frozenset({6}), deleted=frozenset({"run"}))
    assert (both.planned, both.drawn, both.deleted) == ({*SEEDS, 6}, {*SEEDS}, {"run"})


@pytest.mark.parametrize(
    ("records", "history"),
    [
        (runs(), History()),
        (runs()[:1], DRAWN),
        (runs()[:4], History(frozenset(SEEDS[:4]), frozenset(SEEDS[:4]))),
        (runs(), History(frozenset(SEEDS), frozenset(SEEDS[1:]))),
        (runs(), DRAWN._replace(deleted=frozenset({"r"}))),
        (runs(), DRAWN._replace(unfinished=frozenset({"r"}))),
        (runs(), DRAWN._replace(logged=frozenset(SEEDS[2:]))),
        ([*runs(), stopped(5, after=1.0)], DRAWN),
        ([*runs(), stopped(5, after=1.0).model_copy(update={"status": "preempted"})], DRAWN),
        ([*runs()[1:], runs(experiment=studies.run(4, 1, time=9.0).experiment)[0]], DRAWN),
        ([*runs(), studies.run(2, 9, time=9.0).model_copy(update={"key": "k"})], DRAWN),
        (runs(official_reasons=["scale=mini"], eligible=False), DRAWN),
        (runs(status="goal_not_reached", time_to_accuracy=None), DRAWN),
    ],
)
def test_every_reason_why_a_point_is_not_official(
    records: list[Record], history: History, snapshot: SnapshotAssertion
) -> None:
    assert point(records, history).unofficial == snapshot
    assert "official: k" not in certainty(records, history)


def test_deleted_interrupted_and_repeated_attempts_are_in_the_third_sentence(
    snapshot: SnapshotAssertion,
) -> None:
    again = studies.run(2, 1, time=30.0).model_copy(update={"key": "k", "run_id": "again"})
    sentence = certainty(
        [*runs(), again, stopped(9, after=1.0)], DRAWN._replace(deleted=frozenset({"gone", "too"}))
    )
    assert sentence == snapshot


def test_an_interrupted_run_that_trained_longer_than_the_median_counts_as_missed(
    snapshot: SnapshotAssertion,
) -> None:
    assert point([*runs(), stopped(9, after=11.9)]).n == 5
    result = point([*runs(), stopped(9, after=12.0)])
    assert result.n == 6 and result.median_s == pytest.approx(12.5) and math.inf in result.times
    # The longest makes the median larger, so that the next, above the old one, tells nothing.
    both = point([*runs(), stopped(8, after=12.2), stopped(9, after=13.0)])
    assert both.n == 6
    assert certainty([*runs(), stopped(9, after=12.0)]) == snapshot


def test_the_five_lucky_of_ten_seeds_are_not_the_median_of_all() -> None:
    """Ten seeds of 10 to 19 s, those above 14.5 s stopped there: the five others' median is 12 s."""
    slow = [stopped(seed, after=14.5) for seed in range(6, 11)]
    assert point([*runs(), *slow]).median_s == math.inf


def test_runs_whose_log_contradicts_itself_count_nowhere_and_are_told(snapshot: SnapshotAssertion) -> None:
    bad = runs()[0].model_copy(update={"contradictions": ["x"], "caveats": ["the log contradicts itself: x"]})
    result = point([bad, *runs()[1:]])
    assert result.n == 4 and result.caveats == () and result.unofficial == snapshot
    assert "Of 5 attempts: 1 contradictory" in certainty([bad, *runs()[1:]])


def test_a_plan_knows_which_seeds_it_drew_and_which_runs_are_gone(tmp_path: Path) -> None:
    invocation = Invocation(at="2026-11-23", overrides=("task=logreg",), repeats=5)
    plan = study.extended(study.new("s", question="?"), {"k": ["task=logreg"]}, invocation=invocation)
    plan = study.extended(plan, {"k": ["task=logreg"]}, invocation=invocation, seeds=[7])
    folder = study.folder(tmp_path, "s")
    study.save(plan, folder)
    (tmp_path / "here").mkdir()
    save(record(run_id="here", key="k"), tmp_path / "here")
    for run in ("here", "gone", None):
        trial = {"trial": "k-7", "run_id": run, "status": "goal_reached", "error": None}
        events.append(folder / study.LOG, study.ENDED, trial)
    history = study.histories(tmp_path)["k"]
    assert len(history.drawn) == 5 and history.planned - history.drawn == {7}
    assert history.deleted == {"gone"} and history.unfinished == frozenset() and history.logged == {7}
    (tmp_path / "gone").mkdir()
    events.append(tmp_path / "gone" / events.NAME, "run_configuration", {})
    history = study.histories(tmp_path)["k"]
    assert history.unfinished == {"gone"} and history.deleted == frozenset(), "it was killed"
    events.append(tmp_path / "gone" / events.NAME, "run_stop", {"status": "interrupted"})
    assert study.histories(tmp_path)["k"].deleted == {"gone"}
    (folder / study.LOG).unlink()
    assert study.histories(tmp_path)["k"].logged == frozenset()
    assert study.load(folder) == plan and json.loads(plan.model_dump_json())["points"][0]["drawn"]
    (folder / study.PLAN).write_text("{")
    assert study.histories(tmp_path) == {}
