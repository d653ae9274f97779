"""Runs on emulated hosts, as commands: a raylet in a namespace for each host."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import pytest
from commands import Run, until
from conftest import ROOT
from leftovers import USERS_RAY, await_nothing_but, leftovers, mlbench, ray_found

from mlbench.clusters import reaper
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.plugins.emulation import links, measurement
from mlbench.report import grouping
from mlbench.terminal.full_card import extras

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
SLOW = ("network.slow_rank=1", "network.slow_bandwidth_mbit_s=50", "network.slow_cpus=0.35")
BUSY = "a machine that is less busy"  # what may help where links miss their profile
# A step takes longer than the kernel's slices of time, so that a third of a CPU shows in each.
TRAINING = ("task=resnet20", "workers=2", "task.epochs=2", "goal=none", "division=open")


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        links.require(compose(["network=1gbit_1ms"]).network, 2)
    except UserError as error:
        pytest.skip(f"hosts cannot be emulated here: {error}")


def skip_if_busy(output: str) -> None:
    """Skip a test whose run was refused because other programs leave its links no CPU."""
    if BUSY in output:
        pytest.skip("other programs leave emulated links too little CPU")


def test_a_process_that_may_not_emulate_hosts_is_told_so(tmp_path: Path) -> None:
    weak = ("setpriv", "--bounding-set=-sys_admin,-net_admin", sys.executable, "-m", "mlbench.run")
    words = (f"output_root={tmp_path}", "task=logreg", "network=1gbit_1ms")
    done = subprocess.run([*weak, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "lacks a right" in done.stderr


def interfaces(owner: str) -> list[Path]:
    """Return where the kernel counts what each emulated host of a run has sent."""
    files: dict[str, Path] = {}
    for _, process in reaper.processes(owner):
        with suppress(OSError, psutil.Error):  # it has just ended
            own = Path(f"/proc/{process.pid}")
            if process.name() == "raylet" and f"{links.INTERFACE}:" in (own / "net/dev").read_text():
                files[os.readlink(own / "ns/net")] = own / "net/dev"
    return list(files.values())


def sent(file: Path) -> int:
    """Return the bytes that a host has sent over its link; proc(5): the ninth number."""
    (line,) = (line for line in file.read_text().splitlines() if line.strip().startswith(links.INTERFACE))
    return int(line.partition(":")[2].split()[8])


def test_mpi_trains_over_the_slow_link_and_the_rank_with_less_cpu_is_found(
    tmp_path: Path, data_root: Path
) -> None:
    """Only a run shows that MPI takes the link and no other way, and that the waiting is the slow rank's.

    That it adds up what gloo does is shown on four ranks (test_mpi.py).
    """
    overrides = ("backend=mpi", "network=1gbit_1ms", "network.bandwidth_mbit_s=200", *SLOW)
    run = Run(dict(os.environ), tmp_path, data_root, *TRAINING, *overrides)
    owner = reaper.owner(run.process.pid)
    until(lambda: trains_or_ended(run))
    files = interfaces(owner)
    validations, counts = 0, list[int]()
    while run.process.poll() is None:
        epochs = run.validations()
        with suppress(OSError, ValueError):  # the hosts have just ended
            counts = [sent(file) for file in files]
            validations = epochs
        time.sleep(0.2)
    code, output = run.finish()
    skip_if_busy(output)
    assert code == 0, output
    measured = run.record()
    assert measured.contradictions == []
    assert [node.hostname for node in measured.nodes] == ["emulated0", "emulated1"]
    emulated = measurement.of(measured)
    assert emulated is not None and emulated.hosts == 2
    (link,) = emulated.measured
    assert link.bandwidth_mbit_s == pytest.approx(50, rel=0.1)
    assert link.round_trip_ms == pytest.approx(2, rel=0.1)
    assert any("emulated: 200 Mbit/s" in reason for reason in measured.official_reasons)
    assert extras(measured)[0][1].startswith("2 emulated hosts")

    chosen = {"provider": "ofi tcp", "interface": links.INTERFACE}
    assert [chosen.items() <= node.transport.items() for node in measured.nodes] == [True, True]
    assert measured.gradient_bytes is not None and measured.gradient_bytes > 200_000
    least = validations * measured.steps / 2 * measured.gradient_bytes  # of two ranks each sends all once
    assert validations and len(counts) == 2 and min(counts) > least, (validations, counts)

    if not measured.disturbances:  # else the other rank may have had as little CPU
        phases = measured.phases  # of two ranks
        assert phases["backward"].max > 1.3 * phases["backward"].min
        assert phases["wait"].max > 0.5 * (phases["backward"].max - phases["backward"].min)
        late = [median(block.median_s for block in blocks) for blocks in measured.lateness]
        assert late[1] > 0 > late[0]
        (group,) = grouping.groups([measured], with_disturbed=True)
        (sentence,) = grouping.waiting(group)
        assert "in 1 of 1 run " in sentence and "rank 1 keeps" in sentence


def trains_or_ended(run: Run) -> bool:
    return run.process.poll() is not None or bool(
        list(run.output.glob("*/events.jsonl")) and run.validations()
    )


def test_a_killed_run_on_hosts_leaves_nothing_and_no_address_that_a_plain_ray_would_join(
    own_places: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """Only workers that train on hosts have all that a killed run can leave, and an address."""
    before = leftovers(own_places)
    overrides = (
        "task=logreg",
        "goal=none",
        "division=open",
        "task.epochs=100000",
        "network.bandwidth_mbit_s=20",
    )
    run = Run(own_places, tmp_path, data_root, *overrides, "network=1gbit_1ms", "network.cpus=1")
    until(partial(trains_or_ended, run))
    if run.process.poll() is not None:
        skip_if_busy(run.finish()[1])
    assert run.process.poll() is None, run.finish()[1]
    assert ray_found(own_places) == USERS_RAY, "while it runs"
    run.process.kill()
    run.process.communicate()
    assert any("control group" in name for name in leftovers(own_places) - before)
    assert "had left: " in mlbench(own_places, "reap")
    await_nothing_but(before, own_places)
    Path(own_places["TMPDIR"], "ray", "ray_current_cluster").unlink()
    assert ray_found(own_places) == "None", "a plain ray.init() starts its own"
