"""Every form of RAY_ADDRESS gets an answer before Ray is asked."""

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mlbench.clusters import attached
from mlbench.config.compose import compose
from mlbench.config.errors import UserError


@pytest.mark.parametrize(
    "address",
    [
        "ray://head:10001",
        "http://head:8265",
        "garbage",
        "head:",
        "head:0",
        "head:65536",
        pytest.param("::1:6379", id="IPv6"),  # syrupy takes :: for the end of a file's name
        "local",
        "head:6379 ",
    ],
)
def test_an_address_that_no_driver_can_join_is_refused(address: str, as_stored: Any) -> None:
    with pytest.raises(UserError, check=as_stored):
        attached.require_address(address)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:65535", "head.svc.local:1", "[::1]:6379"])
def test_an_address_of_a_server_is_taken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    attached.require_address(address)


def silent(server: socket.socket) -> None:
    """Take a connection and say nothing."""


def deaf(server: socket.socket) -> None:
    """Fill the queue of connections that nobody takes: the kernel drops the packets of the next one."""
    for _ in range(2):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(server.getsockname())
        clients.append(client)


def http(server: socket.socket) -> None:
    """Answer as a server of HTTP/1.1 does, e.g. Ray's dashboard."""

    def answer() -> None:
        connection, _ = server.accept()
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()


clients: list[socket.socket] = []


@pytest.mark.parametrize(
    ("behaviour", "fault"), [(silent, "no answer within"), (deaf, "no answer within"), (http, "is not Ray's")]
)
def test_what_is_no_ray_at_an_address_is_one_sentence(
    behaviour: Callable[[socket.socket], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attached.REACH_S < 10
    monkeypatch.setattr(attached, "REACH_S", 0.5)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        behaviour(server)
        refuses(f"127.0.0.1:{server.getsockname()[1]}", fault)
    while clients:
        clients.pop().close()


def test_an_address_at_which_nobody_answers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    refuses("127.0.0.1:1", "Connection refused")
    refuses("head..example:1", "label empty" if sys.version_info >= (3, 13) else "label empty or too long")


def test_a_name_server_that_does_not_answer_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "REACH_S", 0.5)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait() and [])
    refuses("head:6379", "no answer within 0.5 s")
    over.set()


def refuses(address: str, fault: str) -> None:
    experiment = compose(["cluster=attached", f"cluster.address={address}"])
    with pytest.raises(UserError, match=f"no Ray at {address} .*{fault}"), attached.connect(experiment):
        pass
