"""`--dry-run` and `--cfg job`: what would be measured, what is reused, and about what it takes."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S
from conftest import ROOT
from driven import Run
from records import record, save

from mlbench import run, sweep
from mlbench.clusters import node
from mlbench.config import compose
from mlbench.config.experiment import Experiment
from mlbench.record import cost, study
from mlbench.record.record import Record
from mlbench.report import writer
from mlbench.studies import session
from mlbench.studies.estimate import RunEstimate, estimates
from mlbench.studies.spec import read
from mlbench.tasks import registry


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session.connection, "join", None)  # whoever starts Ray fails
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], command: Any, *arguments: str, code: int = 0) -> str:
    """Return what a command prints, its line breaks as blanks."""
    assert command.main(arguments) == code
    return " ".join(capsys.readouterr().out.split())


def estimate(experiment: Experiment, records: list[Record]) -> RunEstimate:
    return estimates([experiment], records)[0]


def measured(root: Path, *overrides: str, seed: int, wall: float) -> None:
    """Leave a finished run that took `wall` seconds."""
    made = Run(root, *overrides, seed=seed, name=f"2026-{overrides}")
    made.validate(90.0)
    save(made.end("goal_reached").model_copy(update={"wall": wall}), made.folder)


def test_a_dry_run_says_what_would_run_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    insisting = (f"hardware.cpus={node.usable_cpus()}", "hardware.workers_per_node=2")
    text = said(capsys, run, "task=gnmt", "hardware=gcp_n1_standard_4", *insisting, "--dry-run")
    assert "hardware=gcp_n1_standard_4, cluster=local, sync=ddp" in text and "network=host" in text
    assert "gnmt mini" in text and "goal bleu >= 80" in text and "made by" in text
    assert re.search(r"about 50 s, about 0\.00\d+ USD", text)
    assert "measurements/results.md" in text and "--cfg job" in text and "started" in text
    assert not list(here.iterdir())
    (here / "train.py").touch()
    text = said(capsys, run, "task=script", "task.path=train.py", "--dry-run")
    assert "data none: " in text


def test_the_estimate_comes_from_what_was_measured_here(here: Path) -> None:
    experiment = compose.compose(["task=logreg", "workers=2", "hardware=gcp_n1_t4"])
    page = registry.expected("logreg")
    assert page is not None and estimate(experiment, []).seconds == page["seconds"]
    unknown = estimate(compose.compose(["task=logreg", "scale=official"]), [])
    assert unknown.seconds is None and unknown.usd is None and "logreg official" in unknown.basis
    from mlbench.record import run_folders

    measured(here, "workers=1", "hardware=gcp_n1_t4", seed=1, wall=100.0)
    other = estimate(experiment, run_folders.records(here)[0])
    assert other.seconds == 100.0 and "1 earlier run" in other.basis
    for seed, wall in ((2, 10.0), (3, 30.0), (4, 80.0)):
        measured(here, "hardware=gcp_n1_t4", seed=seed, wall=wall)
    same = estimate(experiment, run_folders.records(here)[0])
    assert same.seconds == 30.0 and "3 earlier runs" in same.basis
    assert experiment.hardware.price is not None
    assert same.usd == pytest.approx(30 / 3600 * 2 * experiment.hardware.price.usd_per_hour)


@pytest.mark.plugin("kuberay")
def test_the_estimate_of_a_cluster_is_what_the_study_s_budget_will_count() -> None:
    """Head, control plane, disks and gateway are billed beside the workers, which it left out."""
    words = ("task=logreg", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay")
    experiment = compose.compose([*words, f"cluster.image=a@sha256:{'0' * 64}"])
    expected = estimate(experiment, [])
    assert expected.seconds is not None and experiment.hardware.price is not None
    hour = cost.usd_per_hour(experiment)
    assert hour is not None and hour > 1.5 * 2 * experiment.hardware.price.usd_per_hour
    assert expected.usd == pytest.approx(expected.seconds / 3600 * hour)


def test_what_the_page_says_is_what_was_measured() -> None:
    text = (ROOT / "docs" / "measurements" / "results.md").read_text()
    tasks = re.findall(
        r"^### (\w+), mini.*?^\| median \| \| [\d.]+ \| ([\d.]+) \| \| ([\d.]+) \|", text, re.M | re.S
    )
    assert {name for name, *_ in tasks} == set(compose.choices("task")) - {"allreduce", "script"}
    for name, goal, startup in tasks:
        expected = registry.expected(name)
        assert expected is not None and expected["source"].startswith(
            "docs/measurements/results.md: 2 workers"
        )
        assert 0.5 < expected["seconds"] / (float(goal) + float(startup)) < 2


def test_a_dry_sweep_counts_what_is_reused_and_refuses_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        measured(here / "runs", "workers=1", seed=seed, wall=12.0)
    crowd = 16 * node.usable_cpus()
    overrides = ("task=logreg", f"workers=1,2,{crowd}", "seed=1,2,3", "output_root=runs")
    text = said(capsys, sweep, *overrides, "--dry-run", code=1)  # as the sweep itself ends
    assert "every point: task=logreg" in text
    assert re.search(r"workers=1 3 2 1 12 s \[1\] workers=2 3 0 3 12 s \[2\]", text)
    assert f"workers={crowd} is 16 workers" in text and "cluster.oversubscribe=force" in text
    assert "48 s for 4 runs" in text and "not priced" in text
    assert not (here / "runs" / "studies").exists() and not (here / "data").exists()
    forced = said(capsys, sweep, *overrides, "cluster.oversubscribe=force", "max_time=2h", "--dry-run")
    assert "refused" not in forced and "for 7 runs" in forced
    assert "limit max_time=7200s" in forced
    auto = said(capsys, sweep, "task=logreg", "workers=1,2", "repeats=auto", "--dry-run")
    assert "for 6 runs" in auto and "up to 20 a" in auto


def test_a_disk_that_is_too_full_for_the_report_takes_no_answer(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "write", write)
    folder = study.folder(here, "full")
    runs = [record(time_to_accuracy=20.0 + seed, seed=seed, run_id=f"r{seed}") for seed in range(3)]
    plan = study.new("full", question="?")
    outcome = session.StudyResult(plan, folder, "", runs, ["workers=4: failed"], ["clusters are there"])
    monkeypatch.setattr(session, "measure", lambda *_, **__: outcome)
    assert sweep.main(["task=resnet20", "workers=1", "study=full"]) == 2
    out, err = capsys.readouterr()
    assert f"{folder}/report cannot" in err and "No space left" in err
    assert "Fastest to" in out and "workers=4: failed" in err and "clusters are there" in err


def test_another_task_needs_a_word_to_join_a_study(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin("task=resnet20", "workers=1", "study=mine")
    for overrides in (["task=gnmt", "workers=1"], ["workers=1", "task=gnmt,resnet20"]):
        assert sweep.main([*overrides, "study=mine"]) == 2
        assert re.search("task=resnet20, .* task=gnmt", capsys.readouterr().err)
        assert "gnmt" in said(capsys, sweep, *overrides, "study=mine", "extend=true", "--dry-run")
    assert sweep.main(["task=resnet20", "workers=2", "study=mine", "--dry-run"]) == 0


def begin(*overrides: str) -> None:
    """Leave the plan of a study."""
    from mlbench.studies.spec import compose_points

    spec = read(overrides)
    plan, _, _ = session.extended_plan(spec, session.load_results(spec).study, compose_points(spec))
    study.save(plan, study.folder(Path("runs"), spec.name))


def test_words_beside_a_study_change_that_study(here: Path) -> None:
    spec = read(["study=quick", "workers=4", "goal=85"])
    assert "second worker" in spec.question
    ((parsed, invocation),) = spec.grids
    assert parsed.points == [
        (f"task={task}", "workers=4", "hardware.threads_per_worker=1", "goal=85")
        for task in ("logreg", "resnet20")
    ]
    assert invocation.repeats == 3 and "goal=85" in invocation.overrides
    ((seeded, _),) = read(["study=quick", "seed=1,2"]).grids
    assert seeded.seeds == (1, 2) and len(seeded.points) == 4


def test_repeats_beside_a_study_are_those_of_its_plan(here: Path) -> None:
    """The report's command had the file's, and of a file with repeats=auto no number ended the seeds."""
    ((_, invocation),) = read(["study=quick", "repeats=10"]).grids
    assert invocation.repeats == 10
    assert [word for word in invocation.overrides if word.startswith("repeats=")] == ["repeats=10"]
    folder = here / "study"
    folder.mkdir()
    (folder / "long.yaml").write_text("question: Which?\nsweeps: ['task=logreg workers=1,2 repeats=auto']\n")
    path = f"hydra.searchpath=['{here}']"
    assert read(["study=long", path]).auto
    assert not read(["study=long", "repeats=5", path]).auto


def test_words_that_drop_what_a_begun_study_fixes_are_refused_with_the_whole_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["task=resnet20", "goal=90", "hardware.threads_per_worker=1"]
    begin("study=cut", *fixed, "workers=1,2")
    assert sweep.main(["study=cut", "workers=1,2,4", "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert f"study=cut measures {' '.join(fixed)}, " in message
    assert f"mlbench sweep {' '.join(fixed)} workers=1,2,4 study=cut" in message
    for overrides in (
        [*fixed, "workers=1,2,4"],
        ["workers=4", "extend=true"],
        [fixed[0], "goal=95", fixed[2], "workers=1"],
    ):
        assert "study cut: " in said(capsys, sweep, "study=cut", *overrides, "--dry-run")


@pytest.mark.parametrize("word", ["goal=none", "sync=fsdp", "task.batch_size=8"])
def test_an_estimate_is_of_the_same_training_or_unknown(here: Path, word: str) -> None:
    """The page has seconds of the default recipe to its goal, and a run here those of its own."""
    usual, other = (compose.compose(["task=logreg", "division=open", *more]) for more in ([], [word]))
    measured(here, "workers=1", seed=1, wall=100.0)
    from mlbench.record import run_folders

    for records in ([], run_folders.records(here)[0]):
        assert estimate(usual, records).seconds is not None
        unknown = estimate(other, records)
        assert unknown.seconds is None and word.partition("=")[0] in unknown.basis


@pytest.mark.slow
def test_a_flow_tells_a_mistake_before_anything_starts(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "pipelines" / "network.py", "run", "--study", "nosuch"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode == 2 and "unknown study=nosuch" in said and "Traceback" not in said, said
    assert not list(tmp_path.glob("runs/[!.]*"))
