"""Starts a command under the probe, reads what it prints, and ends it with all that it has started."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mlbench import clock
from mlbench.clusters import processes
from mlbench.config import own_variables
from mlbench.config.errors import UserError
from mlbench.probe import sender
from mlbench.script import failure_cause, session
from mlbench.script.printed_metric import PrintedMetric
from mlbench.script.pseudo_terminal import PseudoTerminal, terminal

LOG_BYTES = 2**20  # bytes of the begin, and as many of the end, of what a command prints
LINE_BYTES = 2**14  # bytes of a line in which a metric is looked for
CHUNK = 2**16  # bytes read at once
POLL_S = 0.05  # s between two looks whether a command has ended
END_S = 10.0  # s that a command has to end after SIGTERM
LEAVE_S = 1.0  # s that the processes of a command that has ended have to end with it
# s that it has to save its state after a signal that came to this process. Slurm (KillWait) and Kubernetes
# kill what is left 30 s after SIGTERM; the last 5 s are for the record.
GRACE_S: dict[int, float] = {signal.SIGINT: 120.0, signal.SIGHUP: 120.0, signal.SIGTERM: 25.0}
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)  # beside those that end a run
PR_SET_PDEATHSIG = 1  # prctl(2)


class ScriptOutput:
    """What a command prints: the begin, the end, and values of its metric."""

    def __init__(self, metric: PrintedMetric | None) -> None:
        self._metric = metric
        self._begin, self._end, self._left_out = bytearray(), bytearray(), 0
        self._lines: dict[int, bytes] = {}  # what each stream's last line has until now
        self.changed_at = clock.monotonic()  # when something was printed last
        self._taking = threading.Lock()

    def take(self, chunk: bytes, *, last: bool = False, metric: bool = True, stream: int = 0) -> None:
        """Take in what was printed now.

        last: nothing follows, and a line may lack its end. metric: whether the metric may be in it.
        stream: on which of several streams, whose lines do not mix.
        """
        with self._taking:
            self.changed_at = clock.monotonic()
            if metric and self._metric is not None:
                text = self._lines.get(stream, b"") + chunk
                *lines, line = text.splitlines(keepends=False) or [b""]
                if last or chunk.endswith((b"\n", b"\r")):
                    lines, line = [*lines, line], b""
                self._lines[stream] = line[-LINE_BYTES:]
                for each in lines:
                    self._metric.look(each[-LINE_BYTES:])
            room = LOG_BYTES - len(self._begin)
            self._begin += chunk[:room]
            self._end += chunk[room:]
            gone = max(0, len(self._end) - LOG_BYTES)
            del self._end[:gone]
            self._left_out += gone

    def log(self) -> bytes:
        """Return the begin and the end of what was printed, and how much lies between."""
        gap = f"\n[{self._left_out:,} bytes left out]\n".encode() if self._left_out else b""
        return bytes(self._begin) + gap + bytes(self._end)

    def cause(self) -> str:
        """Return why the command has failed, in its own words: an exception, or the last line with a word."""
        return failure_cause.cause(self.log()[-4 * CHUNK :])


@dataclass
class _Stream:
    """Where a command, and apart from it its other ranks, prints; and what is read there.

    - end, of_others: the ends of a pipe or terminal that are written to. printed, apart: those that are read.
    - sink: the file of this process in which it comes out; None: it is kept, and not shown.
    """

    printed: int
    end: int
    apart: int
    of_others: int
    sink: int | None

    @property
    def mark(self) -> str:
        """Return how a rank knows this stream, and the path of the one to print to instead."""
        path = f"/proc/{os.getpid()}/fd/{self.of_others}"
        if os.isatty(self.of_others):
            path = os.ttyname(self.of_others)
        return f"{sender.identity(self.end)} {path}"


class Child:
    """A running command, the leader of its own process group.

    - arguments: the command. cwd: its working directory. variables: added to its environment.
    - output: gets what it prints, standard output and errors together.
    - mirrors: whether its streams are of the kind of this process's, a terminal or not, and come out there.
    - stdin: its standard input as subprocess has it; None: this process's own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        variables: Mapping[str, str],
        output: ScriptOutput,
        mirrors: bool = False,
        stdin: int | None = subprocess.DEVNULL,
    ) -> None:
        self.output, self._ending = output, False
        self.left: list[psutil.Process] = []  # those that run after the command has ended
        self._screen = PseudoTerminal(source) if mirrors and (source := terminal()) is not None else None
        self._streams, out, errors = _streams(self._screen, mirrors=mirrors)
        self.mark = " ".join(stream.mark for stream in self._streams)
        environment = {**own_variables.without(), **variables, sender.OTHERS: self.mark}
        self._stop, self._stopped = os.pipe()
        report, reported = os.pipe()
        command, kept = list(arguments), list[int]()
        if self._screen is not None:
            kept = [self._screen.theirs, reported]
            command = [sys.executable, "-I", "-S", session.__file__, *map(str, kept), *arguments]
            stdin = self._screen.theirs if stdin is None and os.isatty(0) else stdin
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # before the fork
        try:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=stdin,
                stdout=out.end,
                stderr=errors.end,
                start_new_session=True,
                pass_fds=kept,
                preexec_fn=libc and (lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)),
            )
        except OSError as error:
            raise UserError(f"{arguments[0]} cannot be started: {error.strerror}") from error
        finally:
            for number in (reported, *(stream.end for stream in self._streams)):
                os.close(number)
        with open(report, "rb") as told:
            self.pid = int(told.readline() or self.process.pid)
        self._within_line: dict[int, bool] = {}  # whether what came out of a sink lacks the end of its line
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, stream.sink, index, metric), daemon=True)
            for index, stream in enumerate(self._streams)
            for pipe, metric in ((stream.printed, True), (stream.apart, False))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: int, sink: int | None, index: int, metric: bool) -> None:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        with suppress(OSError):  # a terminal whose other end is closed
            while pipe in (ready := dict(poll.poll())) or self._stop not in ready:
                chunk = os.read(pipe, CHUNK)
                if not chunk:
                    break
                self.output.take(chunk, metric=metric, stream=index)
                # What a launcher prints at its end is not the script's.
                if sink is not None and not self._ending:
                    _write(sink, chunk)
                    self._within_line[sink] = not chunk.endswith((b"\n", b"\r"))
        self.output.take(b"", last=True, metric=metric, stream=index)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Pass on to the command what is typed on its terminal, and signals that do not end a run."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
        handlers: dict[int, Any] = dict.fromkeys(PASSED_ON, lambda number, _: self.pass_on(number))
        handlers[signal.SIGTSTP] = self._pause
        with self._screen.attached() if self._screen is not None else nullcontext(), ExitStack() as stack:
            for number, handler in handlers.items():
                if (before := signal.getsignal(number)) is not signal.SIG_IGN:
                    signal.signal(number, handler)
                    stack.callback(signal.signal, number, before)
            yield

    def _pause(self, number: int, _: Any) -> None:
        """Stop with the command, as Ctrl-Z does, and go on with it."""
        with suppress(ProcessLookupError), nullcontext() if self._screen is None else self._screen.paused():
            os.killpg(self.pid, signal.SIGSTOP)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, self._pause)
            os.killpg(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, as a shell has it, once the command has ended; None after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout_s)
            return 128 - code if code < 0 else code
        return None

    def pass_on(self, number: int) -> None:
        """Send the command a signal that came to this process; its whole group one from the keyboard."""
        group = number == signal.SIGHUP or number in (signal.SIGINT, signal.SIGQUIT) and _keyboard()
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self, signal_number: int | None = None) -> int:
        """End the command and all that it has started, by SIGTERM and SIGKILL; return its exit code.

        signal_number: what this process got. They get it first and have GRACE_S to save their state; a
        KeyboardInterrupt, from one more signal, ends the wait.
        """
        self._ending = signal_number is None
        if signal_number is not None:
            with suppress(KeyboardInterrupt):
                self.pass_on(signal_number)
                if self._ended(GRACE_S[signal_number], group=True, rest=signal_number):
                    self.finish()
                    return self.wait(0) or 0
        for number in [each for each in (signal.SIGTERM, signal.SIGKILL) if each != signal_number]:
            with nullcontext() if signal_number is None else suppress(KeyboardInterrupt):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)
                if self._ended(END_S, group=signal_number is not None):
                    break
        # torchrun's ranks have groups of their own, and it would wait for them longer than END_S.
        processes.kill(process for _, process in processes.with_variable(sender.OTHERS, self.mark))
        self.finish()
        return self.wait(0) or 0

    def _ended(self, timeout_s: float, *, group: bool, rest: int | None = None) -> bool:
        """Wait until the command, or its whole group, has ended; return False after `timeout_s`.

        rest: a signal for those of the group that outlive the command.
        """
        limit = clock.monotonic() + timeout_s
        told = rest is None
        while self.wait(0) is None or group and (left := processes.of_group(self.pid)):
            if not told and self.wait(0) is not None:
                told = True
                for process in left:  # pyright: ignore[reportPossiblyUnbound]  (the command has ended)
                    with suppress(psutil.Error):
                        process.send_signal(rest or 0)
            if clock.monotonic() > limit:
                return False
            time.sleep(POLL_S)
        return True

    def finish(self) -> None:
        """Read the rest of what the command has printed, and see which of its processes still run (`left`).

        What these print comes out as before: a process of its own passes it on.
        """
        if self._stopped < 0:
            return
        limit = clock.monotonic() + LEAVE_S
        while (left := self._left()) and clock.monotonic() < limit:
            time.sleep(POLL_S)
        self.left = left
        os.close(self._stopped)
        self._stopped = -1
        for reader in self._readers:
            reader.join(END_S)
        for stream in self._streams:
            for pipe in (stream.printed, stream.apart):
                if left and stream.sink is not None:
                    subprocess.Popen(["cat"], stdin=pipe, stdout=stream.sink, stderr=subprocess.DEVNULL)
                os.close(pipe)
            os.close(stream.of_others)
        os.close(self._stop)
        for sink, within in self._within_line.items():
            if within and (sink == 2 or os.isatty(sink)):  # what mlbench prints there begins a line
                _write(sink, b"\n")

    def _left(self) -> list[psutil.Process]:
        marked = processes.with_variable(sender.OTHERS, self.mark)
        return [process for _, process in marked if processes.lives(process)]


def _streams(screen: PseudoTerminal | None, *, mirrors: bool) -> tuple[list[_Stream], _Stream, _Stream]:
    """Return a command's streams, and those of standard output and errors, which are one where ours are."""

    def pipe(sink: int) -> _Stream:
        return _Stream(*os.pipe(), *os.pipe(), sink if mirrors else None)

    shown = None
    if screen is not None:
        shown = _Stream(screen.ours, screen.theirs, screen.apart, screen.of_others, screen.source)
    out = shown if shown and os.isatty(1) else pipe(1)
    if shown and os.isatty(2):
        errors = shown
    else:
        errors = out if not mirrors or sender.identity(1) == sender.identity(2) else pipe(2)
    streams = [stream for stream in (shown, out, errors) if stream is not None]
    return list({stream.end: stream for stream in streams}.values()), out, errors


def _write(number: int, chunk: bytes) -> None:
    """Write to a file; nobody may read it any more."""
    view = memoryview(chunk)
    with suppress(OSError):
        while view:
            view = view[os.write(number, view) :]


def _keyboard() -> bool:
    """Return whether this process is in the foreground of its terminal, to which Ctrl-C goes."""
    try:
        number = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(number) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(number)


def variables(address: str, token: str) -> dict[str, str]:
    """Return what makes the Python processes of a command send their steps to a collector."""
    startup = str(Path(sender.__file__).parent / "startup")
    path = os.pathsep.join(filter(None, (startup, os.environ.get("PYTHONPATH"))))
    # Python writes to a pipe in blocks, and a metric must be read when it is printed.
    outer = " ".join(os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))
    probe = {sender.ADDRESS: address, sender.TOKEN: token, sender.OUTER: outer}
    return probe | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
