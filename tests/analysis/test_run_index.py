"""The index of runs: what it shows is what the records say, whatever happened to it or to them."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records

from mlbench import __version__, clock, results
from mlbench.analysis import run_index
from mlbench.analysis.run_index import FEW, NAME, SETTLED_NS, entries
from mlbench.record import events, provenance

RUNS = FEW + 20
OPENED = """
import sys
from mlbench import __version__, results
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
assert results.main(sys.argv[1:]) == 0
print(sum(path.endswith("record.json") for path in opened), file=sys.stderr)
"""


def save(root: Path, number: int, **changes: Any) -> str:
    """Write the record of a run; return its name."""
    name = f"2026-run-{number:04d}-{number:x}"
    (root / name).mkdir(exist_ok=True)
    record = records.record(run_id=name, seed=number, **{"time_to_accuracy": 10.0 + number} | changes)
    records.save(record, root / name)
    return name


def listed(root: Path) -> list[dict[str, Any]]:
    """Return what `results list --json` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "mlbench.results", "list", f"output_root={root}", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def times(root: Path) -> dict[str, float]:
    """Return the times that a listing shows, by run."""
    rows = {name: entry.row for name, entry in entries(root)[0].items()}
    return {name: row["time_to_accuracy"] for name, row in rows.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More runs than are read without an index, which nobody has listed."""
    root = tmp_path_factory.mktemp("original")
    for number in range(RUNS):
        save(root, number)
    return root


@pytest.fixture(scope="module")
def indexed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same runs with an index, made once they were old enough."""
    root = tmp_path_factory.mktemp("indexed") / "runs"
    shutil.copytree(original, root)
    newest = max(path.stat().st_ctime_ns for path in root.glob("*/record.json"))
    while time.time_ns() - newest <= SETTLED_NS:
        time.sleep(0.1)
    assert len(entries(root)[0]) == RUNS and (root / NAME).is_file()
    index = (root / NAME).read_bytes()
    yield root
    assert (root / NAME).read_bytes() == index, "a test left another index"


def run_name(number: int) -> str:
    return f"2026-run-{number:04d}-{number:x}"


def test_a_listing_with_an_index_opens_no_record_and_prints_the_same(indexed: Path) -> None:
    command = [sys.executable, "-c", OPENED, "list", f"output_root={indexed}", "workers=2"]
    with_index = subprocess.run(command, capture_output=True, text=True, check=True)
    assert with_index.stderr.split()[-1] == "0"
    index = (indexed / NAME).read_bytes()
    (indexed / NAME).unlink()
    without = subprocess.run(command, capture_output=True, text=True, check=True)
    assert without.stderr.split()[-1] == str(RUNS)
    assert with_index.stdout == without.stdout
    assert with_index.stdout.count("\n") == RUNS + 1
    (indexed / NAME).write_bytes(index)


def test_an_edited_record_shows_its_new_number_though_size_and_time_are_the_old_ones(indexed: Path) -> None:
    path = indexed / run_name(5) / "record.json"
    before = path.stat()
    text = path.read_text()
    path.write_text(text.replace('\n  "seed": 5,', '\n  "seed": 6,'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert entries(indexed)[0][run_name(5)].fields["seed"] == 6


def test_a_deleted_run_is_gone_and_an_added_one_is_there(indexed: Path) -> None:
    shutil.rmtree(indexed / run_name(7))
    new = save(indexed, 5000, time_to_accuracy=1.5)
    shown = {row["run"]: row["time_to_accuracy"] for row in listed(indexed)}
    assert run_name(7) not in shown and shown[new] == 1.5
    shutil.rmtree(indexed / new)


def test_a_log_counts_where_its_record_calls_itself_official(original: Path, tmp_path: Path) -> None:
    """Such a record is official only if its log says the same; here it has none at first, then junk."""
    root = tmp_path / "runs"
    shutil.copytree(original, root)
    save(root, 3, eligible=True, official_reasons=[], mlbench=__version__)
    while time.time_ns() - (root / run_name(3) / "record.json").stat().st_ctime_ns <= SETTLED_NS:
        time.sleep(0.1)
    first = entries(root)[0]
    assert not first[run_name(3)].fields["eligible"] and len(run_index._read(root / NAME)) == RUNS
    for number in (3, 4):
        (root / run_name(number) / events.NAME).write_text("no log\n")
    stored, current = run_index._read(root / NAME), entries(root)[0]
    assert {name for name in current if current[name].state != stored[name].state} == {run_name(3)}


def test_a_damaged_record_is_named_and_shows_no_number(indexed: Path, capsys: Any) -> None:
    path = indexed / run_name(8) / "record.json"
    path.write_text(path.read_text()[:200])
    assert results.main(["list", f"output_root={indexed}", "workers=2"]) == 0
    shown = capsys.readouterr()
    assert run_name(8) not in shown.out and str(path) in shown.err


def test_a_record_under_another_name_is_named(indexed: Path, capsys: Any) -> None:
    other = indexed / "2026-run-other-9"
    shutil.copytree(indexed / run_name(9), other)
    assert results.main(["list", f"output_root={indexed}", "other"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and f" another run, {run_name(9)}" in shown.err
    shutil.rmtree(other)


def test_a_record_that_was_just_written_is_not_kept_in_an_index(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    shutil.copytree(original, root)
    late = root / run_name(3) / "record.json"
    while time.time_ns() - (root / run_name(RUNS - 1) / "record.json").stat().st_ctime_ns <= SETTLED_NS:
        time.sleep(0.1)
    late.write_text(late.read_text())
    written_s = late.stat().st_ctime_ns / 1e9
    monkeypatch.setattr(clock, "system", lambda: written_s + 0.9 * SETTLED_NS / 1e9)
    entries(root)
    stored = run_index._read(root / NAME)
    assert run_name(3) not in stored and len(stored) == RUNS - 1


@pytest.mark.parametrize("damage", ["cut", "byte", "zeros", "empty", "no table"])
def test_a_torn_index_is_none(indexed: Path, damage: str) -> None:
    whole = (indexed / NAME).read_bytes()
    offset = whole.index(b"30.0")  # a time: a changed digit would still be JSON
    damaged = {
        "cut": whole[: len(whole) // 2],
        "byte": whole[:offset] + b"9" + whole[offset + 1 :],
        "zeros": whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
        "empty": b"",
        "no table": whole.replace(b"CREATE TABLE run", b"CREATE TABLE nur"),
    }[damage]
    assert damaged != whole
    (indexed / NAME).write_bytes(damaged)
    try:
        assert run_index._read(indexed / NAME) == {}
        assert times(indexed)[run_name(20)] == 30.0
    finally:
        (indexed / NAME).write_bytes(whole)


def test_an_index_that_other_sources_of_mlbench_wrote_does_not_count(indexed: Path) -> None:
    """Another version may name, round or compute a column otherwise."""
    whole = (indexed / NAME).read_bytes()
    sources = provenance.sources().encode()
    assert sources in whole
    (indexed / NAME).write_bytes(whole.replace(sources, sources[::-1], 1))
    try:
        assert run_index._read(indexed / NAME) == {}
    finally:
        (indexed / NAME).write_bytes(whole)


@pytest.mark.slow
def test_two_commands_at_once_write_one_whole_index(original: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(original, root)
    newest = max(path.stat().st_ctime_ns for path in root.glob("*/record.json"))
    while time.time_ns() - newest <= SETTLED_NS:
        time.sleep(0.1)
    command = [sys.executable, "-m", "mlbench.results", "list", f"output_root={root}"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    tables = [process.communicate()[0] for process in both]
    assert tables[0] == tables[1] and tables[0].count("\n") == RUNS + 1
    assert [path.name for path in root.iterdir() if path.is_file()] == [NAME]
    assert len(run_index._read(root / NAME)) == RUNS


def test_runs_come_and_go_while_a_listing_reads(original: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(original, root)
    template = (root / run_name(0) / "record.json").read_text()
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for number in range(6000, 6010):
                folder = root / run_name(number)
                folder.mkdir()
                text = template.replace(run_name(0), folder.name).replace('"seed": 7', f'"seed": {number}')
                (folder / "record.json.part").write_text(text)
                (folder / "record.json.part").replace(folder / "record.json")
            for number in range(6000, 6010):
                shutil.rmtree(root / run_name(number))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            shown, complaints = entries(root)
            assert {run_name(number) for number in range(RUNS)} <= set(shown) and not complaints
    finally:
        over.set()
        thread.join()
    assert len(entries(root)[0]) == RUNS
