"""More ways to an official result that is none: files that are swapped, copied, edited, or stand in front."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import forgeries
import installed
import pyarrow as pa
import pytest
from conftest import ROOT
from driven import sealed
from forgeries import OFFICIAL, folder_of, of, record_fields, said_of
from ranks import run_ranks
from records import record, save
from syrupy.assertion import SnapshotAssertion
from test_build_record import FROZEN, log
from test_official import cards, prepared

import mlbench
from mlbench.analysis import run_index
from mlbench.config import compose, plugins
from mlbench.config.errors import UserError
from mlbench.datasets import arrow, verify
from mlbench.launch.worker_process import watched_data
from mlbench.record import events, official
from mlbench.record.build_record import build_record
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.training.worker import Worker


@pytest.fixture(autouse=True)
def released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let version and frozen reference be those of the records here."""
    monkeypatch.setattr(mlbench, "__version__", FROZEN.version)
    monkeypatch.setattr(official, "reference", lambda version="": FROZEN)


def not_official(folder: Path) -> Record:
    record = load(folder / "record.json")
    shown = " ".join(cards(record).split())
    assert not record.eligible and "eligible yes" not in shown and "edited: " in shown
    return record


def test_a_record_is_official_beside_its_own_log(tmp_path: Path) -> None:
    assert load(folder_of(tmp_path, "run", OFFICIAL) / "record.json").eligible
    assert not load(folder_of(tmp_path, "mini") / "record.json").eligible


def test_a_later_version_judges_the_official_results_of_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, "run", OFFICIAL)
    monkeypatch.setattr(mlbench, "__version__", "0.3.0.dev0")
    assert load(folder / "record.json").eligible
    record_fields(train_time=0.001)(folder)
    assert "train_time" in said_of(folder)[0] and "mlbench 0.2.0" in said_of(folder)[0]


def test_the_script_s_table_has_a_reason_for_every_forgery(capsys: pytest.CaptureFixture[str]) -> None:
    """But for a log that somebody has written anew as a whole."""
    assert forgeries.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100 and "OFFICIAL" not in " ".join(lines)
    assert lines[-1].endswith(": cpu_model, seed")


@pytest.mark.parametrize(
    ("cluster", "before", "allowed"), [("attached", 0, True), ("attached", 1, False), ("local", 0, False)]
)
def test_a_submission_is_told_after_the_end_of_a_run_that_can_have_one(
    cluster: str, before: int, allowed: bool
) -> None:
    """The line stands outside the checksum, and makes an attempt that failed one that counts nowhere."""
    lines = sealed(log(compose.compose([f"cluster={cluster}"])))
    value = {"name": "r", "namespace": "n", "command": "python -m mlbench.run"}
    lines.insert(len(lines) - before, {**lines[-1], "key": "submission", "value": value, "metadata": {}})
    told = "its submission event does not fit the run"
    assert (told in build_record(lines).contradictions) is not allowed


def test_a_log_whose_lines_were_edited_gives_another_record(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "run", OFFICIAL)
    text = (folder / events.NAME).read_text()
    assert '"elapsed"' in text
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if line["key"] == "validation":
            line["value"]["elapsed"] /= 10
    (folder / events.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    not_official(folder)


def test_a_file_that_was_away_for_a_moment_is_another_state(tmp_path: Path) -> None:
    """Swapped after it was verified, and put back before the end: neither size nor time tells, but ctime."""
    folder = prepared(tmp_path)
    before, path = verify.states(folder), folder / "train.arrow"
    times = path.stat()
    path.rename(folder / "away")
    shutil.copy(folder / "away", path)
    assert verify.states(folder) != before
    (folder / "away").replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert verify.states(folder) != before


def test_rows_are_counted_in_the_file_and_not_read_in_the_manifest(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    values = json.loads((folder / arrow.MANIFEST).read_text())
    values["splits"]["train"]["rows"] = 400_000
    (folder / arrow.MANIFEST).write_text(json.dumps(values))
    assert verify.content(folder).data_rows == {"train": 4}


def test_other_data_of_the_same_origin_has_another_hash(tmp_path: Path) -> None:
    """The manifest's own values agree; only what was written differs."""

    def of(name: str, value: float) -> str:
        def write(writer: arrow.DatasetWriter) -> None:
            writer.write("train", [pa.record_batch({"x": pa.array([value])})])

        return arrow.manifest_hash(arrow.write_dataset(tmp_path / name, write, manifest={"name": "data"}))

    assert of("one", 1.0) == of("same", 1.0) != of("other", 2.0)


def test_a_link_to_other_data_is_hashed_like_a_file(tmp_path: Path, as_stored: Any) -> None:
    folder = prepared(tmp_path)
    verify.content(folder)
    path, other = folder / "train.arrow", tmp_path / "other.arrow"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    other.write_bytes(content)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(UserError, check=as_stored):
        verify.content(folder)


def test_a_folder_that_is_exchanged_while_the_task_opens_it_shows_at_the_end(tmp_path: Path) -> None:
    """No file is touched: a link to the folder points elsewhere for a moment."""
    folder, link, other = prepared(tmp_path), tmp_path / "link", tmp_path / "copy"
    link.symlink_to(folder)
    shutil.copytree(folder, other)
    _, before = watched_data(link, Worker())
    arrow.read_split(link, "train")
    assert not verify.changed(link, before)
    link.unlink()
    link.symlink_to(other)
    arrow.read_split(link, "train")
    link.unlink()
    link.symlink_to(folder)
    assert verify.states(link) == before and verify.changed(link, before)
    assert not verify.changed(link, verify.watch(link)), "the next run begins anew"


def test_a_log_without_its_checksum_and_lines_after_it_are_told(snapshot: SnapshotAssertion) -> None:
    whole = log(compose.compose([OFFICIAL]))
    of(whole, "run_result")["metadata"] = {}
    assert build_record(whole).official_reasons == snapshot
    whole = log(compose.compose([OFFICIAL]))
    for position in (-1, len(whole)):
        longer = [*whole[:position], of(whole, "validation", -1), *whole[position:]]
        assert any(
            "lines were added" in contradiction for contradiction in build_record(longer).contradictions
        )


SOURCES = "from mlbench.record import provenance as p; print(p.sources(), p.git(p.CHECKOUT).dirty)"


def test_an_edit_that_git_was_told_to_overlook_changes_the_sources(tmp_path: Path) -> None:
    """The same length, the same times, and `assume-unchanged`."""
    installed.sources(tmp_path)

    def git(*arguments: str) -> None:
        settings = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def state() -> list[str]:
        code = [sys.executable, "-B", "-c", SOURCES]
        return subprocess.run(
            code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    before = state()
    assert before[1] == "False"
    path = tmp_path / "mlbench" / "training" / "loop.py"
    text, times = path.read_text(), path.stat()
    git("update-index", "--assume-unchanged", "mlbench/training/loop.py")
    path.write_text(text.replace("CHECK_EVERY = 500", "CHECK_EVERY = 900"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = state()
    assert after[1] == "False" and after[0] != before[0]
    recipe = tmp_path / "conf" / "task" / "logreg.yaml"
    git("update-index", "--assume-unchanged", "conf/task/logreg.yaml")
    recipe.write_text(recipe.read_text().replace("official: 89", "official: 60"))
    assert state()[0] not in (before[0], after[0])


def test_a_package_cannot_stand_in_front_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package_in_front").mkdir()
    (tmp_path / "package_in_front" / "logreg.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("logreg", "package_in_front.logreg", "mlbench.tasks")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) if group == "mlbench.tasks" else ())
    with pytest.raises(UserError, match="mlbench.tasks.logreg .* package_in_front.logreg"):
        plugins.load("task", "logreg")


def test_a_cheaper_machine_in_a_folder_of_one_s_own_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    text = (ROOT / "conf/hardware/gcp_n1_t4.yaml").read_text()
    (tmp_path / "hardware/mine.yaml").write_text(text.replace("name: gcp_n1_t4", "name: mine"))
    overrides = [OFFICIAL, f"hydra.searchpath=[{tmp_path}]", "hardware=mine"]
    record = build_record(log(compose.compose(overrides)), FROZEN)
    assert not record.eligible and any("hardware is mine" in reason for reason in record.official_reasons)
    (tmp_path / "division").mkdir()
    (tmp_path / "division/closed.yaml").write_text("name: closed\nfree: ['*']\ndeclared: []\nfixed: []\n")
    with pytest.raises(UserError, match="division=closed is both"):
        compose.compose([*overrides, "division=closed"])
    with pytest.raises(UserError, match="task.batch_size is 4096.*R1"):
        compose.compose([*overrides, "task.batch_size=4096"])


def of_its_own(worker: Worker, root: Path) -> str:
    """Look at a data set that every rank has prepared for itself; return what is said against it."""

    def write(writer: arrow.DatasetWriter) -> None:
        writer.write("train", [pa.record_batch({"x": pa.array([float(worker.rank)])})])

    folder = arrow.write_dataset(root / str(worker.rank), write, manifest={"name": "data"})
    try:
        watched_data(folder, worker)
    except UserError as error:
        return str(error)
    return ""


def test_nodes_that_hold_different_data_are_told_before_they_train(tmp_path: Path) -> None:
    """Each agrees with its own manifest, and only rank 0's stands in the record."""
    messages = run_ranks(of_its_own, 2, tmp_path)
    assert all("different data sets" in message for message in messages)


def test_a_file_that_is_swapped_while_it_is_checked_shows_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digest = prepared(tmp_path), arrow.digest

    def swap(path: Path) -> str:
        checksum = digest(path)
        if not (folder / "away").exists():
            path.rename(folder / "away")
            shutil.copy(folder / "away", path)
        return checksum

    monkeypatch.setattr(verify.arrow, "digest", swap)
    data, before = watched_data(folder, Worker())
    assert data is not None and verify.states(folder) != before


def test_a_listing_from_the_index_checks_an_official_record_against_a_log_that_changed(
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path, "r", OFFICIAL)
    for number in range(run_index.FEW):
        name = f"other-{number}-7"
        (tmp_path / name).mkdir()
        save(record(run_id=name), tmp_path / name)
    newest = max(path.stat().st_ctime_ns for path in tmp_path.glob("*/record.json"))
    while time.time_ns() - newest <= run_index.SETTLED_NS:
        time.sleep(0.1)
    assert run_index.entries(tmp_path)[0]["r"].fields["eligible"] is True
    assert run_index._read(tmp_path / run_index.NAME)["r"].fields["eligible"] is True
    path = folder / events.NAME
    path.write_text(path.read_text().replace('"seed": 1,', '"seed": 2,'))
    assert run_index.entries(tmp_path)[0]["r"].fields["eligible"] is False
    path.unlink()
    assert run_index.entries(tmp_path)[0]["r"].fields["eligible"] is False
