"""Heartbeats from the workers to the command that started them: small, unreliable, never blocking.

A UDP datagram costs a worker some microseconds, never blocks, and may get lost. Nothing that a result is made
from travels here (that goes through `ray.train.report` and the event log). The server listens on loopback
unless the workers are on other machines, and ignores datagrams without this run's token.
"""

import json
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MAX_BYTES = 8192  # bytes, while a heartbeat has a few hundred


def family(address: str) -> socket.AddressFamily:
    """Return the family of an address: IPv6 addresses have colons."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class HeartbeatServer:
    """The driver's end."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.token = secrets.token_hex(8)
        self._socket = socket.socket(family(host), socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def poll(self, *, wait: float) -> list[dict[str, Any]]:
        """Return the heartbeats that have arrived, after waiting at most `wait` seconds for the first."""
        heartbeats = []
        while True:
            self._socket.settimeout(wait)  # unlike select(2) for any number of open files
            wait = 0.0
            try:
                heartbeat = json.loads(self._socket.recv(MAX_BYTES))
            except (TimeoutError, BlockingIOError):
                return heartbeats
            except (ValueError, RecursionError):  # a stranger's, perhaps nested deeply
                continue
            if isinstance(heartbeat, dict) and heartbeat.pop("token", None) == self.token:
                heartbeats.append(heartbeat)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


class HeartbeatClient:
    """A worker's end."""

    def __init__(self, address: tuple[str, int], *, token: str, rank: int) -> None:
        self._address = address
        self._stamp = {"token": token, "rank": rank}

    def __call__(self, heartbeat: Mapping[str, Any]) -> None:
        """Send a heartbeat. A full or broken network loses it."""
        with suppress(OSError), socket.socket(family(self._address[0]), socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto(json.dumps({**heartbeat, **self._stamp}).encode(), self._address)
