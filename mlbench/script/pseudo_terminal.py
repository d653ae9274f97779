"""A terminal between this process's own and a measured command, as script(1) makes one.

Its size follows the size of the other, and what is typed is passed on. Ctrl-C still comes to this process,
as a signal.
"""

import fcntl
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

BLOCK = 2**12  # bytes of what is typed that are passed on at once


def terminal() -> int | None:
    """Return the first of standard output, error and input that is a terminal."""
    return next((number for number in (1, 2, 0) if os.isatty(number)), None)


class PseudoTerminal:
    """Two terminals: the command's, and one for what other ranks than 0 print.

    - source: this process's terminal.
    - ours, theirs: the ends of the command's. apart, of_others: those of the second.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        (self.ours, self.theirs), (self.apart, self.of_others) = os.openpty(), os.openpty()
        with suppress(termios.error):
            attributes = termios.tcgetattr(source)
            attributes[1] &= ~termios.OPOST  # the other one makes \r\n of \n
            for end in (self.theirs, self.of_others):
                termios.tcsetattr(end, termios.TCSANOW, attributes)
        self._attributes: list[Any] | None = None  # of standard input, where it is passed on
        self.resize()

    def resize(self) -> None:
        """Take the size of this process's terminal."""
        with suppress(OSError):
            size = fcntl.ioctl(self.source, termios.TIOCGWINSZ, bytes(8))
            for end in (self.ours, self.apart):
                fcntl.ioctl(end, termios.TIOCSWINSZ, size)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Follow the size and, where standard input is the terminal and this its foreground, pass it on."""
        main = threading.current_thread() is threading.main_thread()  # the only one that may handle signals
        before = signal.signal(signal.SIGWINCH, lambda *_: self.resize()) if main else None
        try:
            with self._typing():
                yield
        finally:
            if main:
                signal.signal(signal.SIGWINCH, before)

    @contextmanager
    def _typing(self) -> Iterator[None]:
        if not os.isatty(0) or not foreground():
            yield
            return
        self._attributes = termios.tcgetattr(0)
        stop, stopped = os.pipe()
        reader = threading.Thread(target=self._pass_on, args=(stop,), daemon=True)
        tty.setcbreak(0, termios.TCSANOW)  # the command's terminal edits and echoes
        reader.start()
        try:
            yield
        finally:
            os.close(stopped)
            reader.join()
            os.close(stop)
            self._restore()

    def _restore(self) -> None:
        with suppress(termios.error):  # it was closed
            if self._attributes is not None and foreground():
                termios.tcsetattr(0, termios.TCSADRAIN, self._attributes)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Give the terminal back, as to a shell, and take it again."""
        self._restore()
        yield
        self.resize()
        if self._attributes is not None and foreground():
            tty.setcbreak(0, termios.TCSANOW)

    def _pass_on(self, stop: int) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(stop, select.POLLIN)
        with suppress(OSError):  # either end is closed
            while stop not in dict(poll.poll()):
                typed = os.read(0, BLOCK)
                if not typed:
                    return
                os.write(self.ours, typed)


def foreground() -> bool:
    """Return whether what is typed and Ctrl-C come to this process; True without job control."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True
