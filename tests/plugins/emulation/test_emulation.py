"""Emulated hosts and their links, measured with plain sockets that know nothing of mlbench's own probe."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from commands import until
from conftest import ROOT

from mlbench import cluster
from mlbench.clusters import reaper
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.network import Network
from mlbench.plugins.emulation import cpu_share, kernel, links, namespace
from mlbench.plugins.emulation.links import Links, emulated

SO_RCVBUFFORCE = 33  # asm-generic/socket.h
MBIT = 1e6 / 8  # bytes
TCP_SHARE = 1448 / 1500  # of a full packet that is data: IPv4, TCP and its time stamps take 52 bytes


def network(*overrides: str, workers: int = 2) -> Network:
    return compose(
        ["network=1gbit_1ms", f"workers={workers}", *(f"network.{word}" for word in overrides)]
    ).network


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    try:
        links.require(network(), 2)
    except UserError as error:
        pytest.skip(f"hosts cannot be emulated here: {error}")


@contextmanager
def hosts(*overrides: str, workers: int = 2) -> Iterator[Links]:
    with emulated(network(*overrides, workers=workers), workers, in_kernel=False) as made:
        yield made


def check_rate(made: Links, mbit_s: float, *pairs: tuple[int, int], bytes_: float) -> None:
    """Check TCP streams that share a cable: their data never come sooner than a profile's rate allows.

    What else a machine computes only delays packets, so how near a link comes to its profile is not asserted.
    """
    with ThreadPoolExecutor() as pool:
        begin = time.monotonic()
        ends = list(pool.map(lambda pair: _stream(made, *pair, bytes_=int(bytes_)), pairs))
    assert len(pairs) * bytes_ / (max(ends) - begin) <= 1.01 * mbit_s * MBIT * TCP_SHARE


def _stream(made: Links, source: int, target: int, *, bytes_: int) -> float:
    """Send bytes; return when the last one arrived."""
    with made.hosts[target].entered():
        server = socket.create_server((made.addresses[target], 0))
    with made.hosts[source].entered():
        near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    thread = threading.Thread(target=lambda: near.sendall(bytes(bytes_)))
    thread.start()
    while bytes_:
        bytes_ -= len(far.recv(2**16))
    end = time.monotonic()
    thread.join()
    for connection in (near, far, server):
        connection.close()
    return end


def check_connection(made: Links, source: int, target: int, round_trip_ms: float) -> None:
    """Check the shortest time of a TCP connection, which is one round trip."""
    with made.hosts[target].entered():
        server = socket.create_server((made.addresses[target], 0))
    times = []
    for _ in range(7):
        with made.hosts[source].entered():
            begin = time.monotonic()
            socket.create_connection(server.getsockname()).close()
            times.append(1e3 * (time.monotonic() - begin))
    server.close()
    # A link that was calibrated in a busy moment takes too much of its own time off the delay.
    assert min(times) > round_trip_ms / 2


def test_bandwidth_and_delay_are_those_of_the_profile_in_each_direction() -> None:
    with hosts("bandwidth_mbit_s=80", "bandwidth_down_mbit_s=40", "delay_ms=5") as made:
        # Either way passes one cable up, at 80, and one down, at 40.
        check_rate(made, 40, (0, 1), bytes_=3e6)
        check_rate(made, 40, (1, 0), bytes_=3e6)
        check_connection(made, 0, 1, 10)
    with hosts("bandwidth_mbit_s=30", "bandwidth_down_mbit_s=60", "delay_ms=20") as made:
        check_rate(made, 30, (0, 1), bytes_=3e6)
        check_connection(made, 0, 1, 40)


def test_packets_are_lost_at_the_rate_of_the_profile() -> None:
    packets, share = 4000, 0.05
    with hosts(f"loss_percent={100 * share}", "bandwidth_mbit_s=100") as made:
        with made.hosts[1].entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
            far.bind((made.addresses[1], 0))
            far.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 2**25)
            far.settimeout(1)
            with made.hosts[0].entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
                for number in range(packets):
                    near.sendto(b"%d" % number, far.getsockname())
                    if number % 50 == 0:
                        time.sleep(1e-3)  # or the device's own queue overflows
            seen = []
            with pytest.raises(TimeoutError):
                while True:
                    seen.append(int(far.recv(99)))
        assert seen == sorted(set(seen)), "packets were repeated or reordered"
        deviation = (share * (1 - share) / packets) ** 0.5
        assert 1 - len(seen) / packets == pytest.approx(share, abs=5 * deviation)


def test_hosts_of_a_rack_share_its_cable_and_one_host_shares_its_own() -> None:
    overrides = ("bandwidth_mbit_s=100", "racks=2", "rack_bandwidth_mbit_s=60", "rack_delay_ms=10")
    with hosts(*overrides, workers=4) as made:
        check_connection(made, 0, 1, 2)  # within a rack
        check_connection(made, 0, 2, 22)  # between racks
        check_rate(made, 60, (0, 2), (1, 3), bytes_=5e6)
        check_rate(made, 100, (0, 1), (3, 1), bytes_=5e6)  # incast


def test_the_slow_rank_has_the_slow_link() -> None:
    with hosts("slow_rank=1", "slow_bandwidth_mbit_s=20", "bandwidth_mbit_s=200", workers=3) as made:
        check_rate(made, 200, (0, 2), bytes_=10e6)
        check_rate(made, 20, (0, 1), bytes_=1e6)


def test_a_link_that_this_machine_cannot_carry_is_refused() -> None:
    with (
        hosts("bandwidth_mbit_s=1e6") as made,
        pytest.raises(UserError, match=r"0 and 1 .* Mbit/s .*1e\+06"),
    ):
        made.measure()


@pytest.mark.parametrize(("delay_ms", "real_time"), [(1, True), (0.1, False)])
def test_a_link_that_never_sleeps_has_no_real_time_priority(
    delay_ms: float, real_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would stop it for 50 ms of every second; one that sleeps has it, to wake up in time."""
    # Beside a link that never sleeps it takes a minute.
    monkeypatch.setattr(Links, "calibrate", lambda _: None)
    with hosts(f"delay_ms={delay_ms}") as made:
        assert made.process is not None
        pid = made.process.pid
        if real_time and subprocess.run(["chrt", "-f", "1", "true"], capture_output=True).returncode:
            pytest.skip("nobody may have real-time priority here")
        assert os.sched_getscheduler(pid) == (os.SCHED_FIFO if real_time else os.SCHED_OTHER)
        assert real_time or os.getpriority(os.PRIO_PROCESS, pid) == -20


def test_hosts_are_apart_from_each_other_and_from_the_machine() -> None:
    with hosts() as made:
        names = [
            subprocess.run(
                host.command(["hostname"]), capture_output=True, text=True, check=True
            ).stdout.strip()
            for host in made.hosts
        ]
        assert names == ["emulated0", "emulated1"]
        with made.hosts[0].entered(), socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with made.hosts[1].entered(), pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        assert not {"control", "link"} & psutil.net_if_addrs().keys()


def test_nothing_is_left_behind() -> None:
    def state() -> tuple[set[str], list[psutil.Process], list[Path], int]:
        groups = list((reaper.controller() or Path("/nowhere")).glob(f"{reaper.PREFIX}{reaper.owner()}"))
        own = [process for _, process in reaper.processes(reaper.owner())]
        return set(psutil.net_if_addrs()), own, groups, len(os.listdir("/proc/self/fd"))

    with hosts():
        pass  # what Python opens once
    before = state()
    with hosts("racks=2", workers=4) as made:
        command = cpu_share.limited(["sleep", "600"], host=1, cpus=0.5)
        process = subprocess.Popen(made.hosts[1].command(command), env={**os.environ, **reaper.environment()})
        until(lambda: len(reaper.processes(reaper.owner())) == 3)  # links, probe and sleeper
        assert len(state()[2]) == 1
        reaper.end(reaper.owner())
        assert not psutil.pid_exists(process.pid)
        process.wait()
    assert state() == before


OWNER = """
import os, subprocess, sys, time
from mlbench.clusters import reaper
from mlbench.plugins.emulation import cpu_share, links
from mlbench.config.compose import compose
network = compose(["network=1gbit_1ms"]).network
with links.emulated(network, 2) as made:
    words = cpu_share.limited(["sh", "-c", "setsid sleep 600 & sleep 600"], host=1, cpus=0.5)
    subprocess.Popen(made.hosts[1].command(words), env={**os.environ, **reaper.environment()})
    print(reaper.owner(), flush=True)
    time.sleep(600)
"""


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_what_kill_9_leaves_is_found_and_what_lives_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    killed, dead = start()
    living, alive = start()
    until(lambda: {"sleep"} <= {process.name() for _, process in reaper.processes(dead)})
    assert dead not in reaper.reap()
    kill(killed)
    # The kernel ends the links and the first process of each host; what that one had started is the reaper's.
    until(lambda: not {"python", "sh"} & {process.name() for _, process in reaper.processes(dead)})
    assert {process.name() for _, process in reaper.processes(dead)} == {"sleep"}
    assert dead in reaper.reap()
    assert not list(reaper.processes(dead))
    root = reaper.controller()
    assert root is not None and not (root / f"{reaper.PREFIX}{dead}").exists()
    assert (root / f"{reaper.PREFIX}{alive}").exists() and list(reaper.processes(alive))
    kill(living)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cluster.main(["reap"]) == 0
    ended = [line for line in capsys.readouterr().out.splitlines() if "had left" in line]
    assert len(ended) == 1 and ended[0].endswith(f": {alive}")
    assert not list(reaper.processes(alive)) and not (root / f"{reaper.PREFIX}{alive}").exists()


def test_what_starts_while_a_run_is_ended_is_ended_too() -> None:
    pid, _, namespace = reaper.owner().split("-")
    name = f"{pid}-1-{namespace}"  # an owner that has died: its number was given again
    forks = subprocess.Popen(
        ["sh", "-c", "while :; do sleep 60 & sleep 0.002; done"], env={**os.environ, reaper.MARK: name}
    )
    until(lambda: len(reaper.processes(name)) > 20)
    reaper.end(name)
    forks.wait()
    assert not reaper.processes(name)


def test_links_by_the_kernel_carry_the_same() -> None:
    host = namespace.create("probe")
    try:
        if not kernel.has_netem(host):
            pytest.skip("this kernel has no netem (tc: Specified qdisc kind is unknown)")
    finally:
        host.close()
    factory: Callable[..., Network] = network
    with emulated(
        factory("bandwidth_mbit_s=80", "bandwidth_down_mbit_s=40", "delay_ms=5"), 2, in_kernel=True
    ) as made:
        assert made.kind == "netem"
        check_rate(made, 40, (0, 1), bytes_=3e6)
        check_connection(made, 0, 1, 10)


def test_a_missing_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("nsenter", "setpriv"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"ip \(install iproute2\)"):
        links.require(network(), 2)
