"""What a run in a pod prints: short enough for a kubelet's log, with its files, read as it was written."""

import random
from pathlib import Path
from typing import Any

import pytest

from mlbench.launch import event_stream, remote_run
from mlbench.launch.event_stream import EventStream
from mlbench.launch.output import Output
from mlbench.record import events, stream
from mlbench.record.events import NAME

KUBELET_BYTES = 10 * 2**20  # containerLogMaxSize, kubernetes.io/docs, "KubeletConfiguration"


def validation(number: int, ranks: int) -> dict[str, Any]:
    """Return a validation as large as awdlstm's: a rank has the mean and spread of eight phases."""
    phases = ("data_wait", "forward", "loss", "backward", "wait", "transfer", "optimizer", "metrics")
    draw = random.Random(number).random
    times = [{phase: [draw() for _ in range(7)] for phase in phases} for _ in range(ranks)]
    return {"event": {"key": "validation", "value": number, "phase_times": times}, "number": number}


def test_a_log_of_750_validations_of_16_ranks_fits_into_what_a_kubelet_keeps() -> None:
    lines = [stream.encode(validation(number, 16)) for number in range(750)]
    plain = sum(len(str(validation(number, 16))) for number in range(750))
    assert plain > KUBELET_BYTES > sum(map(len, lines))
    assert [stream.decode(line) for line in lines[:3]] == [validation(number, 16) for number in range(3)]


@pytest.mark.parametrize("text", ["{", '{"packed": 1}', '{"packed": "no base64!"}', '{"packed": "AAAA"}'])
def test_what_cannot_be_unpacked_is_no_message(text: str) -> None:
    assert stream.decode(stream.MARK + text) is None


def test_a_text_that_unpacks_to_more_than_memory_holds_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST", 1000)
    assert len(stream.unpack(stream.pack(bytes(10**6)))) == 1000


def test_heartbeats_of_three_days_leave_room_for_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Time:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    time = Time()
    monkeypatch.setattr(event_stream, "clock", time)
    (tmp_path / NAME).touch()
    printer = EventStream(tmp_path / NAME)
    for second in range(0, 3 * 86400, 5):
        time.now = float(second)
        printer.heartbeat({"step": second, "loss": 0.123456789})
    printed = capsys.readouterr().out
    assert 1000 < printed.count("heartbeat") < 10_000 and len(printed) < KUBELET_BYTES / 4


def test_logs_and_outputs_go_home_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(event_stream, "FILES_CHARS", 2000)
    folder = tmp_path / "pod" / "2026-11-22T065900-000-script-w1-7"
    files = {
        "rank_0.log": b"a line\n",
        "outputs/rank_0/deep/model.pt": bytes(range(256)),
        "record.json": b"{}",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "rank_1.log").write_bytes(bytes(str(list(range(5000))), "ascii"))  # too large
    events.append(folder / NAME, "run_stop", {})
    EventStream(folder / NAME).end()
    messages = [stream.decode(line) for line in capsys.readouterr().out.splitlines()]
    sent = [message for message in messages if message and "file" in message]
    assert [message["file"] for message in sent] == ["rank_0.log", "outputs/rank_0/deep/model.pt"]
    copy: Any = remote_run.Copy.__new__(remote_run.Copy)
    copy.folder, copy.output = tmp_path / "laptop", Output()
    copy.folder.mkdir()
    for message in sent:
        copy.save(message["file"], message["content"])
    for name in ("rank_0.log", "outputs/rank_0/deep/model.pt"):
        assert (copy.folder / name).read_bytes() == files[name]


@pytest.mark.parametrize(
    "name", ["../x", "outputs/rank_0/../../../x", "/etc/x", "record.json", "events.jsonl", "outputs/x"]
)
def test_a_pod_writes_nothing_but_logs_and_outputs(tmp_path: Path, name: str) -> None:
    copy: Any = remote_run.Copy.__new__(remote_run.Copy)
    copy.folder = tmp_path / "run"
    copy.folder.mkdir()
    copy.save(name, stream.pack(b"x"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
