"""Logs of pods: lines that a script adds and clients follow, and a kubelet's part that sends them."""

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mlbench.record import stream


class PodLogs:
    """The logs of a cluster's pods by name."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._closed: set[str] = set()
        self._added = threading.Condition()

    def open_log(self, pod: str) -> None:
        self._lines.setdefault(pod, [])

    def print(self, pod: str, *lines: str) -> None:
        """Add lines to a pod's log."""
        with self._added:
            self._lines[pod] += [line + "\n" for line in lines]
            self._added.notify_all()

    def say(self, pod: str, *messages: dict[str, Any]) -> None:
        """Add messages of the event stream to a pod's log."""
        self.print(pod, *(stream.encode(message).rstrip("\n") for message in messages))

    def close_log(self, pod: str) -> None:
        with self._added:
            self._closed.add(pod)
            self._added.notify_all()

    def gone(self, pod: str) -> bool:
        """Return whether nothing more can come of a pod, closed or not."""
        raise NotImplementedError

    def printed(self, pod: str) -> list[str]:
        """Return the lines of a pod's log so far."""
        with self._added:
            return list(self._lines.get(pod, ()))

    def follow(self, pod: str) -> Iterator[str]:
        """Yield the lines of a pod's log until it is closed, or the pod gone."""
        sent = 0
        while True:
            with self._added:
                lines = self._lines.get(pod, [])[sent:]
                over = pod in self._closed or self.gone(pod)
                if not lines and not over:
                    self._added.wait(0.2)
            yield from lines
            sent += len(lines)
            if over and not lines:
                return


def kubelet(
    output: Callable[[str, str, bool], Iterable[bytes]], *, certificate: Path | None
) -> ThreadingHTTPServer:
    """Return the part of a kubelet that an API server asks for logs, on a free port of loopback.

    - output: takes pod, container and whether to follow.
    - certificate: the folder with server.crt and server.key; None: plain HTTP.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            pod, container = path.split("/")[3:5]  # /containerLogs/NAMESPACE/...
            send_chunks(self, output(pod, container, "follow=true" in query))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is None:
        return server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "server.crt", certificate / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def send_chunks(handler: BaseHTTPRequestHandler, parts: Iterable[bytes]) -> None:
    """Answer with parts as they come (RFC 9112, 7.1)."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with suppress(OSError):
        for data in parts:
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")
