"""What NCCL's log tells of a run's transport; the lines have the form of its versions 2.24 to 2.28."""

import os
from pathlib import Path

import pytest

from mlbench.clusters import nccl_log

HOST = "node-1:4607:4684 [0] NCCL INFO "
INFINIBAND = [
    "Bootstrap: Using eth0:10.1.2.3<0>",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.1.2.3<0>",
    "Initialized NET plugin IB",
    "Assigned NET plugin IB to comm",
    "Using network IB",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "Channel 01/0 : 7[7] -> 8[0] [send] via NET/IB/4/GDRDMA",
    "Channel 01/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
    "AllReduce: 16777216 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}",
    "AllGather: 2097152 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
]
SOCKET = [
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.1.2.3<0>",
    "Using non-device net plugin version 0",
    "Using network Socket",
    "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0",
    "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
    "AllReduce: 16777216 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}",
]
LIBFABRIC = [
    "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
    "Using network AWS Libfabric",
    "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
]


def log(lines: list[str]) -> str:
    return "NCCL version 2.28.9+cuda13.0\n" + "".join(f"{HOST}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            INFINIBAND,
            {
                "network": "IB",
                "paths": "NET/IB/GDRDMA, P2P",
                "algorithms": "TREE (4 B), NVLS_TREE (16777216 B)",
            },
        ),
        (SOCKET, {"network": "Socket", "paths": "NET/Socket, SHM", "algorithms": "RING (16777216 B)"}),
        (
            LIBFABRIC,
            {"network": "AWS Libfabric", "provider": "efa", "paths": "NET/AWS Libfabric/GDRDMA"},
        ),
        ([], {}),
    ],
)
def test_a_log_names_network_paths_and_algorithms(lines: list[str], expected: dict[str, str]) -> None:
    assert nccl_log.parse(log(lines)) == expected


def test_the_log_is_read_and_then_takes_no_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nccl_log.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    transport = {"library": "nccl"}
    with nccl_log.recorded(transport):
        assert os.environ["NCCL_DEBUG_SUBSYS"] == "INIT,NET,TUNING" and os.environ["NCCL_DEBUG"] == "INFO"
        held = open(os.environ["NCCL_DEBUG_FILE"], "w", buffering=1)  # noqa: SIM115  (NCCL keeps it open)
        held.write(log(SOCKET))
    assert transport["network"] == "Socket" and transport["library"] == "nccl"
    assert not any(name in os.environ for name in nccl_log.VARIABLES)
    held.write("a line of a later collective\n")
    held.flush()
    assert os.path.samestat(os.fstat(held.fileno()), os.stat(os.devnull))
    assert list(tmp_path.rglob("nccl.log")) == []
    held.close()


def test_a_user_s_own_log_stays_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    transport: dict[str, str] = {}
    with nccl_log.recorded(transport):
        assert os.environ["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_FILE" not in os.environ
    assert transport == {}
