"""`mlbench doctor`: what it says of this machine, and what it says is wrong."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import mlbench
from mlbench import doctor
from mlbench.clusters import processes, reaper
from mlbench.datasets import arrow
from mlbench.record import temporary_folder


def rows(capsys: Any, *overrides: str, code: int = 0) -> dict[str, dict[str, str]]:
    """Return the checks by name."""
    assert doctor.main([*overrides, "--json"]) == code
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what runs of other tests, which are killed beside this one, leave for a moment."""
    monkeypatch.setattr(reaper, "dead", list)
    monkeypatch.setattr(temporary_folder, "abandoned", list)
    monkeypatch.setattr(mlbench, "__version__", metadata.version(doctor.PACKAGE))


def test_a_checkout_that_is_newer_than_its_installation_is_a_fault(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(mlbench, "__version__", "99.0")
    check = rows(capsys, code=1)["mlbench"]
    assert check["state"] == "fault" and "pip install -e ." in check["way"]
    assert check["detail"].startswith("99.0, ")
    assert check["detail"].endswith(f"(pip has {metadata.version(doctor.PACKAGE)})")


@pytest.mark.usefixtures("nothing_left")
def test_it_says_what_is_here(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / arrow.MANIFEST).write_text("{}")
    checks = rows(capsys, f"data_root={tmp_path}", f"output_root={tmp_path / 'runs'}")
    assert checks["torch"]["detail"].startswith(torch.__version__)
    assert checks["Ray"]["detail"].startswith(metadata.version("ray"))
    assert checks["data sets"]["detail"] == "digits"
    assert checks["killed runs"]["state"] == "here"
    assert (checks["GPUs"]["state"] == "here") == torch.cuda.is_available()
    assert {row["state"] for row in checks.values()} <= {"here", "absent", "broken"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("nothing_left")
def test_what_is_absent_comes_with_the_way_to_get_it(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert doctor.main([]) == 0  # no run on this machine needs what is absent
    lines = capsys.readouterr().out.splitlines()
    absent = [line for line in lines if line.startswith("- ")]
    ways = {line: lines[lines.index(line) + 1].split() for line in absent}
    assert any("data sets" in line and {"data", "prepare"} <= set(way) for line, way in ways.items())
    assert all(way[0] == "->" for way in ways.values())
    assert all(len(line) < 200 for line in lines)


def test_versions_that_do_not_fit_are_a_fault(monkeypatch: Any, capsys: Any) -> None:
    requirements = ["torch>=99", "ray", "no_such_package>=1", "numpy", "also_absent; extra == 'more'"]
    requirements += ["for_another_python; python_version < '3'"]
    monkeypatch.setattr(metadata, "requires", lambda _: requirements)
    checks = rows(capsys, code=1)
    wrong = f"torch is {metadata.version('torch')}, not >=99, no_such_package is not installed"
    assert (checks["packages"]["state"], checks["packages"]["detail"]) == ("fault", wrong)
    assert "pip install" in checks["packages"]["way"]


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    checks = rows(capsys, f"data_root={tmp_path / 'file' / 'data'}", code=1)
    assert checks["data_root"]["state"] == "fault" and "cannot be written" in checks["data_root"]["detail"]


def test_a_folder_without_space_is_a_fault(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    checks = rows(capsys, f"output_root={tmp_path}", code=1)
    assert checks["output_root"]["state"] == "fault" and checks["output_root"]["way"]


@pytest.fixture
def orphan() -> Iterator[tuple[str, psutil.Process]]:
    """Yield an owner that was killed, and a process that it has left."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep) as owner:
        name = reaper.owner(owner.pid)
        owner.kill()
    with subprocess.Popen(sleep, env={**os.environ, reaper.MARK: name}) as left:
        try:
            yield name, psutil.Process(left.pid)
        finally:
            left.kill()


def test_what_killed_runs_have_left_is_named_and_not_touched(
    orphan: tuple[str, psutil.Process], capsys: Any
) -> None:
    name, process = orphan
    row = rows(capsys, code=1)["killed runs"]
    assert name in row["detail"] and "mlbench cluster reap" in row["way"]
    assert process.is_running()


def test_the_ray_that_was_started_to_stay_is_nothing_that_a_killed_run_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command has ended, so its folder has no lock; `reap` leaves it alone for its server."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(reaper, "dead", list)
    folder, lock = temporary_folder.create()
    assert lock is not None
    os.close(lock)
    left = [SimpleNamespace(name=lambda: processes.SERVERS[0])]
    monkeypatch.setattr(reaper, "of_folder", lambda _: left)
    assert doctor._left().state == "here"
    left.clear()
    assert doctor._left().state == "fault" and str(folder) in doctor._left().detail
