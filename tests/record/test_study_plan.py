"""A study's plan: grids, seeds that stay, balanced random order, money, and who holds it."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zips
from driven import Run
from hypothesis import given
from hypothesis import strategies as st
from records import record
from scripted import experiment
from syrupy.assertion import SnapshotAssertion

from mlbench import clock, results
from mlbench import sweep as command
from mlbench.analysis.points import points
from mlbench.clusters import node
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.launch import execute
from mlbench.record import attempts, events, study
from mlbench.record.cost import Bill, Cost
from mlbench.record.record import JobSubmission, Node, Record
from mlbench.record.study import Invocation, Study, StudyPoint
from mlbench.studies import grid, session, spec
from mlbench.studies.budget import Budget
from mlbench.studies.session import ordered_trials
from mlbench.tracking import sync


def invocation(repeats: int) -> Invocation:
    return Invocation(at="2026-11-21T00:00:00+00:00", overrides=("task=logreg",), repeats=repeats)


def planned(*names: str, repeats: int = 3) -> Study:
    points = {name: (f"workers={index + 1}",) for index, name in enumerate(names)}
    return study.extended(study.new("s", question="?"), points, invocation=invocation(repeats))


def test_a_grid_multiplies_lists_and_ranges() -> None:
    result = grid.parse(["task=logreg,resnet20", "workers=range(1,4)", "goal=none", "output_root=/x"])
    assert len(result.points) == 6 and result.points[0] == ("task=logreg", "workers=1", "goal=none")
    assert result.swept == ["task", "workers"]
    assert result.output_settings == {"output_root": "output_root=/x"} and result.seeds is None
    assert grid.parse(["seed=1,2", "workers=2"]).seeds == (1, 2)


@pytest.mark.parametrize(
    "overrides",
    [
        ["workers"],
        ["workers=1", "workers=2"],
        ["output_root=a,b"],
        ["cluster=local,attached"],
        ["seed=x"],
        ["task=glob(*)"],
    ],
)
def test_wrong_grids_are_told_in_a_sentence(overrides: list[str], as_stored: Any) -> None:
    with pytest.raises(UserError, check=as_stored):
        grid.parse(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["workers=1", "repeats=0"],
        ["workers=1", "seed=1,2", "repeats=3"],
        ["workers=1", "max_usd=-1"],
        ["workers=1", "max_usd=much"],
        ["repeats=3"],
        ["study=there-is-none"],
    ],
)
def test_contradictions_and_unknown_studies_are_refused(overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        spec.read([*overrides, f"output_root={tmp_path}"])


@pytest.mark.slow
@pytest.mark.parametrize("name", compose.choices("study"))
def test_every_shipped_study_is_valid(name: str) -> None:
    wanted = spec.named(name, output_settings={})
    assert wanted.question.endswith("?")
    points = [point for selection, _ in wanted.grids for point in selection.points]
    assert points
    for point in points:
        compose.compose(point)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("question: Why?", "sweeps: field required"),
        ("sweeps: [task=logreg]", "question: field required"),
        ("question: Why?\nsweeps: []", "sweeps: tuple should have at least 1 item"),
        ("question: Why?\nsweeps: [task=logreg]\nmax_usd: much", "max_usd: input should be a valid number"),
        ("question: Why?\nsweeps: [task=logreg]\nrepeats: 3", "repeats: extra inputs are not permitted"),
        ("question: [", "line 1: invalid YAML"),
        ("- 1", "must be a mapping"),
    ],
)
def test_a_wrong_study_file_is_told_in_a_sentence(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        spec.load_file(path)
    assert f"{path}" in str(caught.value) and reason in str(caught.value)


def test_a_limit_in_a_line_of_a_study_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was read and not kept, so that a study went on beyond the money that its file names."""
    (tmp_path / "study").mkdir()
    line = "task=logreg workers=1 repeats=3 max_usd=5 max_time=1h"
    (tmp_path / "study" / "mine.yaml").write_text(f"question: Why?\nsweeps: [{line}]")
    arguments = ["study=mine", "--config-dir", str(tmp_path), f"output_root={tmp_path}", "--dry-run"]
    assert command.main(arguments) == 2
    assert "max_usd=5 max_time=1h" in capsys.readouterr().err


def test_an_extension_keeps_points_and_seeds_and_draws_new_ones() -> None:
    first = planned("a", "b", repeats=2)
    second = study.extended(first, {"b": (), "c": ("workers=4",)}, invocation=invocation(3))
    seeds = {point.key: point.seeds for point in second.points}
    assert list(seeds) == ["a", "b", "c"]
    assert seeds["a"] == first.points[0].seeds
    assert seeds["b"][:2] == first.points[1].seeds and len(seeds["b"]) == 3
    assert len(set(seeds["c"])) == 3
    assert second.points[1].overrides == first.points[1].overrides
    assert study.extended(second, {"a": ()}, invocation=invocation(1)) == second, (
        "fewer repeats take nothing away"
    )


def test_given_seeds_come_beside_those_that_were_drawn() -> None:
    plan = study.extended(planned("a", repeats=1), {"a": ()}, invocation=invocation(2), seeds=(5, 6))
    assert plan.points[0].seeds[1:] == (5, 6)
    assert study.extended(plan, {"a": ()}, invocation=invocation(2), seeds=(6, 5)) == plan


@given(count=st.integers(1, 8), repeats=st.integers(1, 5))
def test_every_block_has_every_point_once(count: int, repeats: int) -> None:
    plan = planned(*(f"k{index}" for index in range(count)), repeats=repeats)
    order = ordered_trials(plan)
    assert len({trial.id for trial in order}) == count * repeats
    for block in range(repeats):
        part = order[block * count : (block + 1) * count]
        assert {trial.repeat for trial in part} == {block}
        assert Counter(trial.point.key for trial in part) == dict.fromkeys((p.key for p in plan.points), 1)


def test_a_later_point_does_not_reorder_the_others() -> None:
    plan = planned("a", "b", "c")
    longer = study.extended(plan, {"d": ("workers=8",)}, invocation=invocation(3))
    assert [t for t in ordered_trials(longer) if t.point.key != "d"] == ordered_trials(plan)


def test_the_plan_survives_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    plan = planned("a", "b")
    study.save(plan, tmp_path / "s")
    assert study.load(tmp_path / "s") == plan
    assert study.load(tmp_path / "other") is None
    (tmp_path / "s" / study.PLAN).write_text("points: [")
    with pytest.raises(UserError, match="is damaged"):
        study.load(tmp_path / "s")


def test_a_plan_that_calls_overrides_words_is_read(tmp_path: Path) -> None:
    plan = planned("a", "b")
    study.save(plan, tmp_path / "s")
    path = tmp_path / "s" / study.PLAN
    path.write_text(path.read_text().replace("overrides:", "words:"))
    assert "words:" in path.read_text() and study.load(path.parent) == plan


def test_a_study_has_one_holder_and_a_kill_frees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = "import sys; from pathlib import Path; from mlbench.record import study\n"
    hold += "with study.locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        monkeypatch.setattr(study, "LOCK_S", 0)
        with pytest.raises(UserError, match="another process"), study.locked(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    with study.locked(tmp_path):
        pass


def test_attempts_without_a_record_stay_in_the_study(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    ended = {"trial": "k-7", "status": "failed", "seconds": 1.0}
    refused = ended | {"run_id": None, "error": "no room"}
    for value in (refused, ended | {"run_id": "1", "error": "x"}, ended | {"run_id": "2", "error": "x"}):
        events.append(tmp_path / study.LOG, study.ENDED, value)
    lost = study.lost_attempts(tmp_path, [record(run_id="2")])
    assert lost == snapshot


PRICED = ("hardware=gcp_n1_standard_4",)


def test_a_study_stops_before_its_money_is_exceeded() -> None:
    point = experiment(*PRICED, "workers=1")
    assert point.hardware.price is not None
    points = {"a": point, "b": experiment(*PRICED, "workers=2")}
    budget = Budget(points, max_usd=1.0)
    assert budget.spent is None and budget.refusal("a") is None, "nothing is known yet"
    hour = 3600 / point.hardware.price.usd_per_hour  # s that cost one USD on one node
    budget.add(record(*PRICED, "workers=1", key="a", wall=0.3 * hour))
    budget.add(record(*PRICED, "workers=1", key="a", wall=0.5 * hour, status="failed"))
    assert budget.spent == pytest.approx(0.8)
    assert budget.seconds("a") == pytest.approx(0.3 * hour), "failed runs tell no duration"
    assert "0.800 USD spent" in (budget.refusal("a") or "")
    assert budget.seconds("b") == pytest.approx(0.3 * hour), "a new point is as long as its task's longest"
    assert Budget(points, max_usd=1.5).refusal("a") is None
    several = Budget(points, [record(*PRICED, "workers=1", key="a", wall=s) for s in (1.0, 2.0, 9.0)])
    assert (several.seconds("a"), several.seconds("b")) == (2.0, 9.0), "its median, and its task's longest"


def test_a_study_stops_before_its_cluster_expires() -> None:
    points = {"a": experiment(), "b": experiment("task=gnmt")}
    runs = [record(key="a", wall=600.0)]

    def refusal(left: float, key: str = "a") -> str:
        return Budget(points, runs, expires=clock.wall() + left).refusal(key) or ""

    assert "expires in 9 min" in refusal(559) and "about 10 min 00 s" in refusal(559)
    assert refusal(660) == ""
    assert refusal(1, "b") == "" and "gone for 1.0 s" in refusal(-1, "b")  # it has no estimate


def test_nodes_of_a_shared_ray_cluster_cost_between_its_runs_too() -> None:
    point = experiment(*PRICED, "workers=2")
    assert point.hardware.price is not None
    hour = 3600 / point.hardware.price.usd_per_hour  # s that cost one USD on one node
    whole = Bill(
        1.0, None, {}, provisioning_s=0.25 * hour, billed_s=hour, date="2026-11-21", source="", lacking=""
    )
    cost = Cost(2, 1.0, None, None, None, date="2026-11-21", source="made up", whole=whole)

    def run(cluster: str, ended: float) -> Record:
        submission = JobSubmission(name="r", namespace="n", command="", ray_cluster=cluster)
        overrides = (*PRICED, "workers=2")
        ended_at = clock.iso(ended * hour)
        return record(
            *overrides, key="a", wall=0.5 * hour, cost=cost, submission=submission, ended_at=ended_at
        )

    first, second, alone = run("shared", 0.5), run("shared", 1.25), run("its-own", 9)
    assert Budget({"a": point}, [first]).spent == pytest.approx(1.0 + 2 * 0.25)  # its nodes came for it
    assert Budget({"a": point}, [second, first]).spent == pytest.approx(2.0 + 2 * 0.25 + 2 * 0.25)
    assert Budget({"a": point}, [first, second, alone]).spent == pytest.approx(3.0 + 2 * 0.75)


@pytest.mark.plugin("kuberay")
def test_a_cluster_costs_what_is_billed_beside_its_workers_too() -> None:
    overrides = (*PRICED, "workers=2", "cluster=kuberay", f"cluster.image=a@sha256:{'0' * 64}")
    # USD an hour, by hand from the list prices: 2 workers and a head, control plane, 3 disks, NAT gateway.
    hour = 3 * 0.19 + 0.10 + 3 * 100 * 0.10 / 730 + 0.005 + 3 * 0.0014
    budget = Budget({"a": experiment(*overrides)}, max_usd=1.99 * hour)
    budget.add(record(*overrides, key="a", wall=3600.0))
    assert budget.spent == pytest.approx(hour) and budget.usd("a") == pytest.approx(hour)
    assert budget.refusal("a") is not None


def test_what_has_no_price_is_never_counted_as_free(tmp_path: Path) -> None:
    budget = Budget({"a": experiment()}, [record(key="a")])
    assert budget.spent is None and budget.usd("a") is None
    assert budget.left(["a", "a"]) == pytest.approx(2 * record().wall)
    with pytest.raises(UserError, match="max_usd= .* hardware=local"):
        session.measure(spec.read(["task=logreg", "workers=1", "max_usd=1", f"output_root={tmp_path}"]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task=nothing,logreg", "workers=1,2"), "task=nothing is unknown"),
        (("task=logreg", "wrokers=1,2"), "did you mean workers?"),
        (("task=logreg", "workers=0,1"), "workers=0"),
        (("task=logreg", "task.lr=1,2"), "rule R1"),
        (("workers=1", "force=true"), "measures a seed once"),
        (("workers=1", "study=a/b"), "study="),
    ],
)
def test_all_faults_are_told_before_anything_starts(
    overrides: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*overrides, f"output_root={tmp_path}", f"data_root={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
    assert not list(tmp_path.glob("studies/*/study.yaml"))


def test_a_plan_of_other_settings_is_not_continued(tmp_path: Path) -> None:
    plan = study.new("old", question="?").model_copy(
        update={"points": (StudyPoint(key="0" * 16, overrides=("task=logreg",), seeds=(1,)),)}
    )
    study.save(plan, study.folder(tmp_path, "old"))
    with pytest.raises(UserError, match="have a different meaning"):
        session.measure(spec.read(["study=old", f"output_root={tmp_path}", f"data_root={tmp_path}"]))


HERE = {"hostname": "here", "cpu_model": "EPYC", "usable_cpus": 2, "gpus": [], "warnings": []}


class Measures(Exception):
    """The sweep went on to measure."""


def asked_again(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], session.StudyResult]:
    """Return a sweep for driven.Run's experiment and seed, that raises Measures instead of starting Ray."""

    def join(_: Any) -> None:
        raise Measures

    monkeypatch.setattr(node, "describe", lambda: Node.model_validate(HERE))
    monkeypatch.setattr(session.connection, "join", join)
    overrides = [
        "task=logreg",
        "workers=2",
        "seed=7",
        "study=s",
        f"output_root={root}",
        f"data_root={data_root}",
    ]
    return lambda: session.measure(spec.read(overrides))


def finished(root: Path, data_root: Path, **more: Any) -> Run:
    """Leave a finished run in its folder and in the store."""
    made = Run(root, f"data_root={data_root}")
    made.validate(50.0)
    values = {"data_hash": execute.check_data(made.experiment), "nodes": [HERE]} | more
    made.end("goal_not_reached", **values)
    assert [run.outcome for run in sync.sync_runs(root, None)] == ["uploaded"]
    return made


def removed(there: Run) -> None:
    shutil.rmtree(there.folder)


def damaged(there: Run) -> None:
    (there.folder / "record.json").write_text("{")


@pytest.mark.slow
@pytest.mark.parametrize("gone", [removed, damaged])
def test_a_finished_run_that_only_the_default_store_has_counts_and_comes_back(
    gone: Callable[[Run], None],
    tmp_path: Path,
    data_root: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = zips.with_store(tmp_path / "runs", empty_store)
    sweeps = asked_again(root, data_root, monkeypatch)
    gone(finished(root, data_root))
    outcome = sweeps()
    assert outcome.unmeasured == [] and [run.run_id for run in outcome.records] == ["run-7"]
    assert outcome.records[0].status == "goal_not_reached"
    arguments = ["export", "run-7", f"to={tmp_path / 'run.zip'}", f"output_root={root}"]
    assert results.main(arguments) == 0, "the record and the log are back"


def test_a_failed_trial_stays_failed_when_its_sweep_is_called_again(
    tmp_path: Path, data_root: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study said n = 1 and no miss of a trial that had failed, been interrupted, and then finished."""
    root = zips.with_store(tmp_path / "runs", empty_store)
    sweeps = asked_again(root, data_root, monkeypatch)
    Run(root, f"data_root={data_root}", name="a").end("failed", error="it broke")
    outcome = sweeps()
    assert "it broke" in outcome.unmeasured[0] and "counts as missed" in outcome.unmeasured[0]
    Run(root, f"data_root={data_root}", name="b").end("interrupted")
    good = Run(root, f"data_root={data_root}", name="c")
    good.validate(50.0)
    good.end("goal_not_reached", data_hash=execute.check_data(good.experiment), nodes=[HERE])
    again = sweeps()
    assert [run.status for run in again.records] == ["failed", "interrupted", "goal_not_reached"]
    (point,) = points(again.records)
    assert (point.n, point.reached, point.missed) == (1, 0, ("a-7",))
    assert attempts.excluded_summary(again.records) == "3 attempts: 1 failed, 1 interrupted"
    session.publish(again, session.compared(again))
    shown = (again.folder / study.REPORT / "report.html").read_text()
    assert "3 attempts: 1 failed, 1 interrupted" in shown


def test_a_run_that_a_killed_sweep_left_and_that_cannot_be_concluded_or_sent_is_told(
    tmp_path: Path, data_root: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = zips.with_store(tmp_path / "runs", empty_store)
    sweeps = asked_again(root, data_root, monkeypatch)
    finished(root, data_root)
    events.append(Run(root, name="torn").folder / events.NAME, "run_result", {"status": "nonsense"})
    (note,) = sweeps().notes
    assert note.startswith("torn-7 was interrupted") and "run_result" in note
    (root / "mlflow.db").write_bytes(b"no database" * 100)
    Run(root, name="cut")
    outcome = sweeps()
    assert [run.status for run in outcome.records] == ["interrupted", "goal_not_reached"]
    assert any(note.startswith("cut-7 is not") and "results sync" in note for note in outcome.notes)


def test_another_machine_s_run_is_not_copied_into_a_study(
    tmp_path: Path, data_root: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = zips.with_store(tmp_path / "runs", empty_store)
    sweeps = asked_again(root, data_root, monkeypatch)
    removed(finished(root, data_root, nodes=[HERE | {"cpu_model": "Xeon"}]))
    with pytest.raises(Measures):
        sweeps()
    assert not (root / "run-7").exists()


def test_a_study_is_not_continued_on_other_data(
    tmp_path: Path, data_root: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = zips.with_store(tmp_path / "runs", empty_store)
    sweeps = asked_again(root, data_root, monkeypatch)
    finished(root, data_root, data_hash="another")
    with pytest.raises(UserError, match="other data .* run-7"):
        sweeps()
    assert not (root / "studies" / "s" / study.PLAN).exists()
