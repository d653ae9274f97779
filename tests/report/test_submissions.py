"""What strangers hand in: whole submissions are accepted and ranked, forged ones refused with a sentence."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import studies
import yaml
import zips
from conftest import ROOT
from driven import sealed
from records import record
from syrupy.assertion import SnapshotAssertion

import mlbench
from mlbench import results
from mlbench.config import compose
from mlbench.config.errors import comparable
from mlbench.record import events, study
from mlbench.record.build_record import build_record
from mlbench.record.record import Record
from mlbench.report import leaderboard, publication, site
from mlbench.report.grouping import groups, task_labels
from mlbench.tracking import submission
from submissions import ABOUT, STUDY, Log, hand_in, of, run_log, zipped


def checked(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = results.main(["check", str(folder), *options])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_a_whole_submission_is_accepted_without_a_store_and_nothing_is_written(tmp_path: Path) -> None:
    folder = hand_in(tmp_path / "submissions", tmp_path)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    (tmp_path / "empty").mkdir()
    code = (
        "import sys; from mlbench import results; code = results.main(['check', sys.argv[1], '--json']); "
        "assert not {'mlflow', 'ray', 'torch'} & sys.modules.keys(); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)
    assert result["accepted"] and result["tier"] == "logs complete" and not result["incomplete"]
    (point,) = result["points"]
    assert (
        point["time_to_accuracy_s"] == 9.0 and point["cost_usd"] == pytest.approx(0.09) and point["rank"] == 1
    )
    section = "logreg, mini: accuracy >= 85 %, epsilon_like; open division; CPU, one node; mlbench "
    assert point["section"] == section + comparable(mlbench.__version__)
    shutil.rmtree(tmp_path / "empty")
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_a_later_version_accepts_and_ranks_what_a_release_measured(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Apart from what it measured itself (rule R9)."""
    monkeypatch.setattr(mlbench, "__version__", "0.2.0")
    release = hand_in(tmp_path, tmp_path / "a", entity="lab-a")
    monkeypatch.setattr(mlbench, "__version__", "0.3.0.dev0")
    own = hand_in(tmp_path, tmp_path / "b", entity="lab-b", times=(4.2, 4.4, 4.9), first_seed=11)
    every = [submission.check(folder) for folder in (release, own)]
    assert [result.refusals for result in every] == [[], []]
    entries = leaderboard.entries(every)
    assert [(entry.entity, entry.rank, entry.tier) for entry in entries] == [
        ("lab-a", 1, "logs complete"),
        ("lab-b", 1, "logs complete"),
    ]
    assert [entry.section.rpartition("; ")[2] for entry in entries] == ["mlbench 0.2", "mlbench 0.3"]
    edited_record(release)
    code, output = checked(release, capsys)
    assert code == 1 and "with mlbench 0.2.0" in output


@pytest.mark.slow
def test_the_submissions_of_this_repository_are_accepted(capsys: Any) -> None:
    """Real runs of releases, each derived from its log anew; gnmt ran in fp32, too."""
    code, output = checked(ROOT / "submissions", capsys)
    assert code == 0, output
    assert "precision bf16, 26.2 s (25.5 s to 28.8 s)" in output


def test_the_comment_of_a_pull_request_is_a_table(tmp_path: Path, capsys: Any) -> None:
    folder = hand_in(tmp_path, tmp_path / "runs")
    code, output = checked(folder, capsys, "--markdown")
    assert code == 0 and output.startswith("### `lab-a/2026-11-24-two-cores`: accepted")
    assert "| 9.0 s (8.0 s to 10.0 s) | 0.0900 USD | 3 of 3 |" in output
    (folder / "page.html").write_text("<script>")
    code, output = checked(folder, capsys, "--markdown")
    assert code == 1 and "- `'page.html' is " in output


def test_an_export_of_a_study_is_all_that_a_submission_needs_beside_its_yaml(
    tmp_path: Path, capsys: Any
) -> None:
    example = hand_in(tmp_path / "other", tmp_path / "runs")
    root, to = tmp_path / "runs" / "lab-a", tmp_path / "lab-z" / "2026-11-24-two-cores"
    shutil.copytree(study.folder(example, STUDY), study.folder(root, STUDY))
    for path in root.glob("*/record.json"):
        log = [json.loads(line) for line in (path.parent / events.NAME).read_text().splitlines()]
        sealed(log)
        (path.parent / events.NAME).write_text("".join(json.dumps(event) + "\n" for event in log))
        build_record(log).save(path.parent)
    assert results.main(["export", f"study:{STUDY}", f"output_root={root}", f"to={to}"]) == 0
    shutil.copy(example / "submission.yaml", to)
    shutil.rmtree(tmp_path / "other")
    output = checked(to, capsys)[1]
    assert "lab-z/2026-11-24-two-cores: accepted, " in output and ", 3 runs\n" in output, output


def ranks(log: Log, index: int = -1) -> list[dict[str, Any]]:
    return of(log, "validation", index)["metadata"]["phase_times"]


def faster(log: Log) -> None:
    of(log, "validation", -1)["value"]["elapsed"] /= 100


def other_host(log: Log) -> None:
    of(log, "run_start")["metadata"]["hostname"] = "fast"
    of(log, "run_result")["value"]["result"]["nodes"][0]["hostname"] = "fast"


def marked(log: Log) -> None:
    for node in of(log, "run_result")["value"]["result"]["nodes"]:
        node["cpu_model"] = "<img src=x onerror=alert(1)>"


EDITS: dict[str, tuple[Callable[[Log], None], str]] = {
    "edited time": (
        faster,
        "its log contradicts itself: the validation at step 40 ends before the one before",
    ),
    "another host in half of the log": (other_host, "cluster=local is one machine, and it names fast, "),
    "HTML in a name": (marked, "'<img src=x onerror=alert(1)>' is not the name of a machine part"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_log_that_was_edited_and_sealed_anew_is_refused(name: str, tmp_path: Path, capsys: Any) -> None:
    edit, sentence = EDITS[name]
    code, output = checked(hand_in(tmp_path, tmp_path / "runs", edit=edit), capsys)
    assert code == 1 and output.startswith("lab-a/2026-11-24-two-cores: refused\n") and sentence in output, (
        output
    )


def edited_record(folder: Path) -> None:
    """The record says less than its log."""
    path = sorted(folder.glob("*.zip"))[0]
    with zips.zipfile.ZipFile(path) as opened:
        files = {name: opened.read(name).decode() for name in opened.namelist()}
    values = json.loads(files["record.json"])
    zips.write(path, files | {"record.json": json.dumps(values | {"time_to_accuracy": 1.0})})


def copied(folder: Path) -> None:
    """Another entity's run under a name, a seed and a study of one's own, sealed anew."""
    log = run_log(folder / "scratch", 9, 4.5)
    shutil.rmtree(folder / "scratch")
    zipped(log, folder)


def swapped(folder: Path) -> None:
    study_folder = study.folder(folder, STUDY)
    plan = study.load(study_folder)
    assert plan is not None
    points = tuple(point.model_copy(update={"key": "0" * 16}) for point in plan.points)
    study.save(plan.model_copy(update={"points": points}), study_folder)


def deleted(folder: Path) -> None:
    sorted(folder.glob("*.zip"))[-1].unlink()


def killed(folder: Path) -> None:
    """A run that began, and whose command was killed before it wrote how the run ended."""
    events.append(study.folder(folder, STUDY) / study.LOG, study.RUN, {"trial": "t", "run_id": "run-9"})


def html_entity(folder: Path) -> None:
    (folder / "submission.yaml").write_text(yaml.safe_dump(ABOUT | {"entity": "<script>alert(1)</script>"}))


def two_prices(folder: Path) -> None:
    about = yaml.safe_dump(ABOUT)
    (folder / "submission.yaml").write_text(f"price: {{usd_per_hour: 9.0, date: '2026-11-01'}}\n{about}")


def two_plans(folder: Path) -> None:
    plan = study.folder(folder, STUDY) / study.PLAN
    plan.write_text(f"points: []\n{plan.read_text()}")


def unfolding(folder: Path) -> None:
    """A plan whose thousand points are one, as a million would be."""
    plan = study.folder(folder, STUDY) / study.PLAN
    text = plan.read_text().replace("points:\n- ", "points:\n- &a\n  ")
    plan.write_text(text + "- *a\n" * 1000)


def linked(folder: Path) -> None:
    (folder / "zz.zip").symlink_to("/etc/passwd")


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "edited record": (edited_record, "its record was changed: time_to_accuracy"),
    "a copied run of another entity": (copied, "run-9 has the times of run-c of lab-b/2026-11-24-two-cores"),
    "a swapped study": (swapped, "run-1: the plan of study two-nodes has no such point and seed"),
    "a deleted attempt": (deleted, "the attempt run-3 of study two-nodes is left out"),
    "an attempt that was killed": (killed, "the attempt run-9 of study two-nodes is left out"),
    "HTML in an entity": (html_entity, "submission.yaml: entity: it holds markup"),
    "two prices": (two_prices, "submission.yaml is not valid YAML or has a repeated name"),
    "two plans in one": (two_plans, "the plan or the log of study two-nodes cannot be read"),
    "a plan that unfolds": (
        unfolding,
        "'studies/two-nodes/study.yaml' has aliases (*NAME), which can fill",
    ),
    "a link": (linked, "'zz.zip' is not a file of a submission"),
    "no price": (lambda folder: (folder / "submission.yaml").write_text("a: 1"), "price: field required"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_was_edited_is_refused(name: str, tmp_path: Path, capsys: Any) -> None:
    edit, sentence = FOLDERS[name]
    hand_in(tmp_path, tmp_path / "others", entity="lab-b", times=(4.1, 4.5), first_seed=11)
    folder = hand_in(tmp_path, tmp_path / "runs", times=(6.0, 7.0, 8.0))
    assert checked(folder, capsys)[0] == 0, "it is accepted before"
    edit(folder)
    code, output = checked(folder, capsys)
    assert code == 1 and sentence in output, output


def test_tiers_need_logs_attempts_and_another_entity(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    first = hand_in(tmp_path, tmp_path / "a", entity="lab-a")
    second = hand_in(tmp_path, tmp_path / "b", entity="lab-b", times=(4.2, 4.4, 4.9), first_seed=11)
    third = hand_in(tmp_path, tmp_path / "c", entity="lab-c", times=(9.15, 9.25, 9.35), first_seed=21)
    (study.folder(third, STUDY) / study.PLAN).unlink()
    (study.folder(third, STUDY) / study.LOG).unlink()
    every = [submission.check(folder) for folder in (first, second, third)]
    assert [result.refusals for result in every] == [[], [], []]
    entries = leaderboard.entries(every)
    assert [(entry.entity, entry.rank, entry.tier) for entry in entries] == [
        ("lab-b", 1, "reproduced"),
        ("lab-a", 2, "reproduced"),
        ("lab-c", 3, "self-reported"),
    ]
    assert [entry.why for entry in entries] == snapshot


def test_an_interval_without_an_end_is_reproduced_by_nobody(tmp_path: Path) -> None:
    """One of its runs missed the goal; another entity needs nine times as long."""

    def missed(log: Log) -> None:
        last = of(log, "validation", -1)["value"]
        last |= {"metrics": {"accuracy": 84.0, "loss": 1.0}, "goal_reached": False}
        of(log, "run_result")["value"]["result"]["status"] = "goal_not_reached"

    first = hand_in(tmp_path, tmp_path / "a", entity="lab-a", edit=missed)
    path = study.folder(first, STUDY) / study.LOG
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, last.replace("goal_reached", "goal_not_reached")]))
    second = hand_in(tmp_path, tmp_path / "b", entity="lab-b", times=(40.0, 41.0, 42.0), first_seed=11)
    entries = leaderboard.entries([submission.check(folder) for folder in (first, second)])
    assert [(entry.entity, entry.tier) for entry in entries] == [
        ("lab-a", "logs complete"), ("lab-b", "logs complete"),
    ]  # fmt: skip


def test_ranks_are_of_one_task_goal_division_and_class_of_hardware(tmp_path: Path) -> None:
    folders = [
        hand_in(
            tmp_path, tmp_path / "runs", *overrides,
            entity=f"lab-{index}", times=[4.1 + index, 4.6 + index], first_seed=1 + 10 * index,
        )
        for index, overrides in enumerate([("workers=1",), ("goal=86",), ("workers=2",)])
    ]  # fmt: skip
    entries = leaderboard.entries([submission.check(folder) for folder in folders])
    ranks = [(entry.entity, entry.rank, entry.section.partition(":")[2][:15]) for entry in entries]
    assert ranks == [
        ("lab-0", 1, " accuracy >= 85"), ("lab-2", 2, " accuracy >= 85"), ("lab-1", 1, " accuracy >= 86"),
    ]  # fmt: skip
    there = "NVIDIA H100, one node", "NVIDIA H100, several nodes", "CPU, one node"
    gpu = [{"hostname": "n", "usable_cpus": 2, "gpus": [{"name": "NVIDIA H100"}] * 8}]
    on_gpu = studies.run(2, 1, "backend=nccl", time=9.0, nodes=gpu)
    several = studies.run(2, 1, "backend=nccl", time=9.0, nodes=gpu * 2)
    runs = (on_gpu, several, studies.run(2, 1, time=9.0))
    assert tuple(leaderboard.hardware_class(Record.model_validate(run.model_dump())) for run in runs) == there


def failed(log: Log) -> None:
    """The workers of this run failed before they described their node."""
    end = of(log, "run_result")["value"]
    end |= {"status": "failed", "error": "a worker died", "result": None}
    del log[[event["key"] for event in log].index("validation") : -2]


@pytest.mark.parametrize("overrides", [("workers=2",), ("hardware=gcp_n1_standard_4", "workers=2")])
def test_an_attempt_that_failed_counts_in_the_point_of_those_that_did_not(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """It describes no node, and the others have one or several."""
    folder = hand_in(tmp_path, tmp_path / "runs", *overrides, edit=failed)
    (entry,) = leaderboard.entries([submission.check(folder)])
    assert (entry.point.n, entry.point.reached) == (3, 2)


def test_a_seed_that_was_only_interrupted_has_no_result(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Else who stops the slow ones has the median of the others."""

    def interrupted(log: Log) -> None:
        failed(log)
        of(log, "run_result")["value"]["status"] = "interrupted"

    result = submission.check(hand_in(tmp_path, tmp_path / "runs", edit=interrupted))
    assert result.incomplete == snapshot


def test_runs_that_are_left_out_are_told_beside_those_that_count(tmp_path: Path, capsys: Any) -> None:
    def busy(log: Log) -> None:
        (node,) = of(log, "run_result")["value"]["result"]["nodes"]
        node["interference"] = {"seconds": 90.0, "cpus": 2.0, "others": 1.0, "steal": 0.0}

    code, output = checked(hand_in(tmp_path, tmp_path / "runs", edit=busy), capsys, "--markdown")
    assert code == 0 and "| 2 of 2, 1 left out |" in output, output


def test_what_the_closed_division_lists_as_deviations_is_ranked_apart(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """An open run whose log is called closed keeps them, and so does a file of the user's own."""
    folders = [
        hand_in(tmp_path, tmp_path / "runs", "division=closed", *more, entity=f"lab-{index}",
                times=[4.1 + index], first_seed=1 + 10 * index)
        for index, more in enumerate([(), ("hardware.network_gbit_per_s=5",)])
    ]  # fmt: skip
    entries = leaderboard.entries([submission.check(folder) for folder in folders])
    ranks = {entry.entity: (entry.rank, entry.section.split("; ")[1]) for entry in entries}
    assert ranks == snapshot


@pytest.mark.slow
def test_points_of_two_precisions_are_named_by_them_whoever_handed_them_in(
    tmp_path: Path, capsys: Any
) -> None:
    hand_in(tmp_path / "in", tmp_path)
    times, half = (3.1, 3.6, 3.9), "task.precision=bf16"
    hand_in(tmp_path / "in", tmp_path, half, entity="lab-b", times=times, first_seed=11)
    code, output = checked(tmp_path / "in", capsys, "--json")
    first, second = [point for submission in json.loads(output) for point in submission["points"]]
    assert code == 0 and first["section"] == second["section"]
    assert (first["curve"], second["curve"]) == ("precision fp32", "precision bf16")
    assert (first["rank"], second["rank"]) == (2, 1)
    assert "2 workers, precision bf16, 7.2 s" in checked(tmp_path / "in", capsys)[1]
    assert "2 x gloo, precision bf16`" in checked(tmp_path / "in", capsys, "--markdown")[1]
    assert results.main(["site", str(tmp_path / "in"), f"to={tmp_path / 'site'}"]) == 0
    page = (tmp_path / "site" / "index.html").read_text()
    assert "Fastest: lab-b, " in page and "2 workers, precision bf16, 7.2 s" in page
    page = (tmp_path / "site" / "hardware.html").read_text()
    assert {*re.findall(r"cores \((lab-., [a-z0-9 ]+)\)", page)} == {
        "lab-a, precision fp32",
        "lab-b, precision bf16",
    }


def test_a_value_that_names_a_point_stays_on_its_line() -> None:
    (point,) = groups(studies.study(workers=(2,), repeats=3))[0].points
    forged = '"shapes\\nlab-a/2026-11-24-two-cores: accepted, official"'
    points = [replace(point, series=(("task.dataset", value),)) for value in (forged, '"shapes"')]
    (first,), (second,) = task_labels(points)
    assert first.isprintable() and first.startswith('dataset "shapes\\nlab-a') and second == "dataset shapes"


def test_scripts_with_other_content_share_no_rank(tmp_path: Path) -> None:
    sections = set()
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(f"print('{name}')")
        run = record("task=script", f"task.path={tmp_path / name}", "task.metric=accuracy", "goal=0.9")
        sections.add(leaderboard._division(run))
    assert len(sections) == 2 and all(section.startswith("open division, script ") for section in sections)


def test_a_folder_of_runs_is_refused_in_one_sentence(tmp_path: Path) -> None:
    hand_in(tmp_path, tmp_path / "runs")
    assert len(list((tmp_path / "runs").rglob("*"))) > 1
    assert len(submission.check(tmp_path / "runs").refusals) == 1


def test_who_extends_a_study_hands_its_runs_in_again(tmp_path: Path) -> None:
    first = hand_in(tmp_path, tmp_path / "runs")
    later = first.with_name("2026-12-24-two-cores")
    shutil.copytree(first, later)
    assert [submission.check(folder).refusals for folder in (first, later)] == [[], []]
    other = tmp_path / "lab-z" / first.name
    shutil.copytree(first, other)
    assert "it is a copy" in submission.check(other).refusals[0]


def test_a_run_has_the_tier_of_the_submission_beside_it(tmp_path: Path) -> None:
    """The table of a site had the last submission's for all, also where the run was handed in loose, too."""
    first = hand_in(tmp_path, tmp_path / "runs")
    later = first.with_name("2026-12-24-two-cores")
    shutil.copytree(first, later)
    shutil.rmtree(later / "studies")
    loose = submission.Checked("", "", None, (), (), (), {})
    every = [submission.check(folder) for folder in (later, first)]
    runs = [(each, every[0].records[0]) for each in (*every, loose)]
    publication.write(tmp_path, leaderboard.entries(every), runs)
    rows = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [(row["tier"], row["section"] is None) for row in rows] == [
        ("self-reported", False), ("logs complete", False), ("self-reported", True),
    ]  # fmt: skip


def test_cost_over_time_is_of_one_version_and_of_all_classes_of_hardware(tmp_path: Path) -> None:
    """It was of one class, and of all versions, whose results are not comparable (rule R9)."""
    (entry,) = leaderboard.entries([submission.check(hand_in(tmp_path, tmp_path / "runs"))])
    *title, machines, version = entry.section.split("; ")
    ends = [(machines, version), ("NVIDIA H100, one node", version), (machines, "mlbench 0.1")]
    parts = site._hardware([replace(entry, section="; ".join([*title, *end])) for end in ends])
    assert [(part.title, len(part.table.rows)) for part in parts] == [
        ("; ".join([*title, version]), 2), ("; ".join([*title, "mlbench 0.1"]), 1),
    ]  # fmt: skip


def test_a_run_is_billed_for_all_nodes_that_it_had(tmp_path: Path) -> None:
    """A profile may not say how many workers a node has."""

    def nodes(log: Log) -> None:
        result = of(log, "run_result")["value"]["result"]
        result["nodes"] = [result["nodes"][0] | {"hostname": name} for name in ("a", "b")]
        del of(log, "run_start")["metadata"]["hostname"]

    folder = hand_in(tmp_path, tmp_path / "runs", "cluster=attached", times=(4.5,), edit=nodes)
    (entry,) = leaderboard.entries([submission.check(folder)])
    assert entry.usd is not None and entry.usd.value == pytest.approx(2 * 0.09)


def other_key(log: Log) -> None:
    """Another experiment under the key of the others; its torch is not told, so that nobody can derive it."""
    log[0]["value"]["experiment"]["task"]["lr"] = 0.5
    log[0]["value"]["software"]["packages"] = {}


def undeclared(log: Log, division: str = "closed") -> None:
    log[0]["value"]["experiment"]["division"]["name"] = division
    log[0]["value"]["experiment"]["task"]["lr"] = 0.5
    log[0]["value"]["deviations"] = []


def undeclared_sync(log: Log) -> None:
    log[0]["value"]["experiment"] |= {
        "sync": compose.compose(["division=open", "sync=local_sgd"]).plain()["sync"]
    }


def other_division(log: Log) -> None:
    """A slow run that leaves the rank of its point."""
    log[0]["value"]["experiment"]["division"]["name"] = "closed"


CONFIGURATIONS = {
    "another experiment": (other_key, "has the key of run-1 and another configuration"),
    "another rate": (undeclared, "it differs from the closed reference in task.lr without naming it"),
    "another rate in the open division": (
        partial(undeclared, division="open"),
        "it differs from the closed reference in task.lr without",
    ),
    "another strategy": (undeclared_sync, "it differs from the closed reference in sync.name without"),
    "another division": (other_division, "run-3 is of the point of run-1 and of another division"),
}


OPEN = (
    ("task=logreg", "task.lr=3"),
    ("sync=local_sgd",),
    ("task.dataset=fashion_mnist", "sync=compression", "task.lr=1"),
    ("task=gpt", "framework=jax", "task.lr=1"),
    ("hardware=gcp_n1_t4", "hardware.cpus=2", "backend=nccl"),
    ("task=script", "task.path=tests/script/scripts/ddp.py", "task.metric=acc", "goal=0.9"),
)


@pytest.mark.parametrize("words", OPEN)
def test_an_open_configuration_that_lists_its_deviations_is_accepted(words: tuple[str, ...]) -> None:
    experiment = compose.compose(["division=open", *words])
    recorded = json.loads(json.dumps(experiment.plain()))
    assert compose.undeclared(recorded, experiment.deviations) == []


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_is_that_of_its_key_and_of_its_division(name: str, tmp_path: Path) -> None:
    edit, sentence = CONFIGURATIONS[name]
    result = submission.check(hand_in(tmp_path, tmp_path / "runs", edit=edit))
    assert any(sentence in refusal for refusal in result.refusals), result.refusals


def test_what_a_study_s_log_says_of_a_run_is_held_against_it(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder = hand_in(tmp_path, tmp_path / "runs")
    path = study.folder(folder, STUDY) / study.LOG
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0].replace("goal_reached", "failed") + lines[1])
    result = submission.check(folder)
    assert not result.refusals
    assert result.incomplete == snapshot
    path.write_text(lines[0].replace('-1"', '-2"', 1) + "".join(lines[1:]))
    assert "two-nodes has" in submission.check(folder).refusals[0]


HOSTILE = {
    "a timestamp": "a: !!timestamp x",
    "an integer": "a: !!int ''",
    "a price": yaml.safe_dump(ABOUT | {"price": {"usd_per_hour": 1.7e308, "date": "2026-11-24"}}),
    "a date": yaml.safe_dump(ABOUT | {"price": {"usd_per_hour": 1.0, "date": "9999-99-99"}}),
    "a direction": yaml.safe_dump(ABOUT | {"entity": "a\u202eb"}, allow_unicode=True),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_a_sentence(name: str, tmp_path: Path, capsys: Any) -> None:
    folder = hand_in(tmp_path, tmp_path / "runs", times=(4.5,))
    (folder / submission.FILE).write_text(HOSTILE[name])
    code, output = checked(folder, capsys)
    assert code == 1 and f"  {submission.FILE}" in output, output


def test_a_study_that_no_run_names_may_hold_anything(tmp_path: Path) -> None:
    """A trial that is no text ended the command that checks all submissions."""
    folder = hand_in(tmp_path, tmp_path / "runs")
    shutil.copytree(study.folder(folder, STUDY), study.folder(folder, "other"))
    events.append(study.folder(folder, "other") / study.LOG, study.ENDED, {"trial": 7, "run_id": "run-9"})
    result = submission.check(folder)
    assert not result.refusals
    assert [history.deleted for history in result.histories.values()] == [frozenset()]


def replaced(old: str, new: str) -> Callable[[Path], object]:
    """Return an edit of the text of a run's record."""

    def edit(folder: Path) -> None:
        text = (folder / "record.json").read_text()
        assert old in text
        (folder / "record.json").write_text(text.replace(old, new, 1))

    return edit


RECORDS: dict[str, Callable[[Path], object]] = {
    "damaged": lambda folder: (folder / "record.json").write_text("{"),
    "that of another run": lambda folder: shutil.copy(folder.with_name("run-1") / "record.json", folder),
    "of another seed": replaced('\n  "seed": 2,', '\n  "seed": 9,'),
    "that of another machine": replaced('"imported": false', '"imported": true'),
}


@pytest.mark.parametrize("name", RECORDS)
def test_an_attempt_without_its_own_record_is_as_one_that_was_deleted(name: str, tmp_path: Path) -> None:
    """A sweep measures its seed again, so the slow run of an official point could be put out of sight."""
    runs = tmp_path / "runs" / "lab-a"
    folder = hand_in(tmp_path, tmp_path / "runs")
    shutil.copytree(folder / "studies", runs / "studies")
    (key,) = study.histories(runs)
    assert study.histories(runs)[key].deleted == frozenset()
    RECORDS[name](runs / "run-2")
    assert study.histories(runs)[key].deleted == {"run-2"}
