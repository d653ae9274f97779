"""What breaks beside a run: torn logs, damaged records, servers that never end, two runs in a millisecond."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zips
from commands import PATIENCE_S
from driven import Run

import mlbench
from mlbench import results
from mlbench.config import compose
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.launch import execute
from mlbench.record import events, provenance, reader
from mlbench.tracking import sync, uploader
from mlbench.tracking.sync import recover

ROOT = Path(__file__).parents[2]
SECRET = "hunter2x9"


def test_a_torn_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    log = tmp_path / events.NAME
    events.append(log, "first", 1)
    follower = events.LogFollower(log)
    with log.open("a") as file:
        file.write('{"time_ms": 1, "event_type": "POINT_IN_TI')
    assert [event["key"] for event in follower.take()] == ["first"]
    events.append(log, "run_stop", {"status": "completed"})
    assert [event["key"] for event in events.read(log)] == ["first", "run_stop"]
    assert [event["key"] for event in follower.take()] == ["run_stop"]


def test_events_of_many_processes_are_whole(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from mlbench.record import events\n"
    code += "for n in range(200): events.append(Path(sys.argv[1]), sys.argv[2], n)"
    log = tmp_path / events.NAME
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(log), name], cwd=ROOT) for name in ("a", "b", "c")
    ]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0, 0, 0]
    entries = events.read(log)
    assert len(entries) == 600
    assert [event["value"] for event in entries if event["key"] == "b"] == list(range(200))


def test_a_full_disk_is_a_sentence_and_the_log_goes_on(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: the kernel takes a part of the line, then refuses."""
    code = "import resource, signal, sys; from pathlib import Path; from mlbench.record import events\n"
    code += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
    code += "for n in range(9): events.append(Path(sys.argv[1]), 'event', n)"
    log = tmp_path / events.NAME
    full = subprocess.run([sys.executable, "-c", code, str(log)], cwd=ROOT, capture_output=True, text=True)
    assert "cannot write" in full.stderr and "disk is full" in full.stderr
    assert not log.read_bytes().endswith(b"\n"), "a torn line is what this test needs"
    before = len(events.read(log))
    events.append(log, "run_stop", {"status": "failed"})
    assert [event["key"] for event in events.read(log)][before:] == ["run_stop"]


def test_a_record_is_utf_8_whatever_the_locale_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LANG=en_US, which is Latin-1, a run ended without its record, or with one called damaged."""
    run, error = Run(tmp_path / "runs"), "it broke: \u256d\u2500 gr\u00f6\u00dfer"
    monkeypatch.setattr("io.text_encoding", lambda encoding, stacklevel=2: encoding or "latin-1")
    run.end("failed", error=error)
    record = reader.load(run.folder / "record.json")
    uploader._write_files(run.folder, record, tmp_path)
    assert record.error == reader.load(tmp_path / "record.json").error == error


def test_a_run_that_begins_is_not_concluded_by_somebody_else(tmp_path: Path) -> None:
    """The log was written before the run was taken, so `sync` took it for the run of a killed driver."""
    source = Path(execute.__file__).read_text()
    assert source.index("uploader.MlflowUploader(") < source.index('"run_configuration"')
    run = Run(tmp_path, seed=5)
    lock = uploader.lock(run.folder)
    try:
        assert [run.outcome for run in sync.sync_runs(tmp_path, None)] == ["running"]
        assert not (run.folder / "record.json").exists()
    finally:
        os.close(lock)


def test_the_same_seed_in_the_same_millisecond_makes_runs_of_their_own(tmp_path: Path) -> None:
    experiment = compose.compose(["task=logreg", f"output_root={tmp_path}"])
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: execute.new_folder(experiment, 7, 1.7e9), range(8)))
    assert len(set(folders)) == 8 and all(folder.is_dir() for folder in folders)
    assert all(folder.name.endswith("-7") for folder in folders), "a seed's runs are found by this"


@pytest.fixture
def root(tmp_path: Path, empty_store: Path) -> Path:
    root = zips.with_store(tmp_path / "runs", empty_store)
    for seed in (1, 2):
        run = Run(root, seed=seed)
        run.validate(50.0)
        run.end("goal_not_reached")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("content", ["\x00", '{"run_id": "run-1"}'])
def test_a_damaged_record_is_told_and_can_be_deleted(root: Path, content: str, capsys: Any) -> None:
    (root / "run-1" / "record.json").write_text(content)
    where = f"output_root={root}"
    assert results.main(["list", where, "--json"]) == 0
    shown = capsys.readouterr()
    assert [row["run"] for row in json.loads(shown.out)] == ["run-2"] and "run-1" in shown.err
    assert results.main(["show", "run-1", where]) == 2
    shown = capsys.readouterr().err
    assert "record.json is damaged" in shown and f"(mlbench results sync {where} " in shown
    assert f"results delete run-1 {where} " in shown
    assert results.main(["delete", "run-1", where, "--yes"]) == 0
    assert not (root / "run-1").exists() and (root / "run-2").exists()


def test_what_another_version_wrote_is_told_with_that_version(root: Path, capsys: Any) -> None:
    """As mlbench 0.1 wrote them: other fields, and never called damaged."""
    record, log = root / "run-1" / "record.json", root / "run-1" / "events.jsonl"
    record.write_text('{"run_id": "run-1", "mlbench": "0.1.3", "data_manifest": null}')
    plan = root / "studies" / "old" / "study.yaml"
    plan.parent.mkdir(parents=True)
    plan.write_text("{name: old, mlbench: 0.1.3, asked: [], points: []}")
    message = "was written by another version of mlbench (0.1.3) (read it with mlbench 0.1.3)"
    where = f"output_root={root}"
    assert results.main(["list", where]) == 0
    assert f"{record} {message}" in capsys.readouterr().err
    for arguments in (["show", "run-1", where], ["plot", "study=old", where]):
        assert results.main(arguments) == 2
        shown = capsys.readouterr().err
        assert message in shown and "damaged" not in shown
    before = record.read_text()
    lines = log.read_text().replace(f'"mlbench": "{mlbench.__version__}"', '"mlbench": "0.1.3"')
    log.write_text(lines.replace('"deviations"', '"old_field"'))
    with pytest.raises(UserError, match=r"version of mlbench \(0\.1\.3\)"):
        recover(log.parent)
    assert record.read_text() == before


@pytest.fixture
def dripping() -> Iterator[str]:
    """Serve one byte of an answer that never ends, again and again."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n{"
            )
            while not over.wait(0.05):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        over.set()
        thread.join()


def test_a_server_that_drips_bytes_ends_a_command_in_time_and_an_upload_is_left_for_later(
    dripping: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sync, "ANSWER_S", 1.0)
    monkeypatch.setattr(sync, "UPLOAD_S", 1.0)
    where = (f"output_root={root}", f"tracking_uri={dripping}")
    assert results.main(["delete", "run-1", "--yes", *where]) == 2
    assert "within 1 s" in capsys.readouterr().err
    assert (root / "run-1" / "record.json").exists()
    brought = sync.upload(root / "run-1", "run-1", dripping)
    assert brought.outcome == "failed" and "within 1 s" in brought.why


@pytest.mark.parametrize(
    ("name", "value", "recorded"),
    [
        ("OMP_NUM_THREADS", "4", "4"),
        ("OMP_PLACES", "{0,1},{2,3}", None),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", "granularity=fine,compact,1,0"),
        ("NCCL_SOCKET_IFNAME", "^docker0,eth0", "^docker0,eth0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128", None),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", None),
        (
            "LD_PRELOAD",
            "/home/me/secret-project/libjemalloc.so.2:/usr/lib/libx.so",
            "libjemalloc.so.2:libx.so",
        ),
        ("NCCL_API_TOKEN", SECRET, "***"),
        ("NCCL_X", "AKIA1234567890ABCDEF", "***"),
        ("GLOO_X", f"postgres://me:{SECRET}@db/x", "***"),
        ("MKL_X", f"me:{SECRET}@db", "***"),
        ("OMP_X", f"password={SECRET}", "***"),
    ],
)
def test_recorded_variables_hold_settings_and_no_secrets(
    name: str, value: str, recorded: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert provenance.environment()[name] == (value if recorded is None else recorded)


@pytest.mark.parametrize(
    "text",
    [
        f"me:{SECRET}@db.example/x",
        f"jdbc:mysql://db/x;password={SECRET}",
        f"host=db user=me password={SECRET}",
        f"http://db/x#access_token={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"postgresql+psycopg2://me:{SECRET}@db/x",
        f"API-Key: {SECRET}",
    ],
)
def test_addresses_of_unusual_form_hold_no_secret(text: str) -> None:
    assert SECRET not in without_credentials(text)
