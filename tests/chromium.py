"""A real, headless Chromium that opens a page and tells what happened: the DevTools protocol on a pipe."""

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from commands import PATIENCE_S

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """An open tab: `events` has everything that it told, errors of scripts among them."""

    def __init__(self, write: int, read: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._write, self._read, self._buffer, self._count = write, read, b"", 0
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    _session: str | None = None

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, *, width: int = 1280, height: int = 900, scripts: bool = True) -> None:
        """Open a page and wait until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.until(lambda: any(event.get("method") == "Page.loadEventFired" for event in self.events))

    def until(self, done: Any) -> None:
        """Wait until `done` is true, looking after every answer."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end, "the page does not get there"
            self.send("Runtime.evaluate", expression="1")
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def errors(self) -> list[dict[str, Any]]:
        """Return what scripts threw, and what the console and the browser call an error."""
        return [
            event
            for event in self.events
            if event.get("method") == "Runtime.exceptionThrown"
            or (event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
            or (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error")
        ]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        addresses = (
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        )
        return [url for url in addresses if not url.startswith(("data:", "blob:"))]

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))

    def screen(self, path: Path) -> None:
        """Write a PNG of what the window shows."""
        path.write_bytes(b64decode(self.send("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            block = os.read(self._read, 1 << 20)
            assert block, "Chromium has ended"
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextmanager
def browse() -> Iterator[Page]:
    """Start Chromium with a profile of its own and yield an open page; it is stopped at the end."""
    assert PROGRAM is not None
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def as_three_and_four() -> None:
            high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            [PROGRAM, *options],
            preexec_fn=as_three_and_four,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(write, read)
        finally:
            os.close(write)
            os.close(read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
