"""More ways to an official result that is none: files that are swapped, copied, edited, or stand in front."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT
from ranks import run_ranks
from records import record, save
from test_build_record import FROZEN, log, phase_times, sealed
from test_official import OFFICIAL, cards, prepared

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
    """Let the frozen reference be that of the records here."""
    monkeypatch.setattr(official, "reference", lambda: FROZEN)


def folder_of(root: Path, name: str, *words: str) -> Path:
    """Write the folder of a run: its event log, and the record that follows from it."""
    folder = root / name
    folder.mkdir()
    written = log(compose.compose(list(words)))
    lines = [json.dumps(event) + "\n" for event in written]
    (folder / events.NAME).write_text("".join(lines))
    build_record(events.read(folder / events.NAME)).save(folder)
    return folder


def not_official(folder: Path) -> Record:
    record = load(folder / "record.json")
    shown = " ".join(cards(record).split())
    assert not record.eligible and "eligible yes" not in shown and "edited: " in shown
    return record


def test_a_record_is_official_beside_its_own_log(tmp_path: Path) -> None:
    assert load(folder_of(tmp_path, "run", OFFICIAL) / "record.json").eligible
    assert not load(folder_of(tmp_path, "mini") / "record.json").eligible


def test_a_record_that_was_edited_is_not_official(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "run")
    values = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(values | {"eligible": True, "official_reasons": []}))
    assert "of the record and of the event log differ" in not_official(folder).official_reasons[0]


def test_an_official_record_of_a_version_that_is_not_here_is_checked_by_nobody(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "run")
    values = json.loads((folder / "record.json").read_text())
    edit = {"eligible": True, "official_reasons": [], "mlbench": "0.2.99"}
    (folder / "record.json").write_text(json.dumps(values | edit))
    found = load(folder / "record.json")
    assert not found.eligible and "only mlbench 0.2.99" in found.official_reasons[0]


@pytest.mark.parametrize("words", [(), (OFFICIAL,)], ids=["mini", "official"])
def test_a_better_time_is_noticed_in_any_record(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = folder_of(tmp_path, "run", *words)
    values = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(values | {"time_to_accuracy": 1.0}))
    with pytest.raises(UserError, match="its time_to_accuracy is 1"):
        load(folder / "record.json")


def test_an_official_record_that_was_copied_into_another_run_s_folder_is_not(tmp_path: Path) -> None:
    true, false = folder_of(tmp_path, "true", OFFICIAL), folder_of(tmp_path, "false")
    shutil.copy(true / "record.json", false / "record.json")
    not_official(false)
    (false / events.NAME).unlink()
    assert "No such file" in not_official(false).official_reasons[0]


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


def test_a_link_to_other_data_is_hashed_like_a_file(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    verify.content(folder)
    path, other = folder / "train.arrow", tmp_path / "other.arrow"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    other.write_bytes(content)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(UserError, match="is not what was prepared"):
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


Log = list[dict[str, Any]]


def of(log: Log, key: str, place: int = 0) -> dict[str, Any]:
    """Return one of the events with this key."""
    return [event for event in log if event["key"] == key][place]


def value(key: str, place: int = 0, **changes: Any) -> Callable[[Log], None]:
    """Return an edit of the value of an event."""
    return lambda log: of(log, key, place)["value"].update(changes)


def rank(number: int, place: int = 0, **changes: Any) -> Callable[[Log], None]:
    """Return an edit of what a rank measured up to a validation."""
    return lambda log: of(log, "validation", place)["metadata"]["phase_times"][number].update(changes)


def node(**changes: Any) -> Callable[[Log], None]:
    """Return an edit of the first node."""
    return lambda log: of(log, "run_result")["value"]["result"]["nodes"][0].update(changes)


def begun(log: Log, **changes: Any) -> None:
    log[0]["value"]["software"] = {**log[0]["value"]["software"], **changes}


def faster(log: Log) -> None:
    """Divide all times of the last validation by 100, its wall clock too, and nothing else."""
    last = of(log, "validation", -1)["value"]
    last["elapsed"] /= 100
    last["wall"] = 112.0 + last["elapsed"]


def no_phases(log: Log) -> None:
    for times in of(log, "validation")["metadata"]["phase_times"]:
        times["phases"] = dict.fromkeys(times["phases"], 0.0)


def samples(log: Log) -> None:
    for event in log:
        for times in event["metadata"].get("phase_times", ()):
            times["samples"] *= 1000


def earlier_end(log: Log) -> None:
    of(log, "run_result")["value"]["ended"] -= 3600


def half_of_the_ranks(log: Log) -> None:
    for event in log:
        event["metadata"]["phase_times"] = event["metadata"].get("phase_times", [])[:1]


def without_the_first(log: Log) -> None:
    log.remove(of(log, "validation"))


def swapped(log: Log) -> None:
    first, last = (place for place, event in enumerate(log) if event["key"] == "validation")
    log[first], log[last] = log[last], log[first]


def other_result(log: Log) -> None:
    """Add the workers' own event, which says something else."""
    result = {**of(log, "run_result")["value"]["result"], "flops_per_sample": 1.0}
    log.insert(-1, {**log[-2], "key": "worker_result", "value": result, "metadata": {}})


def whole_clock(log: Log) -> None:
    """Let rank 0 load for less time, and agree with that in its own clock."""
    times = of(log, "validation")["metadata"]["phase_times"][0]
    times["outside"]["loading"] -= 1.0
    times["elapsed"] -= 1.0


def calibrated(rate: float) -> Callable[[Log], None]:
    return node(calibration={"cpu_gemm_flops_per_s": rate})


BUSY = {"seconds": 90.0, "cpus": 2.0, "others": 14.0, "steal": 0.0}
# By name: an edit of an official run's log, and what is said against it although its checksum was made anew.
EDITS: dict[str, tuple[Callable[[Log], None], str]] = {
    "elapsed / 100": (faster, "ends before the one before it"),
    "elapsed of the first / 100": (value("validation", elapsed=0.4), "the clocks of rank 0"),
    "negative elapsed": (value("validation", -1, elapsed=-5.0), "ends before the one before it"),
    "an early epoch": (value("validation", -1, epoch=1.01), "epochs do not follow"),
    "an epoch beyond the last": (value("validation", -1, epoch=500.0), "stands at epoch 500"),
    "fewer steps": (value("validation", -1, step=3), "follows 2 steps, which do not lead there"),
    "no phases": (no_phases, "add up to 0 s"),
    "samples x 1000": (samples, "and its configuration says 256"),
    "samples of a rank": (rank(1, samples=9), "its steps take"),
    "steps of a rank": (rank(1, steps=9), "other numbers of steps on other ranks"),
    "phases of a rank": (rank(1, phases={**phase_times(1.0)["phases"], "wait": 0.0}), "the phases of rank 1"),
    "seconds of a rank": (rank(1, seconds=1.0), "rank 1 at step 2 accounts for"),
    "time outside of a rank": (rank(1, outside={"validation": 9.0}), "rank 1 at step 2 accounts for"),
    "negative time outside": (rank(1, outside={"validation": -9.0}), "has a negative time"),
    "clock of a rank": (rank(1, elapsed=9.0), "the clocks of rank 1"),
    "clock of rank 0": (whole_clock, "the clocks of rank 0"),
    "ranks": (half_of_the_ranks, "has 1 ranks of 2"),
    "the goal was reached before": (
        lambda log: of(log, "validation")["value"]["metrics"].update(top1_accuracy=98.0),
        "and the goal contradict each other",
    ),
    "a goal that was reached without": (
        value("validation", -1, metrics={"top1_accuracy": 79.9}), "and the goal contradict each other",
    ),
    "a validation is left out": (without_the_first, "which do not lead there"),
    "validations in another order": (swapped, "ends before the one before it"),
    "the wall clock": (value("validation", -1, wall=150.0), "is not the start's plus what elapsed"),
    "the first access to data": (
        lambda log: of(log, "run_start").update(value=113.0), "do not agree when training began",
    ),
    "the first access, for the workers": (
        lambda log: of(log, "run_result")["value"]["result"].update(started_at=111.9),
        "do not agree when training began",
    ),
    "an event before its validation": (
        lambda log: of(log, "validation", -1).update(time_ms=150_000), "is stamped before",
    ),
    "imports_end - 1 h": (value("startup", imports_end=109.5 - 3600), "part imports of its start-up is neg"),
    "ended - 1 h": (earlier_end, "it lasted 0 s, and its parts"),
    "begun + 95 s": (value("run_configuration", begun=195.0), "start-up is negative"),
    "ended just after the goal": (value("run_result", ended=150.0), "it lasted 50.0 s, and its parts"),
    "hostname": (node(hostname="another"), "rank 0 began on n"),
    "hostname of rank 0": (
        lambda log: of(log, "run_start")["metadata"].update(hostname="m"), "rank 0 began on m",
    ),
    "the driver's host": (
        value("run_result", hostname="m"), "cluster=local is one machine, and it names m, n",
    ),
    "the workers' result": (other_result, "stands in it twice, and differs"),
    "14 of 2 CPUs": (node(interference=BUSY), "cannot have used 14 of the 2 CPUs of n"),
    "a short watch": (node(interference={**BUSY, "seconds": 0.4, "others": 0.0}), "n was watched for 400"),
    "a rate beyond the machine": (calibrated(1e5), "the clock of one of them was wrong"),
    "cpu_model": (node(cpu_model="another"), ""),
    "seed": (value("run_configuration", seed=2), ""),
    "the driver's variables": (lambda log: begun(log, environment={"LD_AUDIT": "x.so"}), "LD_AUDIT puts"),
    "a node's variables": (node(environment={"PYTHONPYCACHEPREFIX": "x"}), "PYTHONPYCACHEPREFIX puts"),
    "user site": (node(environment={"PYTHONUSERBASE": "x"}), "PYTHONUSERBASE puts"),
    "optimised Python": (node(environment={"PYTHONOPTIMIZE": "1"}), "PYTHONOPTIMIZE puts"),
    "other libraries": (node(environment={"LD_LIBRARY_PATH": "x"}), "LD_LIBRARY_PATH puts"),
    "another lock": (node(environment={"MLBENCH_MACHINE_LOCK": "x"}), "MLBENCH_MACHINE_LOCK changes"),
    "other prices": (lambda log: begun(log, environment={"MLBENCH_PRICES": "x"}), "MLBENCH_PRICES changes"),
    "no calibration": (node(environment={"MLBENCH_CALIBRATION_S": "0"}), "MLBENCH_CALIBRATION_S changes"),
    "emulated arithmetic": (node(environment={"CUBLAS_EMULATE_FP32": "1"}), "CUBLAS_EMULATE_FP32 changes"),
    "other convolutions": (node(environment={"CUDNN_FRONTEND_X": "1"}), "CUDNN_FRONTEND_X changes"),
    "TORCH_*": (node(environment={"TORCH_BLAS_PREFER_CUBLASLT": "1"}), "TORCH_BLAS_PREFER_CUBLASLT changes"),
    "Ray's hook": (node(environment={"RAY_RUNTIME_ENV_HOOK": "m.f"}), "RAY_RUNTIME_ENV_HOOK puts"),
    "sitecustomize": (node(startup_code={"site-packages/sitecustomize.py": "0"}), "sitecustomize.py runs"),
    "a Hydra plug-in": (lambda log: begun(log, startup_code={"hydra_plugins/x.py": "0"}), "x.py runs before"),
    "flags": (node(startup_code={"sys.flags.optimize": "2"}), "sys.flags.optimize runs"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_log_is_none_of_an_official_result_s(name: str) -> None:
    """With the checksum of before it says so, and with one made anew another relation does."""
    edit, reason = EDITS[name]
    edited = log(compose.compose([OFFICIAL]))
    assert build_record(edited).eligible
    edit(edited)
    record = build_record(edited)
    assert not record.eligible
    assert any("checksum differs" in one or "lines were added" in one for one in record.contradictions)
    again = build_record(sealed(edited))
    assert any(reason in one for one in again.official_reasons) or not reason, again.official_reasons
    assert again.eligible == (not reason)


def test_a_log_without_its_checksum_and_lines_after_it_are_told() -> None:
    whole = log(compose.compose([OFFICIAL]))
    of(whole, "run_result")["metadata"] = {}
    assert build_record(whole).official_reasons == ["its event log has no checksum"]
    whole = log(compose.compose([OFFICIAL]))
    for place in (-1, len(whole)):
        longer = [*whole[:place], of(whole, "validation", -1), *whole[place:]]
        assert any("lines were added" in one for one in build_record(longer).contradictions)


SOURCES = "from mlbench.record import provenance as p; print(p.sources(), p.git(p.CHECKOUT).dirty)"


def test_an_edit_that_git_was_told_to_overlook_changes_the_sources(tmp_path: Path) -> None:
    """The same length, the same times, and `assume-unchanged`."""
    for name in ("mlbench", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def git(*words: str) -> None:
        settings = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)

    def told() -> list[str]:
        code = [sys.executable, "-B", "-c", SOURCES]
        return subprocess.run(
            code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    before = told()
    assert before[1] == "False"
    path = tmp_path / "mlbench" / "training" / "loop.py"
    text, times = path.read_text(), path.stat()
    git("update-index", "--assume-unchanged", "mlbench/training/loop.py")
    path.write_text(text.replace("CHECK_EVERY = 500", "CHECK_EVERY = 900"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = told()
    assert after[1] == "False" and after[0] != before[0]
    recipe = tmp_path / "conf" / "task" / "logreg.yaml"
    git("update-index", "--assume-unchanged", "conf/task/logreg.yaml")
    recipe.write_text(recipe.read_text().replace("official: 89", "official: 60"))
    assert told()[0] not in (before[0], after[0])


def test_a_package_cannot_stand_in_front_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "logreg.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("logreg", "their_package.logreg", "mlbench.tasks")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) if group == "mlbench.tasks" else ())
    with pytest.raises(UserError, match="'logreg' is in mlbench.tasks.logreg and in their_package.logreg"):
        plugins.load("task", "logreg")


def test_a_cheaper_machine_in_a_folder_of_one_s_own_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    text = (ROOT / "conf/hardware/gcp_n1_t4.yaml").read_text()
    (tmp_path / "hardware/mine.yaml").write_text(text.replace("name: gcp_n1_t4", "name: mine"))
    words = [OFFICIAL, f"hydra.searchpath=[{tmp_path}]", "hardware=mine"]
    record = build_record(log(compose.compose(words)), FROZEN)
    assert not record.eligible and any("hardware is mine" in one for one in record.official_reasons)
    (tmp_path / "division").mkdir()
    (tmp_path / "division/closed.yaml").write_text("name: closed\nfree: ['*']\ndeclared: []\nfixed: []\n")
    with pytest.raises(UserError, match="division=closed is both"):
        compose.compose([*words, "division=closed"])
    with pytest.raises(UserError, match="task.batch_size is 4096.*rule R1"):
        compose.compose([*words, "task.batch_size=4096"])


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
    told = run_ranks(of_its_own, 2, tmp_path)
    assert all("the nodes hold different data sets" in one for one in told)


def test_a_file_that_is_swapped_while_it_is_checked_shows_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digest = prepared(tmp_path), arrow.digest

    def swap(path: Path) -> str:
        found = digest(path)
        if not (folder / "away").exists():
            path.rename(folder / "away")
            shutil.copy(folder / "away", path)
        return found

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
