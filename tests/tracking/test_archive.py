"""What leaves as a zip: readable by the original's tools, by MLPerf's log readers, and by us again."""

import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
import zips
from driven import BEGUN, EPOCH_S, STARTED, Run
from zips import with_store

from mlbench import results
from mlbench.config.errors import UserError
from mlbench.launch import cache
from mlbench.record import events, reader
from mlbench.record.build_record import build_record
from mlbench.record.record import Record
from mlbench.report import mllog as mlperf_log
from mlbench.tasks.resnet50.torch import batches
from mlbench.tracking import archive, sync

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
SECRET = "hunter2"
export = partial(archive.export, mllog=mlperf_log.text)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run on two workers that reached its goal at the second validation."""
    words = ("task=resnet20", "task.batch_size=128", "goal=80", "division=open")
    run = Run(tmp_path / "runs", *words, seed=7)
    run.validate(70.0)
    run.validate(81.5)
    run.end("goal_reached")
    return run


def exported(run: Run, folder: Path) -> dict[str, str]:
    with zipfile.ZipFile(export(run.folder, folder / "run.zip")) as opened:
        return {name: opened.read(name).decode() for name in opened.namelist()}


def test_everything_of_ours_is_in_it(run: Run, tmp_path: Path) -> None:
    files = exported(run, tmp_path)
    whole = reader.load(run.folder / "record.json")
    assert Record.model_validate_json(files["record.json"]) == whole
    assert yaml.safe_load(files["config.yaml"]) == whole.experiment.plain()
    assert [json.loads(line) for line in files["events.jsonl"].splitlines()] == events.read(run.log)
    provenance = json.loads(files["provenance.json"])
    assert provenance["command"] == whole.command and provenance["seed"] == 7


def mllog(files: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in files["mllog.txt"].splitlines()[1:]]


def test_mllog_lines_tell_the_course(run: Run, tmp_path: Path) -> None:
    files = exported(run, tmp_path)
    assert "MLPerf submission" in files["mllog.txt"].splitlines()[0]
    lines = mllog(files)
    assert all(
        line.keys() == {"namespace", "time_ms", "event_type", "key", "value", "metadata"} for line in lines
    )
    assert all({"file", "lineno"} <= line["metadata"].keys() for line in lines)
    stamps = [line["time_ms"] for line in lines]
    assert stamps == sorted(stamps)
    first = {line["key"]: line for line in reversed(lines)}
    assert first["submission_benchmark"]["value"] == "resnet20_mini"
    assert first["seed"]["value"] == 7
    batch = run.experiment.plain()["task"]["batch_size"]
    assert first["global_batch_size"]["value"] == 2 * batch
    assert first["init_start"]["time_ms"] == BEGUN * 1000
    assert first["init_stop"]["time_ms"] == first["run_start"]["time_ms"] == STARTED * 1000
    accuracies = [line for line in lines if line["key"] == "eval_accuracy"]
    assert [(a["value"], a["metadata"]["epoch_num"]) for a in accuracies] == [(0.7, 1.0), (0.815, 2.0)]
    assert accuracies[1]["time_ms"] == (STARTED + 2 * EPOCH_S) * 1000
    assert first["eval_start"]["time_ms"] == (STARTED + EPOCH_S - 0.5) * 1000  # segments say 0.5 s
    stop = first["run_stop"]
    assert stop["event_type"] == "INTERVAL_END" and stop["metadata"]["status"] == "success"
    for key in ("epoch_start", "epoch_stop", "eval_start", "eval_stop"):
        assert sum(line["key"] == key for line in lines) == 2


@pytest.mark.parametrize(("workers", "batch"), [(8, 2048), (32, 8192), (64, 8192), (100, 8100)])
def test_the_global_batch_of_resnet50_grows_to_its_limit(workers: int, batch: int, tmp_path: Path) -> None:
    """It said 64 times 256 at 64 workers, which have 128 images each."""
    run = Run(tmp_path / "runs", "task=resnet50", "scale=official", f"workers={workers}", seed=9)
    run.end("failed")
    (line,) = [line for line in mllog(exported(run, tmp_path)) if line["key"] == "global_batch_size"]
    config: Any = run.experiment.task
    assert line["value"] == batch == batches(config, workers)[0] * workers


@pytest.mark.parametrize(("values", "status"), [([50.0], "goal_not_reached"), ([], "failed")])
def test_a_run_without_a_goal_reached_has_no_result_and_is_no_success(
    tmp_path: Path, values: list[float], status: str
) -> None:
    run = Run(tmp_path / "runs", seed=9)
    for value in values:
        run.validate(value)
    run.end(status)
    files = exported(run, tmp_path)
    assert "result.txt" not in files and mllog(files)[-1]["key"] == "run_stop"
    assert mllog(files)[-1]["metadata"]["status"] == "aborted"
    assert mllog(files)[-1]["metadata"]["mlbench_status"] == status


def test_a_run_without_its_log_is_refused_with_the_way_out(tmp_path: Path, as_stored: Any) -> None:
    run = Run(tmp_path / "runs", seed=9)
    run.end("failed", error="out of memory")
    run.log.unlink()
    with pytest.raises(UserError, check=as_stored):
        exported(run, tmp_path)


def test_nothing_in_it_is_a_password(tmp_path: Path) -> None:
    uri = f"http://me:{SECRET}@127.0.0.1:1"
    run = Run(tmp_path / "runs", f"tracking_uri={uri}")
    run.validate(50.0)
    run.end("failed", error=f"could not reach {uri}")
    assert SECRET in (run.folder / "record.json").read_text()  # else this test shows nothing
    files = exported(run, tmp_path)
    assert all(SECRET not in text for text in files.values())


def test_a_sealed_run_whose_addresses_are_taken_out_contradicts_nothing(tmp_path: Path) -> None:
    """Where it was tracked stands in its log's first line, and its checksum is over that line, too."""
    uri = f"http://me:{SECRET}@127.0.0.1:1"
    run = Run(tmp_path / "runs", f"tracking_uri={uri}", seed=7)
    run.validate(95.0)
    run.end("goal_reached", error=f"could not reach {uri}")
    run.seal()
    path = export(run.folder, tmp_path / "run.zip")
    ((_, record, imported),) = archive.load([path])
    assert isinstance(record, Record) and record.contradictions == [] and SECRET not in json.dumps(imported)
    imported[1]["value"]["elapsed"] /= 2
    assert any("checksum differs" in contradiction for contradiction in build_record(imported).contradictions)


def test_equal_runs_make_equal_zips_and_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    first, second = export(run.folder, tmp_path / "a.zip"), export(run.folder, tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        export(run.folder, first)
    with pytest.raises(UserError, match="cannot write"):
        export(run.folder, tmp_path / "nowhere" / "a.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip", "runs"]


def unmarked(record: Record) -> Record:
    """Return a record without the mark that it was imported, which it must have."""
    assert record.imported and not record.eligible and record.official_reasons[-1].startswith("imported")
    return record.model_copy(update={"imported": False, "official_reasons": record.official_reasons[:-1]})


@pytest.mark.slow
@pytest.mark.parametrize("step", ["save", "replace"])
def test_an_import_that_was_killed_is_finished_by_the_next(
    run: Run, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It left a folder without a record, before its log was whole or after."""
    path = export(run.folder, tmp_path / "run.zip")
    elsewhere = with_store(tmp_path / "elsewhere", empty_store)
    arguments = ["import", str(path), f"output_root={elsewhere}"]

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*((Record, "save") if step == "save" else (Path, "replace")), kill)
        assert results.main(arguments) == 130
    assert not (elsewhere / run.folder.name / "record.json").exists()
    assert results.main(arguments) == 0
    record = reader.load(elsewhere / run.folder.name / "record.json")
    assert unmarked(record) == reader.load(run.folder / "record.json")


def test_an_export_can_be_imported_elsewhere_once(
    run: Run, tmp_path: Path, empty_store: Path, capsys: Any
) -> None:
    target, elsewhere = tmp_path / "zips", with_store(tmp_path / "elsewhere", empty_store)
    root = f"output_root={run.folder.parent}"
    assert results.main(["export", run.folder.name, root, f"to={target}"]) == 0
    assert results.main(["import", str(target), f"output_root={elsewhere}"]) == 0
    assert results.main(["import", str(target), f"output_root={elsewhere}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 present"
    copy = elsewhere / run.folder.name
    assert unmarked(reader.load(copy / "record.json")) == reader.load(run.folder / "record.json")
    log = events.read(copy / events.NAME)
    assert log[1:] == events.read(run.log)[1:]
    assert log[0]["value"]["imported"]["file"] == f"{run.folder.name}.zip"
    log[0]["value"]["imported"] = None
    assert log[0] == events.read(run.log)[0]
    # Exported again, the measurement is the same; only where it came from is added.
    again = export(copy, tmp_path / "again.zip")
    ((_, twice, _),) = archive.load([again])
    assert isinstance(twice, Record) and unmarked(twice) == reader.load(run.folder / "record.json")


def test_an_imported_run_is_shown_but_never_reused(run: Run, tmp_path: Path, empty_store: Path) -> None:
    """Nobody knows on which machine it was measured, so it must not stand for a run on this one."""
    elsewhere = with_store(tmp_path / "elsewhere", empty_store)
    wanted = run.experiment.model_copy(update={"output_root": elsewhere, "seed": 7})
    path = export(run.folder, tmp_path / "run.zip")
    assert results.main(["import", str(path), f"output_root={elsewhere}"]) == 0
    assert cache.find_cached(wanted, data=None) is None
    with_store(run.folder.parent, empty_store)
    own = run.experiment.model_copy(update={"output_root": run.folder.parent, "seed": 7})
    assert [result.outcome for result in sync.sync_runs(run.folder.parent, None)] == ["uploaded"]
    assert cache.find_cached(own, data=None) is not None


def test_an_imported_run_s_own_store_is_never_asked(tmp_path: Path, empty_store: Path, capsys: Any) -> None:
    """It may be somebody else's server, and `delete` would delete there."""
    theirs = Run(tmp_path / "runs", "tracking_uri=http://127.0.0.1:9")
    theirs.validate(90.0)
    theirs.end("goal_reached")
    path = export(theirs.folder, tmp_path / "run.zip")
    elsewhere = with_store(tmp_path / "elsewhere", empty_store)
    root = f"output_root={elsewhere}"
    assert results.main(["import", str(path), root]) == 0
    assert results.main(["sync", root]) == 0
    assert results.main(["delete", theirs.folder.name, "--yes", root]) == 0
    assert not (elsewhere / theirs.folder.name).exists()


def rewritten(files: dict[str, str], **changes: Any) -> dict[str, str]:
    whole = json.loads(files["record.json"]) | changes
    return files | {"record.json": json.dumps(whole)}


def relogged(files: dict[str, str], number: int, **changes: Any) -> dict[str, str]:
    """Change the value of one of the log's events."""
    log = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    log[number]["value"] |= changes
    return files | {"events.jsonl": "".join(json.dumps(event) + "\n" for event in log)}


def test_a_changed_export_is_refused(run: Run, tmp_path: Path, capsys: Any) -> None:
    files = exported(run, tmp_path)
    headless = files["events.jsonl"].split("\n", 1)[1]
    experiment = run.experiment.plain()
    task = {name: value for name, value in experiment["task"].items() if name != "lr"}
    untimed = experiment | {"backend": experiment["backend"] | {"timeout_s": None}}
    unknown = {"experiment": experiment | {"task": experiment["task"] | {"name": "common.arrow"}}}
    cases = [
        ("is not a run name", rewritten(files, run_id="../../home")),
        ("changed: run_id of", rewritten(files, run_id="another-7")),
        ("changed: experiment of", rewritten(files, experiment=experiment | {"workers": 3})),
        ("changed: time_to_accuracy of", rewritten(files, time_to_accuracy=0.001)),
        ("changed: nodes of", rewritten(files, nodes=[{"hostname": "n", "usable_cpus": 64}])),
        ("changed: eligible of", rewritten(files, eligible=True)),
        ("check it with mlbench 9.9", relogged(files, 0, mlbench="9.9.0")),
        ("record.json was changed \\(workers\\)", rewritten(files, workers="many")),
        ("changed \\(status\\)", rewritten(files, status="excellent")),
        ("changed \\(experiment.task\\)", rewritten(files, experiment={})),
        ("unknown task \\(common.arrow\\)", relogged(rewritten(files, **unknown), 0, **unknown)),
        ("changed \\(experiment.hardware\\)", rewritten(files, experiment=experiment | {"hardware": 7})),
        ("changed \\(experiment.task.lr\\)", rewritten(files, experiment=experiment | {"task": task})),
        ("changed \\(experiment.backend.timeout_s\\)", rewritten(files, experiment=untimed)),
        ("was changed", relogged(files, 1, metrics=None)),
        ("is damaged", relogged(files, 0, begun="yesterday")),
        ("changed: ended_at of", rewritten(files, ended_at="yesterday")),
        ("NaN is not a number", rewritten(files, wall=float("nan"))),
        ("is not the complete log", files | {"events.jsonl": headless}),
        ("a line that is not an event", files | {"events.jsonl": "7\n"}),
        ("changed: official_reasons of", rewritten(files, official_reasons=[])),
    ]
    for number, (reason, content) in enumerate(cases):
        path = zips.write(tmp_path / f"{number}.zip", content)
        ((_, error, _),) = archive.load([path])
        assert isinstance(error, UserError), (number, reason)
        with pytest.raises(UserError, match=reason):
            raise error
    elsewhere = tmp_path / "elsewhere"
    assert results.main(["import", str(tmp_path / "10.zip"), f"output_root={elsewhere}"]) == 2
    assert "10.zip is not" in capsys.readouterr().err
    assert not elsewhere.exists()
