"""The log that survives whatever dies."""

import json
import multiprocessing
from pathlib import Path

import pytest

from mlbench.config.errors import UserError
from mlbench.record import events


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    for number in range(3):
        events.append(log, "validation", {"n": number}, rank=0)
    assert [event["value"]["n"] for event in events.read(log)] == [0, 1, 2]
    assert events.read(log)[0]["metadata"] == {"rank": 0}
    assert set(json.loads(log.read_text().splitlines()[0])) == {
        "time_ms", "event_type", "key", "value", "metadata"
    }  # fmt: skip


def test_a_torn_last_line_is_skipped_and_the_rest_is_read(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    events.append(log, "a", 1)
    events.append(log, "b", 2)
    log.write_bytes(log.read_bytes()[:-9])
    assert [event["key"] for event in events.read(log)] == ["a"]


def test_a_follower_gets_each_event_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    follower = events.LogFollower(log)
    assert follower.take() == []
    events.append(log, "a", 1)
    assert [event["key"] for event in follower.take()] == ["a"]
    with log.open("a") as half:
        half.write('{"key": "b", "value"')
        half.flush()
        assert follower.take() == []
        half.write(": 2}\n")
    assert [event["value"] for event in follower.take()] == [2]
    assert follower.take() == []


def write_many(path: Path, writer: int) -> None:
    for number in range(200):
        events.append(path, "mine", {"writer": writer, "number": number, "text": "x" * 500})


def test_two_processes_may_write_one_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(log, writer)) for writer in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    pairs = [(event["value"]["writer"], event["value"]["number"]) for event in events.read(log)]
    assert sorted(pairs) == [(writer, number) for writer in range(2) for number in range(200)]


def test_numbers_that_json_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        events.append(tmp_path / "events.jsonl", "loss", float("nan"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone"):
        events.append(tmp_path / "gone" / "events.jsonl", "a", 1)


def test_a_log_holds_no_control_characters(tmp_path: Path) -> None:
    """Ray's errors have colours; an import would change them, and then the record is not the log's."""
    path = tmp_path / events.NAME
    events.append(path, "worker_failure", {"1": "\x1b[36mray\x1b[39m\nx"}, where=("a\u202e", 1.5, None))
    (event,) = events.read(path)
    assert event["value"] == {"1": "\ufffd[36mray\ufffd[39m\nx"}
    assert event["metadata"] == {"where": ["a\ufffd", 1.5, None]}
