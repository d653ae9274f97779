"""A download server on this machine, with Range requests and with the faults that real ones have."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Mirror:
    """Serves `files` and records what was asked. Faults are keyed by path."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range header
    status: dict[str, list[int]] = field(default_factory=dict)  # answered first, one a request
    breaks_after: dict[str, list[int]] = field(default_factory=dict)  # bytes, then the line is cut
    ignores_range: bool = False
    pauses_after: int | None = None  # bytes; the rest is sent when `go_on` is set
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve(**files: bytes) -> Iterator[Mirror]:
    """Run a Mirror of `files` (dots in names written as __) on 127.0.0.1 while the block runs."""
    mirror = Mirror(files={name.replace("__", "."): content for name, content in files.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, mirror))
    server.daemon_threads = True
    mirror.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, mirror: Mirror, *args) -> None:
        self.mirror = mirror
        super().__init__(*args)

    def do_GET(self) -> None:
        mirror, name = self.mirror, self.path[1:]
        mirror.requests.append((name, self.headers["Range"]))
        if mirror.status.get(name):
            self.send_error(mirror.status[name].pop(0))
        elif name not in mirror.files:
            self.send_error(404)
        else:
            self.send_file(name, mirror.files[name])

    def send_file(self, name: str, content: bytes) -> None:
        mirror, start = self.mirror, 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if match and not mirror.ignores_range:
            start = int(match[1])
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        cuts = mirror.breaks_after.get(name)
        if cuts:
            rest = rest[: cuts.pop(0)]
        if mirror.pauses_after is not None:
            self.wfile.write(rest[: mirror.pauses_after])
            mirror.go_on.wait()
            rest = rest[mirror.pauses_after :]
        with suppress(ConnectionError):  # the client was killed
            self.wfile.write(rest)

    def log_message(self, *_) -> None:
        """Say nothing."""
