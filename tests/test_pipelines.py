"""The flows: killed and resumed without repeating anything, and what they make of a study's records."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT
from records import record, save
from syrupy.assertion import SnapshotAssertion

from mlbench.config import compose, identity
from mlbench.config.errors import UserError
from mlbench.datasets.arrow import manifest_hash
from mlbench.launch import signals
from mlbench.record import events, study
from mlbench.record.record import RankStats
from mlbench.record.study import Invocation, Study
from mlbench.studies import session
from mlbench.tasks import registry

TINY = ("task=logreg", "workers=1", "division=open", "task.epochs=1", "goal=none")
FLOWS = ("scaling", "backends", "tuning", "network", "suite", "sync")


def plan(output: Path, *overrides: str, seeds: tuple[int, ...]) -> Study:
    """Begin a study of one point in `output`."""
    result = study.load(study.folder(output, "tiny")) or study.new("tiny", question="Does a flow resume?")
    key = identity.key(compose.compose(overrides))
    line = Invocation(at="2026-11-21T00:00:00+00:00", overrides=overrides, repeats=len(seeds))
    result = study.extended(result, {key: overrides}, invocation=line, seeds=seeds)
    study.save(result, study.folder(output, "tiny"))
    return result


def flow(name: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, f"pipelines/{name}.py", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("name", FLOWS)
def test_the_steps_of_a_flow_fit_together(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "MLBENCH_OUTPUT_ROOT": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    process = flow(name, "check", environment=environment)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "graph looks good" in said
    assert not list(tmp_path.glob(".metaflow*")), "nothing is written to the home folder"


@pytest.mark.slow
def test_a_night_that_was_killed_resumes_without_repeating_a_run_and_fails_for_a_slower_point(
    kept_ray: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """Only Metaflow with a sweep on Ray shows that both go on after a kill -9, which all flows share."""
    tonight = tmp_path / "tonight"
    tonight.mkdir()
    environment = {
        **kept_ray,
        "MLBENCH_OUTPUT_ROOT": str(tonight),
        "MLBENCH_DATA_ROOT": str(data_root),
    }
    data = manifest_hash(registry.load("logreg").prepare(compose.compose(TINY).task, data_root))
    for seed in range(10, 16):
        seconds, values = seed, {"seed": seed, "data_hash": data}
        earlier(tmp_path / "baseline", "task=logreg", **values, time_to_accuracy=0.1 * seconds + 10)
        measured(tonight, "task=logreg", **values, time_to_accuracy=0.15 * seconds + 15)
    done: dict[str, Any] = {"status": "completed", "goal": None, "time_to_accuracy": None, "data_hash": data}
    measured(tonight, *TINY, seed=1, **done)
    plan(tonight, *TINY, seeds=(1, 2))
    log = study.folder(tonight, "tiny") / study.LOG

    def count(kind: str) -> int:
        return sum(event["key"] == kind for event in events.read(log)) if log.exists() else 0

    options = ("--study", "tiny", "--baseline", str(tmp_path / "baseline"))
    own = tmp_path / "tmp"  # of Metaflow, which leaves its files when it is killed
    own.mkdir()
    places = {"TMPDIR": str(own), "RAY_TMPDIR": tempfile.gettempdir()}
    killed = flow("suite", "run", *options, environment=environment | places)
    until(lambda: count(study.STARTED) == 1 or killed.poll() is not None)
    assert count(study.ENDED) == 0
    run = next(e["value"]["pid"] for e in reversed(events.read(log)) if e["key"] == study.STARTED)
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(run) or psutil.Process(run).status() == psutil.STATUS_ZOMBIE)
    killed.communicate()
    measured(tonight, *TINY, seed=2, **done)  # that a sweep measures what it lacks is test_sweep.py's
    resumed = flow("suite", "resume", environment=environment)
    said, _ = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 1, said
    assert "Cloning" in said and count(study.STARTED) == 1, "nothing was measured again"
    assert "logreg 2 workers: slower" in said
    page = study.folder(tonight, "tiny") / study.REPORT / "report.html"
    assert page.exists() and str(page) in said
    assert not list(tonight.glob("home/*")) and (tonight / ".metaflow").is_dir()


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stages with an output_root of their own; Metaflow's settings do not leak out."""
    monkeypatch.setattr(os, "environ", {**os.environ, "MLBENCH_OUTPUT_ROOT": str(tmp_path)})
    monkeypatch.syspath_prepend(ROOT / "pipelines")
    for name in ("local_flow", "stages", "study_flow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("stages")


def measured(output: Path, *overrides: str, seed: int, **changes: Any) -> None:
    """Leave a run in its folder, and in the plan."""
    made = plan(output, *overrides, seeds=(seed,))
    folder = output / f"2026-11-21T00-run-{seed:x}"
    folder.mkdir()
    key = identity.key(compose.compose(overrides))
    assert key in {point.key for point in made.points}
    save(record(*overrides, key=key, seed=seed, run_id=folder.name, **changes), folder)


def test_the_fastest_setting_is_chosen_for_each_number_of_workers(
    stages: ModuleType, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    overrides = ("task=logreg", "division=open", "task.recipe=mlbench2018", "task.validation=split")
    times = {
        (1, "0.1"): (9.0, 9.0), (1, "10"): (5.0, 6.0), (1, "1000"): (None, None),
        (2, "null"): (4.0, 4.5, None), (2, "10"): (5.0, 5.0, 5.0), (3, "10"): (None, 1.0),
    }  # fmt: skip
    runs = [(*point, time) for point, each in times.items() for time in each]
    for seed, (workers, alpha, time) in enumerate(runs):
        measured(
            tmp_path, *overrides, f"workers={workers}", f"task.alpha={alpha}", seed=seed,
            time_to_accuracy=time, status="goal_not_reached" if time is None else "goal_reached",
            oversubscribed=workers == 2,
        )  # fmt: skip
    chosen = stages.load("tiny").fastest(("task.alpha", "task.batch_size"))
    assert chosen == snapshot


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--baseline", "/nonexistent"], "baseline=/nonexistent has no finished run"),
        (["--limit", "5"], "write 0.05 for 5 %"),
        (["--cfg", "all"], "--cfg"),
    ],
)
@pytest.mark.filterwarnings("ignore:The _yaml extension module:DeprecationWarning")  # metaflow's PyYAML
def test_a_flow_s_mistakes_are_told_before_metaflow_starts_anything(
    stages: ModuleType, tmp_path: Path, options: list[str], sentence: str
) -> None:
    plan(tmp_path, *TINY, seeds=(1,))
    look = importlib.import_module("study_flow")._look
    with pytest.raises(UserError, match=sentence):
        look(["run", *options], {"study": "tiny", "baseline": "", "limit": 0.05})


@pytest.mark.slow
def test_the_tables_of_all_runs_are_joined_with_their_runs(stages: ModuleType, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    row = {
        "kind": "times", "backend": "gloo", "device": "cpu", "collective": "all_reduce", "dtype": "float32",
        "workers": 2, "wrong_elements": 0, "bytes": 4, "p50_s": 1e-4, "busbw_bytes_per_s": 4e4, "reason": "",
    }  # fmt: skip
    for seed in (1, 2):
        table = [row, {**row, "bytes": 4096}]
        measured(tmp_path, "task=allreduce", seed=seed, table=table, goal=None, status="completed")
    assert stages.load("tiny").join_tables("logreg", files="backends") == []
    parquet, png = stages.load("tiny").join_tables("allreduce", files="backends")
    joined = pq.read_table(parquet).to_pylist()
    assert Counter(row["run_id"][-1] for row in joined) == {"1": 2, "2": 2}
    assert Path(png).read_bytes().startswith(b"\x89PNG")


@pytest.mark.plugin("emulation")
@pytest.mark.filterwarnings("ignore:The _yaml extension module:DeprecationWarning")  # metaflow's PyYAML
def test_sync_strategies_are_tabulated_with_bytes_steps_and_time(stages: ModuleType, tmp_path: Path) -> None:
    overrides = ("task=logreg", "goal=89", "workers=2", "division=open", "sync=compression")
    slow = ("network=1gbit_1ms", "network.bandwidth_mbit_s=20")
    for seed in range(5):
        more = {"steps": 100 + seed, "time_to_accuracy": 2.0 + seed, "status": "goal_reached"}
        more["bytes_sent_per_step"] = RankStats.of([1000.0, 3000.0])
        measured(tmp_path, *overrides, "sync.method=topk", seed=seed, **more)
    local = ("task=logreg", "goal=89", "workers=2", "division=open", "sync=local_sgd")
    others = (overrides, (*overrides, *slow), (*local, "sync.outer_lr=0.7"), (*local, "sync.outer_lr=1"))
    for seed, other in enumerate(others, start=5):
        measured(tmp_path, *other, seed=seed)
    (heading, _, *rows) = stages.load("tiny").strategies().splitlines()
    telling = [tuple(cell.strip() for cell in row.strip("|").split("|")[2:4]) for row in rows]
    assert telling == [
        ("20 Mbit/s and 1 ms", "compression method=powersgd"),
        ("host", "compression method=powersgd"),
        ("host", "compression method=topk"),
        ("host", "local_sgd outer_lr=0.7"),
        ("host", "local_sgd outer_lr=1.0"),
    ]
    row = rows[2]
    named = dict(
        zip(*([cell.strip() for cell in line.strip("|").split("|")] for line in (heading, row)), strict=True)
    )
    assert named["sync"] == "compression method=topk" and named["reached"] == "5 of 5"
    assert named["sent a step"] == "2 kB"
    assert named["steps to goal"].startswith("102 (") and named["time to goal"].startswith("4.0 s (")


@pytest.mark.filterwarnings("ignore:The _yaml extension module:DeprecationWarning")  # metaflow's PyYAML
def test_a_flow_says_what_a_sweep_says_beside_its_runs(
    stages: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_stored: Any,
) -> None:
    """That clusters may still be there, which cost money, or that MLflow could not be reached."""
    notes = ["the Ray clusters mlb-sweep-1-* may still exist: timeout"]
    plan = study.new("tiny", question="?")
    folder = tmp_path / "studies" / "tiny"
    study.save(plan, folder)
    result = session.StudyResult(plan, folder, "", [], ["workers=2: failed"], notes)
    monkeypatch.setattr(session, "measure", lambda *_, **__: result)
    monkeypatch.setattr(signals, "exit_with_parent", lambda: None)
    unmeasured, noted = stages.measure("tiny")
    flow = SimpleNamespace(unmeasured=unmeasured, notes=noted, page="report.html", answer="", lines=[])
    steps = importlib.import_module("study_flow").StudyFlow
    flow.lacking = lambda: steps.lacking(flow)
    with pytest.raises(SystemExit, check=as_stored):
        steps.end(flow)
    said = ["not measured: workers=2: failed", *notes, "report.html"]
    assert capsys.readouterr().out.splitlines() == said
    flow.unmeasured = []
    steps.end(flow)


def earlier(output: Path, *overrides: str, seed: int, **changes: Any) -> None:
    """Leave a run of the baseline in its folder."""
    folder = output / f"b-{seed:x}"
    folder.mkdir(parents=True)
    key = identity.key(compose.compose(overrides))
    save(record(*overrides, key=key, seed=seed, run_id=folder.name, **changes), folder)


@pytest.mark.parametrize(("factor", "slower"), [(1.0, False), (1.5, True)])
def test_a_point_that_is_shown_to_be_slower_than_the_baseline_fails(
    stages: ModuleType, tmp_path: Path, factor: float, slower: bool
) -> None:
    for seed in range(6):
        seconds = 10 + 0.1 * seed
        earlier(tmp_path / "baseline", "task=logreg", seed=seed, time_to_accuracy=seconds)
        measured(tmp_path, "task=logreg", seed=seed, time_to_accuracy=factor * seconds)
    said, problems = stages.load("tiny").compare_with(tmp_path / "baseline", limit=0.05)
    assert bool(problems) is slower and len(said) + len(problems) == 1


@pytest.mark.parametrize("status", ["goal_not_reached", "diverged"])
def test_a_point_that_reaches_its_goal_no_more_fails_with_the_suites_three_runs(
    stages: ModuleType, tmp_path: Path, status: str, snapshot: SnapshotAssertion
) -> None:
    for seed in range(3):
        earlier(tmp_path / "baseline", "task=logreg", seed=seed, time_to_accuracy=10 + 0.1 * seed)
        measured(tmp_path, "task=logreg", seed=seed, time_to_accuracy=None, status=status)
    said, problems = stages.load("tiny").compare_with(tmp_path / "baseline", limit=0.05)
    assert said == []
    assert problems == snapshot


def test_a_point_that_has_left_the_suite_fails_and_a_new_one_is_told(
    stages: ModuleType, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for seed in range(3):
        earlier(tmp_path / "baseline", "task=logreg", "workers=1", seed=seed)
        earlier(tmp_path / "baseline", "task=logreg", "workers=2", seed=10 + seed)
        measured(tmp_path, "task=logreg", "workers=2", seed=20 + seed)
        measured(tmp_path, "task=logreg", "workers=3", seed=30 + seed)
    said, problems = stages.load("tiny").compare_with(tmp_path / "baseline", limit=0.05)
    assert problems == snapshot
    assert [line.split(":")[:2] for line in said] == snapshot


def test_data_that_changed_fail_the_suite(stages: ModuleType, tmp_path: Path) -> None:
    for seed in range(3):
        earlier(tmp_path / "baseline", "task=logreg", seed=seed, data_hash="a" * 16)
        measured(tmp_path, "task=logreg", seed=seed, data_hash="b" * 16)
    said, (problem,) = stages.load("tiny").compare_with(tmp_path / "baseline", limit=0.05)
    assert said == [] and "data is aaaa" in problem


def test_of_a_baseline_that_has_the_study_its_other_runs_do_not_count(
    stages: ModuleType, tmp_path: Path
) -> None:
    for seed in range(3):
        measured(tmp_path / "baseline", "task=logreg", seed=seed)
        earlier(tmp_path / "baseline", "task=resnet20", seed=20 + seed)
        measured(tmp_path, "task=logreg", seed=30 + seed)
    said, problems = stages.load("tiny").compare_with(tmp_path / "baseline", limit=0.05)
    assert len(said) == 1 and problems == []
