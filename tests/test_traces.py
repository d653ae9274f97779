"""docs/security.md, what stays on the machine: real commands, and all that is there before and after them."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from commands import Run
from conftest import ROOT
from leftovers import KEPT, USERS_RAY, await_nothing_but, leftovers, mlbench, ray_found

from mlbench.clusters import persistent
from mlbench.record import temporary_folder

pytestmark = pytest.mark.slow
LONG = ("task=logreg", "goal=none", "division=open", "task.epochs=100000")


def test_what_is_kept_on_purpose_is_documented() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    names = ("mlbench-machine.lock", *(Path(path).name for path in KEPT))
    assert [name for name in names if f"{name}`" not in page] == []


def test_a_killed_run_leaves_nothing_once_the_next_command_has_begun(
    own_places: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    before = leftovers(own_places)
    run = Run(own_places, tmp_path, data_root, *LONG)
    run.await_validation(1)
    started = leftovers(own_places) - before
    assert any("raylet" in name for name in started) and any("/mlb-" in name for name in started), started
    run.process.kill()
    run.process.communicate()
    assert ray_found(own_places) == USERS_RAY
    out = mlbench(own_places, "reap")
    assert "ended and removed what a killed command had left: " in out
    await_nothing_but(before, own_places)
    next_run = Run(own_places, tmp_path, data_root, "task=logreg", "workers=1")
    code, output = next_run.finish()
    assert code == 0, output
    await_nothing_but(before, own_places)


def test_a_closed_terminal_and_many_ctrl_c_leave_a_record_and_nothing_else(
    own_places: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    before = leftovers(own_places)
    run = Run(own_places, tmp_path, data_root, *LONG)
    run.await_validation(1)
    for number in [signal.SIGHUP] + [signal.SIGINT] * 11:
        run.process.send_signal(number)
        time.sleep(0.15)  # s, as fast as a person presses
    code, output = run.finish()
    assert code == 130 and "Traceback" not in output, output
    assert run.record().status == "interrupted" and run.record().validations
    await_nothing_but(before, own_places)


def test_the_ray_that_is_kept_is_found_by_mlbench_alone_and_leaves_nothing(
    own_places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leftovers(own_places)
    mlbench(own_places, "start")
    assert ray_found(own_places) == USERS_RAY
    monkeypatch.setattr(os, "environ", own_places)
    assert persistent.address() is not None and list(temporary_folder.abandoned())
    mlbench(own_places, "reap")
    assert persistent.address() is not None, "it is nobody's that was killed"
    assert mlbench(own_places, "stop").startswith("Ray has stopped")
    await_nothing_but(before, own_places)
    mlbench(own_places, "start")
    for pid in persistent.servers():
        psutil.Process(pid).kill()
    assert ray_found(own_places) == USERS_RAY
    assert mlbench(own_places, "stop").startswith("no Ray of mlbench was running")
    await_nothing_but(before, own_places)
