"""What `mlbench results` prints, on folders that runs left."""

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sample
from driven import EPOCH_S, Run
from syrupy.assertion import SnapshotAssertion

import mlbench
from mlbench import results
from mlbench.config.errors import UserError
from mlbench.config.overrides import search_word
from mlbench.config.store_uri import default_store
from mlbench.record import events, reader, run_folders, study
from mlbench.record.build_record import build_record
from mlbench.results import store
from mlbench.terminal import run_table, selection
from mlbench.tracking.client import open_client

# MLflow 3.17 uses what SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two finished runs, one that reached its goal."""
    good = Run(tmp_path, name="2026-a", seed=1)
    good.validate(90.0)
    good.end("goal_reached")
    bad = Run(tmp_path, name="2026-b", seed=2)
    bad.validate(50.0)
    bad.end("goal_not_reached")
    return tmp_path


def test_list_is_a_table_of_one_line_a_run_and_json_for_scripts(root: Path, capsys: Any) -> None:
    assert results.main(["list", f"output_root={root}"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["run", "started", "at", "task"]
    assert first.split()[0] == "2026-a-1" and " logreg " in first and "goal_reached" in first
    assert second.split()[0] == "2026-b-2" and " logreg " in second and "goal_not_reached" in second
    assert first.index("goal_reached") == heading.index("status")
    assert results.main(["list", f"output_root={root}", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["time_to_accuracy"], first["best"]) == ("2026-a-1", 4.0, 90.0)
    assert second["time_to_accuracy"] is None


def test_list_marks_a_run_whose_log_contradicts_itself(root: Path, capsys: Any) -> None:
    """Its clock says that half of its epoch is missing."""
    log = root / "2026-a-1" / events.NAME
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["key"] == "validation":
            line["value"]["elapsed"] /= 2
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_record(events.read(log)).save(log.parent)
    assert results.main(["list", f"output_root={root}"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert "goal_reached, contradictory" in first and "contradictory" not in second
    assert results.main(["list", f"output_root={root}", "--json"]) == 0
    marked, clean = json.loads(capsys.readouterr().out)
    assert marked["status"] == "goal_reached" and marked["contradictions"] and clean["contradictions"] == []


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        ("results show study:two-cores", True),
        ("results rcp study:two-cores to={tmp}/rcps", True),
        ("predict two-cores task=logreg", True),
        ("results site {tmp}/there to={tmp}/site", False),  # its words are no study
    ],
)
def test_an_answer_says_which_records_it_lacks(
    command: str, lacks: bool, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sample.copy(tmp_path / "there")
    broken = next(root.glob("*-logreg-w1-25fca81f/record.json"))
    broken.write_text(broken.read_text()[:100])
    monkeypatch.chdir(tmp_path)
    name, *arguments = command.format(tmp=tmp_path).split()
    main = import_module(f"mlbench.{name}").main
    main([*arguments, f"output_root={root}"])
    said = capsys.readouterr().err.splitlines()
    way = f"mlbench results sync output_root={root} makes it again"
    assert any(line.startswith(f"{broken} is damaged ({way}") for line in said)
    assert any("1 of 24 planned runs" in line for line in said) == lacks


def test_list_names_the_runs_that_have_no_record(root: Path, capsys: Any) -> None:
    run = Run(root, name="2026-killed", seed=5)
    assert results.main(["list", f"output_root={root}"]) == 0
    shown = capsys.readouterr()
    assert run.folder.name not in shown.out
    assert f": {run.folder.name} (mlbench results sync " in shown.err


def test_show_takes_the_folder_of_a_run_as_the_tab_key_completes_it(root: Path, capsys: Any) -> None:
    name = next(path.parent.name for path in sorted(root.glob("*/record.json")))
    for word in (f"{root}/{name}/", f"{name}/", f"{root}/{name}"):
        assert results.main(["show", word, f"output_root={root}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run_id"] == name
        assert results.main(["list", word, f"output_root={root}", "--json"]) == 0
        assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [name]


def timed(root: Path, overrides: list[str], times: Sequence[float | None], *, first_seed: int = 10) -> None:
    """Leave one finished run a time; None is a run that missed its goal."""
    for number, seconds in enumerate(times, start=first_seed):
        name = "-".join(["run", *overrides]).replace("=", "")
        run = Run(root, *overrides, seed=number, name=name, epoch_s=seconds or EPOCH_S)
        run.validate(95.0 if seconds else 50.0)
        run.end("goal_reached" if seconds else "goal_not_reached")


FAST, SLOW = [10.0, 10.2, 9.9, 10.1], [12.0, 12.3, 11.9, 12.1]  # s


def test_list_selects(root: Path, capsys: Any, snapshot: SnapshotAssertion) -> None:
    timed(root, ["workers=3"], [10.0])
    timed(root, ["workers=4", "task=resnet20"], [10.0])

    def names(*arguments: str) -> list[str]:
        assert results.main(["list", *arguments, f"output_root={root}", "--json"]) == 0
        return [row["run"] for row in json.loads(capsys.readouterr().out)]

    assert len(names()) == 4
    assert names("workers=3,4") == ["run-workers3-a", "run-workers4-taskresnet20-a"]
    assert names("workers=3,4", "task=logreg") == ["run-workers3-a"]
    assert names("status=goal_not_reached") == names("b-2") == ["2026-b-2"]
    assert names("last", "workers=2") == ["2026-b-2"]  # the newest of those, not of all
    assert names("workers=3,5", "task=logreg,resnt20") == ["run-workers3-a"]
    assert results.main(["list", "workers=3,5", "task=logreg,resnt20", f"output_root={root}"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == snapshot
    assert results.main(["list", "source=mlbench-published", f"output_root={root}"]) == 2
    assert names("eligible=false") == names("eligible=False") == names()
    assert results.main(["list", "eligible=true", f"output_root={root}"]) == 2
    capsys.readouterr()
    assert names("task.batch_size=32") == names("task=resnet20") == ["run-workers4-taskresnet20-a"]
    key = reader.load(root / "run-workers3-a" / "record.json").key
    assert names(f"key:{key[:10]}") == ["run-workers3-a"]
    assert names("seed=10", "backend=gloo", "recipe=mlbench2020")[0] == "run-workers3-a"


def test_a_variant_of_a_task_is_found_by_its_own_name(root: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "cfg" / "task").mkdir(parents=True)
    (tmp_path / "cfg" / "task" / "small.yaml").write_text("defaults: [logreg, _self_]\nbatch_size: 64\n")
    run = Run(root, search_word(f"{tmp_path}/cfg"), "task=small", "division=open", name="2026-small", seed=3)
    run.validate(95.0)
    run.end("goal_reached")
    for word in ("task=small", "variant=small", "task=small,resnet20"):
        assert results.main(["list", word, f"output_root={root}", "--json"]) == 0
        assert [row["run"] for row in json.loads(capsys.readouterr().out)] == ["2026-small-3"]
    assert results.main(["list", "task=logreg", f"output_root={root}", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert results.main(["list", "task=smal", f"output_root={root}"]) == 2
    assert "did you mean small?" in capsys.readouterr().err


def test_compare_is_a_table_with_a_verdict(root: Path, capsys: Any) -> None:
    timed(root, ["workers=1"], FAST)
    timed(root, ["workers=3"], SLOW, first_seed=30)
    arguments = ["compare", "workers=1", "workers=3", "task=logreg", f"output_root={root}"]
    assert results.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "differs: workers 1 -> 3" in shown and "B is slower" in shown
    line = next(line for line in shown.splitlines() if line.startswith("time to accuracy"))
    assert line.split()[-1] == "independent" and "1.199" in line
    assert results.main([*arguments, "--fail-if-slower", "5%"]) == 1
    assert "than 5 %: yes" in capsys.readouterr().out
    assert results.main([*arguments, "--fail-if-slower=25%"]) == 0
    assert "than 25 %: not shown" in capsys.readouterr().out
    assert results.main([*arguments[:1], *arguments[2:0:-1], *arguments[3:], "--fail-if-slower", "5%"]) == 0
    assert "verdict: B is faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("task=gnmt workers=2 study:old", ["task=gnmt", "workers=2", "study:old"]),
        ("workers=2 last", ["workers=2", "last"]),
        ("task.args=--lr 0.05 --seed {seed} workers=2", ["task.args=--lr 0.05 --seed {seed}", "workers=2"]),
        ("task.args='--lr 0.05 x=1' key:01", ["task.args=--lr 0.05 x=1", "key:01"]),
    ],
)
def test_a_selection_in_one_word_is_split_as_a_shell_does(text: str, terms: list[str]) -> None:
    assert selection.terms(text) == terms


def test_compare_narrows_both_sides_by_any_term(root: Path, capsys: Any) -> None:
    timed(root, ["workers=1"], FAST)
    timed(root, ["workers=3"], SLOW, first_seed=30)
    where = f"output_root={root}"
    assert results.main(["compare", "workers=1", "workers=3", "study:nope", where]) == 2
    assert "third" not in capsys.readouterr().err
    assert results.main(["compare", "workers=1 'x", "workers=3", where]) == 2
    assert "close the quote" in capsys.readouterr().err


def test_studies_are_compared_point_by_point(root: Path, capsys: Any) -> None:
    for name, workers, times in (("old", 1, FAST), ("new", 3, SLOW)):
        timed(root, [f"workers={workers}"], times, first_seed=10 * workers)
        runs = [reader.load(path) for path in root.glob(f"run-workers{workers}-*/record.json")]
        point = study.StudyPoint(
            key=runs[0].key, overrides=(f"workers={workers}",), seeds=tuple(run.seed for run in runs)
        )
        plan = study.new(name, question="?").model_copy(update={"points": (point,)})
        study.save(plan, study.folder(root, name))
    assert results.main(["compare", "study:old", "study:new", f"output_root={root}", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert len(pair["a"]["runs"]) == len(pair["b"]["runs"]) == 4 and pair["verdict"] == "slower"
    assert results.main(["list", "study:lost", f"output_root={root}"]) == 2
    assert "studies: new, old" in capsys.readouterr().err


def test_compare_as_json_has_no_infinite_number(root: Path, capsys: Any) -> None:
    timed(root, ["workers=1"], FAST)
    timed(root, ["workers=3"], [None, None, None, None])
    arguments = ["compare", "workers=1", "workers=3", f"output_root={root}", "--json"]
    assert results.main([*arguments, "--fail-if-slower", "5%"]) == 1
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["verdict"] == "slower" and pair["regression"] is True
    assert pair["measures"]["time_to_accuracy"]["ratio"] == "infinite"
    assert pair["measures"]["time_to_accuracy"]["paired"] is True
    assert pair["differs"] == [{"field": "workers", "a": 1, "b": 3}] and len(pair["b"]["runs"]) == 4


def test_one_run_on_each_side_has_no_verdict_and_an_exit_code_of_its_own(
    root: Path, capsys: Any, snapshot: SnapshotAssertion
) -> None:
    timed(root, ["workers=1"], [1.0])
    timed(root, ["workers=3"], [9.0])
    arguments = ["compare", "workers=1", "workers=3", f"output_root={root}"]
    assert results.main(arguments) == 0
    capsys.readouterr()
    assert results.main([*arguments, "--fail-if-slower", "5%"]) == 3
    verdict, gate, *_ = capsys.readouterr().out.splitlines()
    assert (verdict, gate) == snapshot
    timed(root, ["workers=1", "hardware.threads_per_worker=2"], FAST, first_seed=50)
    timed(root, ["workers=3", "hardware.threads_per_worker=2"], SLOW, first_seed=60)
    assert results.main([*arguments, "--fail-if-slower", "5%"]) == 1, "slower in one pair counts first"
    capsys.readouterr()


def test_runs_that_were_all_disturbed_fail_no_gate_until_they_are_asked_for(
    root: Path, capsys: Any, snapshot: SnapshotAssertion
) -> None:
    for word, times, first in (("workers=1", FAST, 10), ("workers=3", SLOW, 30)):
        timed(root, [word], times, first_seed=first)
        for number, path in enumerate(sorted(root.glob(f"run-{word.replace('=', '')}-*/record.json"))):
            sentence = f"other processes used 1.{number} of the 2 CPUs of here while it trained"
            changes = {"disturbances": [sentence], "caveats": [sentence]}
            reader.load(path).model_copy(update=changes).save(path.parent)
    arguments = ["compare", "workers=1", "workers=3", "task=logreg", f"output_root={root}"]
    assert results.main([*arguments, "--fail-if-slower", "5%"]) == 3
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == snapshot
    assert sum(line.startswith("note:") for line in shown.splitlines()) == 1
    assert results.main([*arguments, "--fail-if-slower", "5%", "--with-disturbed"]) == 1
    assert "8 disturbed runs" in capsys.readouterr().out


def mlflow_runs(root: Path) -> list[str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mlbench")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return sorted(run.data.tags["mlbench.run_id"] for run in runs)


@pytest.mark.slow
def test_a_run_is_shown_by_its_id_in_mlflow_and_deleted_there_too(root: Path, capsys: Any) -> None:
    where = f"output_root={root}"
    assert results.main(["sync", where]) == 0
    assert mlflow_runs(root) == ["2026-a-1", "2026-b-2"]
    client = open_client(default_store(root), artifacts=None)
    run = client and client.find("2026-a-1")
    assert run is not None
    capsys.readouterr()
    assert results.main(["show", run.info.run_id, where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == "2026-a-1"
    assert results.main(["delete", "a-1", where, "--yes"]) == 0
    assert mlflow_runs(root) == ["2026-b-2"] and not (root / "2026-a-1").exists()
    assert results.main(["sync", where]) == 0
    assert mlflow_runs(root) == ["2026-b-2"]


def test_delete_asks_first(root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    arguments = ["delete", "status=goal_reached", f"output_root={root}"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert results.main(arguments) == 2  # nobody is there to be asked
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert results.main(arguments) == 0
    shown = capsys.readouterr()
    assert "2026-a-1" in shown.err
    assert (root / "2026-a-1").is_dir()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert results.main(arguments) == 0
    assert not (root / "2026-a-1").exists() and (root / "2026-b-2").is_dir()


def test_a_run_in_progress_is_not_deleted(root: Path, capsys: Any) -> None:
    holder = "import sys, time; from pathlib import Path; from mlbench.tracking import uploader; "
    holder += "uploader.lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", holder, str(root / "2026-a-1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"held\n"
        try:
            assert results.main(["delete", "a-1", f"output_root={root}", "--yes"]) == 2
            assert "2026-a-1 is still" in capsys.readouterr().err
            assert (root / "2026-a-1" / "record.json").exists()
        finally:
            driver.kill()
    assert results.main(["delete", "a-1", f"output_root={root}", "--yes"]) == 0


def test_delete_never_leaves_output_root(root: Path, tmp_path_factory: Any, capsys: Any) -> None:
    """A linked run folder is refused; links inside a run go, what they point to stays."""
    outside = tmp_path_factory.mktemp("outside")
    (root / "2026-a-1").rename(outside / "2026-a-1")
    (root / "2026-a-1").symlink_to(outside / "2026-a-1")
    (outside / "precious").mkdir()
    (outside / "precious" / "data").write_text("kept")
    (root / "2026-b-2" / "link").symlink_to(outside / "precious")
    assert results.main(["delete", "a-1", f"output_root={root}", "--yes"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert results.main(["delete", "b-2", f"output_root={root}", "--yes"]) == 0
    assert not (root / "2026-b-2").exists()
    assert (outside / "precious" / "data").read_text() == "kept"
    assert (outside / "2026-a-1" / "record.json").exists()


def test_a_record_that_names_another_folder_deletes_nothing(root: Path, capsys: Any) -> None:
    record = reader.load(root / "2026-a-1" / "record.json")
    record.model_copy(update={"run_id": "../precious"}).save(root / "2026-a-1")
    (root.parent / "precious").mkdir(exist_ok=True)
    assert results.main(["delete", "precious", f"output_root={root}", "--yes"]) == 2
    assert "another run" in capsys.readouterr().err
    assert (root.parent / "precious").is_dir() and (root / "2026-a-1").is_dir()


@pytest.mark.parametrize("arguments", [["delete", "a-1", "--yes"], ["sync"]])
def test_a_store_that_is_down_is_one_sentence_and_deletes_nothing(
    root: Path, capsys: Any, arguments: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    uri = f"http://me:secret@127.0.0.1:{port}"
    assert results.main([*arguments, f"output_root={root}", f"tracking_uri={uri}"]) == 2
    message = capsys.readouterr().err
    assert f"store http://127.0.0.1:{port} " in message
    assert "secret" not in message and (root / "2026-a-1" / "record.json").exists()


def test_points_of_one_side_are_told_apart_and_opposite_verdicts_are_said(root: Path, capsys: Any) -> None:
    for workers, first, second in ((1, FAST, SLOW), (2, SLOW, FAST)):
        timed(root, [f"workers={workers}", "hardware.threads_per_worker=1"], first)
        timed(root, [f"workers={workers}", "hardware.threads_per_worker=2"], second)
    assert results.main(["compare", "workers=1", "workers=2", "hardware.threads_per_worker=1,2",
                         f"output_root={root}"]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert shown.startswith("2 pairs with opposite") and "both with hardware.threads_per_worker=" in shown
    for threads in (1, 2):
        assert f"hardware.threads_per_worker={threads}, 4 runs" in shown


def test_a_short_id_names_one_run_alone() -> None:
    names = ["2026-a-1", "2026-b-1", "2026-b-2", "2026-c-21"]
    assert run_table.short_ids(names) == ["a-1", "b-1", "2", "21"]
    for name, short in zip(names, run_table.short_ids(names), strict=True):
        assert run_folders.matching(names, short) == [name]


def test_list_sorts_and_takes_the_newest(root: Path, capsys: Any) -> None:
    timed(root, ["workers=3"], [10.0, 5.0])

    def names(*arguments: str) -> list[str]:
        assert results.main(["list", *arguments, f"output_root={root}", "--json"]) == 0
        return [row["run"] for row in json.loads(capsys.readouterr().out)]

    in_order = names()
    assert names("last=2") == in_order[-2:]
    by_time = ["2026-a-1", "run-workers3-b", "run-workers3-a", "2026-b-2"]
    assert names("sort=time") == by_time, "a run without a time comes last"
    assert names("sort=-time") == [*reversed(by_time[:3]), by_time[3]]


def test_show_takes_last_the_short_id_and_any_part_of_a_name_that_no_other_has(
    root: Path, capsys: Any
) -> None:
    for word, run in (("last", "2026-b-2"), ("1", "2026-a-1"), ("2", "2026-b-2"), ("26-a", "2026-a-1")):
        assert results.main(["show", word, f"output_root={root}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run_id"] == run


def test_what_noise_left_out_is_counted_in_the_verdict_and_comes_back_on_request(
    root: Path, capsys: Any
) -> None:
    timed(root, ["workers=1"], FAST)
    timed(root, ["workers=3"], [*SLOW, 90.0], first_seed=30)
    noisy = root / "run-workers3-22" / "record.json"
    reason = "other processes used 1.5 of the 2 CPUs of here while it trained"
    changed = reader.load(noisy).model_copy(update={"disturbances": [reason], "caveats": [reason]})
    changed.save(noisy.parent)
    arguments = ["compare", "workers=1", "workers=3", "task=logreg", f"output_root={root}"]
    assert results.main(arguments) == 0
    shown = capsys.readouterr().out
    verdict = next(line for line in shown.splitlines() if line.startswith("verdict"))
    assert ", 1 run left out" in verdict
    assert "local, 4 runs" in shown and reason in shown
    assert results.main([*arguments, "--with-disturbed"]) == 0
    shown = capsys.readouterr().out
    assert "left out" not in shown and "local, 5 runs" in shown
    assert ", 1 disturbed run counted\n" in shown


def test_runs_that_say_that_they_are_of_a_study_are_its_runs(root: Path, capsys: Any) -> None:
    """Imported ones come without a plan; they were listed, and compare knew no such study."""
    timed(root, ["workers=1", "study=tutorial"], FAST)
    timed(root, ["workers=2", "study=tutorial"], SLOW, first_seed=30)
    where = f"output_root={root}"
    assert results.main(["list", "study:tutorial", where, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 8
    assert results.main(["compare", "study:tutorial workers=1", "study:tutorial workers=2", where]) == 0
    assert "verdict" in capsys.readouterr().out
    assert results.main(["compare", "workers=1", "workers=2", where, "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("- verdict: ") and "\n\n| median of | A | B | B / A |" in shown
    assert results.main(["list", "workers>1", where]) == 2
    assert "workers=2,4" in capsys.readouterr().err
    assert len(run_folders.study(root, "tutorial")) == 8
    assert results.main(["show", "study:tutorial", where]) == 0
    assert "time to accuracy" in capsys.readouterr().out
    assert results.main(["show", "study:tutorial", where, "--markdown"]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("### logreg mini, goal ")
        and "\n| --- |" in shown
        and " s (9.9 s to 10.2 s) |" in shown
    )
    assert results.main(["show", "study:tutorial", where, "--csv"]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["workers"], second["workers"]) == ("1", "2")
    assert [float(row["time_to_accuracy_s"]) for row in (first, second)] == [10.05, 12.05]


def test_a_folder_of_runs_that_is_not_there_is_told_in_a_notebook(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        mlbench.load_runs(tmp_path / "none")


def test_names_of_folders_give_no_orders_to_a_terminal(root: Path, capsys: Any) -> None:
    (root / "\x1b[2J-1").mkdir()
    (root / "\x1b[2J-1" / "record.json").write_text("{")
    assert results.main(["list", f"output_root={root}"]) == 0
    assert results.main(["delete", "\x1b[2J-1", f"output_root={root}", "--yes"]) == 0
    shown = capsys.readouterr()
    assert "-1/record.json is damaged" in shown.err and "\x1b" not in shown.err + shown.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_mlflow_is_being_started_leaves_no_server(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            servers.append(self)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(store, "subprocess", SimpleNamespace(Popen=Interrupted))
    assert store._serve([sys.executable, "-c", "import time; time.sleep(900)"], "its address") == 0
    assert servers[0].wait() == -signal.SIGTERM
