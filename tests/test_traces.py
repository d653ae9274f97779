"""docs/security.md, what stays on the machine: real commands, and all that is there before and after them."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import Run, until
from conftest import ROOT, own_folder
from leftovers import KEPT, USERS_RAY, await_nothing_but, leftovers, mlbench, ray_found

from mlbench.clusters import persistent, ray_env
from mlbench.record import temporary_folder

pytestmark = pytest.mark.slow
ENDLESS = """
import pathlib, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(10**9):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 20:
        pathlib.Path("training").touch()
"""
LONG = ("task=logreg", "goal=none", "division=open", "task.epochs=100000")


def test_the_folder_of_tests_that_were_killed_goes_with_the_next_tests(tmp_path: Path) -> None:
    code = "import sys, pathlib, conftest as c; print(c.own_folder(pathlib.Path(sys.argv[1])), flush=True)"
    command = [sys.executable, "-c", f"{code}; input()", str(tmp_path)]
    started = [
        subprocess.Popen(
            command, cwd=ROOT / "tests", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    killed, running = (Path(process.stdout.readline().strip()) for process in started if process.stdout)
    started[0].kill()
    started[0].communicate()
    assert killed.exists()
    next_one = own_folder(tmp_path)
    assert {*tmp_path.iterdir()} == {running, next_one}
    started[1].communicate("\n")


def test_what_is_kept_on_purpose_is_documented() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    names = ("mlbench-machine.lock", *(Path(path).name for path in KEPT))
    assert [name for name in names if f"{name}`" not in page] == []


def test_a_killed_run_goes_with_the_next_and_one_whose_terminal_closes_leaves_its_record_alone(
    own_places: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """Only a whole Ray shows that no process, file or address of it is left when its command ends.

    While it runs there is no log monitor, which takes CPU time from the workers for output that nobody reads.
    """
    before = leftovers(own_places)
    killed = Run(own_places, tmp_path / "killed", data_root, *LONG, "workers=2", "launcher=torchrun")
    killed.await_validation(1)
    abandoned = {line for line in leftovers(own_places) - before if "process" in line}
    assert len(abandoned) >= 3
    killed.process.kill()
    killed.process.communicate()

    run = Run(own_places, tmp_path / "closed", data_root, *LONG)
    run.await_validation(1)
    (rays,) = Path(own_places["TMPDIR"]).glob(f"mlb-*/{ray_env.SUBFOLDER}")
    assert stat.S_IMODE(rays.parent.stat().st_mode) == 0o700
    started = leftovers(own_places) - before
    assert not started & abandoned
    assert all(any(name in line for line in started) for name in ("gcs_server", "raylet", "/mlb-")), started
    assert not any("log_monitor.py" in line for line in started)
    assert ray_found(own_places) == USERS_RAY
    for number in [signal.SIGHUP] + [signal.SIGINT] * 11:
        run.process.send_signal(number)
        time.sleep(0.15)  # s, as fast as a person presses
    code, output = run.finish()
    assert code == 130 and "Traceback" not in output, output
    assert run.record().status == "interrupted" and run.record().validations
    await_nothing_but(before, own_places)


def test_a_measured_script_whose_command_is_killed_leaves_nothing(
    own_places: dict[str, str], tmp_path: Path
) -> None:
    before = leftovers(own_places)
    (tmp_path / "train.py").write_text(ENDLESS)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlbench.measure", "output_root=runs", "--", sys.executable, "-m", *launcher],
        cwd=tmp_path,
        env=own_places,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: (tmp_path / "training").exists() or process.poll() is not None)
    assert len([line for line in leftovers(own_places) - before if "process" in line]) >= 4
    process.kill()
    process.wait()
    mlbench(own_places, "reap")
    await_nothing_but(before, own_places, of_torch=True)


def test_the_ray_that_is_kept_is_found_by_mlbench_alone_and_goes_also_when_its_servers_were_killed(
    own_places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a whole Ray has processes that outlive its servers; `kept_ray` is stopped while they live."""
    before = leftovers(own_places)
    mlbench(own_places, "start")
    assert ray_found(own_places) == USERS_RAY
    monkeypatch.setattr(os, "environ", own_places)
    assert persistent.address() is not None and list(temporary_folder.abandoned())
    mlbench(own_places, "reap")
    servers = persistent.servers()
    assert len(servers) == 2, "it is nobody's that was killed"
    for pid in servers:
        psutil.Process(pid).kill()
    assert mlbench(own_places, "stop").startswith("no Ray")
    await_nothing_but(before, own_places)
