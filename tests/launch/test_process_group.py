"""The ranks meet on one interface: real processes, real sockets."""

import multiprocessing
import os
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest
from commands import PATIENCE_S

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import process_group
from mlbench.launch.process_group import Rendezvous

LOOPBACK = "127.0.0.1"


def _rank(rank: int, head: str, port: Any, ready: Any, seen: Any) -> None:
    import torch
    import torch.distributed as dist

    address = process_group.choose_interface(head)
    if rank == 0:
        port.value = process_group.listen(address)
        ready.set()
    ready.wait(PATIENCE_S)
    meeting = Rendezvous(address, port.value, start_timeout_s=PATIENCE_S)
    process_group.join(meeting, rank, backend="gloo", world_size=2, timeout_s=PATIENCE_S)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    listening = {
        entry.laddr.ip
        for entry in psutil.Process().net_connections("inet")
        if entry.status == psutil.CONN_LISTEN
    }
    dist.barrier()
    process_group.leave()
    seen.put((rank, total.item(), sorted(listening), dist.is_initialized()))


IPV6 = "::1"
needs_ipv6 = pytest.mark.skipif(
    not any(entry.address == IPV6 for each in psutil.net_if_addrs().values() for entry in each),
    reason="this machine has no IPv6; nothing of IPv6 was tested",
)


@pytest.mark.slow
@pytest.mark.parametrize("head", [LOOPBACK, pytest.param(IPV6, marks=needs_ipv6)])
def test_two_ranks_meet_on_loopback_listen_nowhere_else_and_part(head: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    port, ready, seen = spawn.Value("i", 0), spawn.Event(), spawn.Queue()
    ranks = [spawn.Process(target=_rank, args=(rank, head, port, ready, seen)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    results = sorted(seen.get(timeout=PATIENCE_S) for _ in ranks)
    for rank in ranks:
        rank.join(PATIENCE_S)
    assert [total for _, total, _, _ in results] == [3.0, 3.0]
    for _, _, listening, member in results:
        assert not member and {ip.removeprefix("::ffff:") for ip in listening} - {IPV6} == {LOOPBACK}
    # gloo itself takes the interface's first address, which on a node without IPv4 is one of IPv6
    assert (IPV6 in results[0][2]) == (head == IPV6)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in process_group.INTERFACES:
        monkeypatch.setenv(name, "x")  # so that what the code sets is taken back, too
        monkeypatch.delenv(name)
    return monkeypatch


def loopback_interface() -> str:
    addresses = psutil.net_if_addrs()
    return next(name for name in addresses if any(a.address == LOOPBACK for a in addresses[name]))


def test_the_interface_is_the_one_that_reaches_the_head(environment: pytest.MonkeyPatch) -> None:
    assert process_group.choose_interface(LOOPBACK) == LOOPBACK
    assert os.environ["GLOO_SOCKET_IFNAME"] == loopback_interface()
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback_interface()}"


@needs_ipv6
def test_a_head_with_an_address_of_ipv6_is_reached_by_one(environment: pytest.MonkeyPatch) -> None:
    assert process_group.choose_interface(IPV6) == IPV6
    assert process_group.choose_interface(IPV6, loopback_interface()) == IPV6
    with pytest.raises(UserError, match="'eth99' .* IPv6"):
        process_group.choose_interface(IPV6, "eth99")


def test_a_name_that_is_wanted_or_in_the_environment_comes_first(environment: pytest.MonkeyPatch) -> None:
    name = loopback_interface()
    assert process_group.choose_interface("192.0.2.1", name) == LOOPBACK
    environment.setenv("GLOO_SOCKET_IFNAME", name)
    assert process_group.choose_interface("192.0.2.1") == LOOPBACK
    with pytest.raises(UserError, match=rf"{socket.gethostname()} has .*'eth99'.*{name}"):
        process_group.choose_interface(LOOPBACK, "eth99")


def test_an_interface_that_a_run_names_is_nccl_s_whatever_the_environment_says(
    environment: pytest.MonkeyPatch,
) -> None:
    """Many sites export NCCL_SOCKET_IFNAME, and the record names the interface of the run."""
    name = loopback_interface()
    environment.setenv("NCCL_SOCKET_IFNAME", "ib0")
    process_group.choose_interface(LOOPBACK)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"
    process_group.choose_interface(LOOPBACK, name)
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={name}"


def test_nccl_is_given_an_algorithm_of_its_all_reduce_alone() -> None:
    """It has a broadcast and an all-gather by no tree, and refuses both where a tree is asked of all."""
    given = compose(["backend=nccl", "backend.algorithm=tree", "backend.threads=2"]).backend
    wanted = {"NCCL_ALGO": "allreduce:tree", "NCCL_SOCKET_NTHREADS": "2"}
    assert process_group.environment(given) == wanted
    assert process_group.environment(compose(["backend=nccl"]).backend) == {}


def test_a_backend_s_module_that_is_missing_is_told() -> None:
    assert socket.gethostname() in process_group.import_backend("json")
    with pytest.raises(UserError, match="backend.module=no_such_module.*install"):
        process_group.import_backend("no_such_module")


@pytest.mark.slow
def test_only_workers_import_torch() -> None:
    """Driver and controller do without, and start sooner."""
    code = (
        "import sys; from mlbench.config.compose import compose\n"
        "from mlbench.launch import execute, ray_hooks\n"
        "compose(['task=gnmt', 'workers=2', 'backend=nccl']); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
