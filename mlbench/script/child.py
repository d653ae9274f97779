"""Starts a command under the probe, reads what it prints, and ends it with all that it has started."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from mlbench import clock
from mlbench.clusters import processes
from mlbench.config.errors import UserError
from mlbench.script import sender

LOG_BYTES = 2**20  # bytes of the begin, and as many of the end, of what a command prints
LINE_BYTES = 2**14  # bytes of a line in which a metric is looked for
CHUNK = 2**16  # bytes read at once
POLL_S = 0.05  # s between two looks whether a command has ended
END_S = 10.0  # s that a command has to end after SIGTERM
# s that it has to save its state after a signal that came to this process. Slurm (KillWait) and Kubernetes
# kill what is left 30 s after SIGTERM; the last 5 s are for the record.
GRACE_S: dict[int, float] = {signal.SIGINT: 120.0, signal.SIGHUP: 120.0, signal.SIGTERM: 25.0}
RAISED = re.compile(
    r"^(\[rank\d+\]: *)?[\w.]*(Error|Exception|Interrupt|Exit)\b(:|$)"
)  # a traceback's last line
STYLE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")  # ECMA-48: a colour, or a move of the cursor
PR_SET_PDEATHSIG = 1  # prctl(2)


class ScriptOutput:
    """What a command prints: the begin, the end, and values of its metric."""

    def __init__(self, pattern: str | None, on_value: Callable[[float], None]) -> None:
        self._pattern = re.compile(pattern.encode()) if pattern else None
        self._on_value = on_value
        self._begin, self._end, self._left_out = bytearray(), bytearray(), 0
        self._line = b""
        self.changed_at = clock.monotonic()  # when something was printed last
        self._taking = threading.Lock()

    def take(self, chunk: bytes, *, last: bool = False, metric: bool = True) -> None:
        """Take in what was printed now.

        last: nothing follows, and a line may lack its end. metric: whether the metric may be in it.
        """
        with self._taking:
            self.changed_at = clock.monotonic()
            if metric and self._pattern is not None:
                *lines, self._line = (self._line + chunk).splitlines(keepends=False) or [b""]
                if last or chunk.endswith((b"\n", b"\r")):
                    lines, self._line = [*lines, self._line], b""
                self._line = self._line[-LINE_BYTES:]
                for line in lines:
                    self._look(line)
            room = LOG_BYTES - len(self._begin)
            self._begin += chunk[:room]
            self._end += chunk[room:]
            gone = max(0, len(self._end) - LOG_BYTES)
            del self._end[:gone]
            self._left_out += gone

    def _look(self, line: bytes) -> None:
        if self._pattern and (match := self._pattern.search(STYLE.sub(b"", line[-LINE_BYTES:]))):
            with suppress(ValueError, IndexError, TypeError):
                self._on_value(float(match.group(match.lastindex or 0).rstrip(b".")))

    def log(self) -> bytes:
        """Return the begin and the end of what was printed, and how much lies between."""
        gap = f"\n[{self._left_out:,} bytes left out]\n".encode() if self._left_out else b""
        return bytes(self._begin) + gap + bytes(self._end)

    def last_line(self) -> str:
        """Return the last exception that was printed, without one the last line with a word."""
        lines = self.log()[-4 * CHUNK :].decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if re.search(r"\w", line)]
        raised = [line for line in said if RAISED.search(line) and "ChildFailedError" not in line]
        return (raised or said or [""])[-1]


class Child:
    """A running command, the leader of its own process group.

    - arguments: the command. cwd: its working directory. variables: added to its environment.
    - output: gets what it prints, standard output and errors together. show(chunk): likewise, at once.
    - stdin: its standard input as subprocess has it; None: this process's own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        variables: Mapping[str, str],
        output: ScriptOutput,
        show: Callable[[bytes], object] = lambda _: None,
        stdin: int | None = subprocess.DEVNULL,
    ) -> None:
        self.output, self._show, self._ending = output, show, False
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # before the fork
        (printed, end), (others, of_others) = os.pipe(), os.pipe()
        self._of_others = open(of_others, "wb")  # noqa: SIM115
        self._mark = f"{os.fstat(end).st_ino} /proc/{os.getpid()}/fd/{of_others}"
        try:
            self.process = subprocess.Popen(
                arguments,
                cwd=cwd,
                env={**os.environ, **variables, sender.OTHERS: self._mark},
                stdin=stdin,
                stdout=end,
                stderr=end,
                start_new_session=True,
                preexec_fn=libc and (lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)),
            )
        except OSError as error:
            raise UserError(f"{arguments[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(end)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,), kwargs={"metric": metric}, daemon=True)
            for pipe, metric in ((printed, True), (others, False))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: int, *, metric: bool) -> None:
        with open(pipe, "rb", buffering=0) as stream, suppress(OSError, ValueError):
            while chunk := stream.read(CHUNK):
                self.output.take(chunk, metric=metric)
                if not self._ending:  # what a launcher says of its end is not the script's
                    self._show(chunk)
        self.output.take(b"", last=True, metric=metric)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, as a shell has it, once the command has ended; None after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout_s)
            return 128 - code if code < 0 else code
        return None

    def end(self, signal_number: int | None = None) -> int:
        """End the command and all that it has started, by SIGTERM and SIGKILL; return its exit code.

        signal_number: what this process got. They get it first and have GRACE_S to save their state; a
        KeyboardInterrupt, from one more signal, ends the wait.
        """
        self._ending = signal_number is None
        patience = {signal_number or signal.SIGTERM: END_S, signal.SIGTERM: END_S, signal.SIGKILL: END_S}
        if signal_number is not None:
            patience[signal_number] = GRACE_S[signal_number]
        for number, seconds in patience.items():
            with nullcontext() if signal_number is None else suppress(KeyboardInterrupt):
                self._signal(number)
                if self._ended(seconds, group=signal_number is not None):
                    break
        # torchrun's ranks have groups of their own, and it would wait for them longer than END_S.
        processes.kill(process for _, process in processes.with_variable(sender.OTHERS, self._mark))
        self.finish()
        return self.wait(0) or 0

    def _ended(self, timeout_s: float, *, group: bool) -> bool:
        """Wait until the command, or its whole group, has ended; return False after `timeout_s`."""
        limit = clock.monotonic() + timeout_s
        while self.wait(0) is None or group and processes.of_group(self.process.pid):
            if clock.monotonic() > limit:
                return False
            time.sleep(POLL_S)
        return True

    def finish(self) -> None:
        """Kill what the command left behind, and read the rest of what it printed."""
        self._signal(signal.SIGKILL)
        self._of_others.close()
        for reader in self._readers:
            reader.join(END_S)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def variables(address: str, token: str) -> dict[str, str]:
    """Return what makes the Python processes of a command send their steps to a collector."""
    startup = str(Path(__file__).parent / "startup")
    path = os.pathsep.join(filter(None, (startup, os.environ.get("PYTHONPATH"))))
    # Python writes to a pipe in blocks, and a metric must be read when it is printed.
    return {sender.ADDRESS: address, sender.TOKEN: token, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
