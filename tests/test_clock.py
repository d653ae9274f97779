"""Durations when somebody sets the wall clock while a run lasts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from driven import Run

from mlbench import clock
from mlbench.clock import ClockEpoch
from mlbench.record import events
from mlbench.record.build_record import build_record

# A process whose wall clock is an hour behind that of the driver, whose epoch it gets.
LATER = """
import json, sys, time
true, time.time = time.time, lambda: true() - 3600
from mlbench import clock
alone = clock.wall()
clock.adopt(clock.ClockEpoch(*json.loads(sys.argv[1])))
print(json.dumps([alone, clock.wall()]))
"""


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() - 3600)


def test_a_clock_that_is_set_back_moves_no_stamp(set_back: None) -> None:
    before = clock.wall()
    assert clock.system() < before - 3000 and 0 <= clock.wall() - before < 60
    assert clock.process_start() <= before


def test_the_processes_of_a_run_on_one_host_count_from_one_look_at_the_clock() -> None:
    """Also those that start after it was set; a process of another host keeps its own."""
    before = clock.wall()
    result = subprocess.run(
        [sys.executable, "-c", LATER, json.dumps(clock.epoch())], capture_output=True, text=True, check=True
    )
    alone, adopted = json.loads(result.stdout)
    assert alone < before - 3000 and before <= adopted <= clock.wall()
    clock.adopt(ClockEpoch("another host", 0.0))
    assert clock.wall() >= adopted


def test_two_hosts_that_hide_when_they_were_booted_have_two_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(Path, "readlink", hidden)
    ids = set[str]()
    for name in ("a", "b"):
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        ids.add(clock.host_clock_id())
    assert len(ids) == 2


def test_a_clock_that_is_set_back_leaves_all_durations_of_a_record_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second half of the run is stamped by a driver whose clock was set."""
    monkeypatch.setattr("driven.BEGUN", begun := clock.wall())
    monkeypatch.setattr("driven.STARTED", begun + 10.0)
    run = Run(tmp_path)
    run.validate(50.0)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() - 3600)
    run.validate(90.0)
    run.end("goal_reached")
    record = build_record(log := events.read(run.log))
    stamps = [event["time_ms"] for event in log]
    assert stamps == sorted(stamps) and max(stamps) - min(stamps) < 3_000_000
    assert record.wall == pytest.approx(19.0) and all(s >= 0 for s in record.startup.parts().values())
