"""Signs of life: over a real socket, and harmless when nobody or somebody else is there."""

import fcntl
import json
import resource
import socket
from typing import Any

import pytest

from mlbench.launch.heartbeat import HeartbeatClient, HeartbeatServer


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_signs_arrive_with_their_rank(host: str) -> None:
    try:
        receiver = HeartbeatServer(host)
    except OSError:
        pytest.skip("this machine has no IPv6; nothing of IPv6 was tested")
    for rank in (1, 0):
        HeartbeatClient(receiver.address, token=receiver.token, rank=rank)({"epoch": 0.5})
    signs: list[dict[str, Any]] = []
    while len(signs) < 2:
        signs += receiver.poll(wait=5)
    assert sorted(sign["rank"] for sign in signs) == [0, 1]
    assert all(sign["epoch"] == 0.5 and "token" not in sign for sign in signs)
    receiver.close()


def test_strangers_are_ignored() -> None:
    receiver = HeartbeatServer()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        guess = json.dumps({"token": "guess", "epoch": 1}).encode()
        for datagram in (b"\xff\xfe", b"[]", b'"x"', b"[" * 8000, guess):
            stranger.sendto(datagram, receiver.address)
    HeartbeatClient(receiver.address, token=receiver.token, rank=0)({"last": True})
    signs = receiver.poll(wait=5) + receiver.poll(wait=0.2)
    assert [sign.get("last") for sign in signs] == [True]
    receiver.close()


def test_a_sender_neither_waits_nor_fails_when_nobody_listens() -> None:
    receiver = HeartbeatServer()
    sender = HeartbeatClient(receiver.address, token=receiver.token, rank=0)
    receiver.close()
    for _ in range(1000):
        sender({"epoch": 1})


def test_it_listens_on_loopback() -> None:
    receiver = HeartbeatServer()
    assert receiver.address[0] == "127.0.0.1"
    receiver.close()


def test_signs_arrive_where_many_files_are_open() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024:
        pytest.skip("this process may open few files")
    receiver = HeartbeatServer()
    with receiver._socket as first:  # a number beyond those of select(2)
        receiver._socket = socket.socket(fileno=fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 1024))
    HeartbeatClient(receiver.address, token=receiver.token, rank=0)({"last": True})
    assert [sign["last"] for sign in receiver.poll(wait=5)] == [True]
    receiver.close()
