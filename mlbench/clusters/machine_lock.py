"""Allow one measurement at a time on a machine: a file lock that all its users and checkouts share.

A run with exclusive use of the machine holds the lock exclusively, and others wait for it. A run that must
not wait shares the lock with others. Each of them notices, since the run that comes touches the file.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mlbench import clock

PATH = "MLBENCH_MACHINE_LOCK"  # environment variable with another file, e.g. one that containers share
DEFAULT = Path("/tmp/mlbench-machine.lock")  # not TMPDIR, which may differ between users


class MachineLock:
    """Hold this machine until `release`, or until the process ends in any way.

    - waited_s: s of waiting for other runs.
    - shared: whether another run measured here at any time since `acquire`.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._shared = False
        self._descriptor = _open(Path(os.environ.get(PATH) or DEFAULT))
        self._touched = self._stamp()

    def acquire(self, *, wait: bool, on_wait: Callable[[], object] = lambda: None) -> "MachineLock":
        """Take the machine. `wait` for others (after `on_wait`), or else measure at the same time.

        If the file system has no locks, nothing is held, and load from other processes still shows.
        """
        alone = self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        if wait and not alone:
            on_wait()
            before = clock.monotonic()
            self._lock(fcntl.LOCK_EX)
            self.waited_s = clock.monotonic() - before
            self._touched = self._stamp()
        elif not wait:
            # A shared lock admits other runs that do not wait either. A waiting one may come before it is
            # held.
            alone = alone and self._lock(fcntl.LOCK_SH | fcntl.LOCK_NB)
        if self._descriptor is not None and not (wait or alone):
            self._shared = True
            with suppress(OSError):  # a read-only file
                os.utime(self._descriptor)  # notifies those that hold it
            self._lock(fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self

    @property
    def shared(self) -> bool:
        """Whether another run measured on this machine meanwhile."""
        return self._shared or self._stamp() != self._touched

    def release(self) -> None:
        """Let others measure."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, operation: int) -> bool:
        if self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, operation)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _stamp(self) -> int:
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_mtime_ns


def _open(path: Path) -> int | None:
    """Open the file, which any user may have made, or return None if that fails.

    First without O_CREAT: Linux refuses that for another user's file in /tmp (fs.protected_regular).
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError, PermissionError):
        return os.open(path, os.O_RDWR | flags)
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        os.fchmod(descriptor, 0o666)  # independent of the umask
        return descriptor
    with suppress(OSError):  # two made it at once, or it is read only: enough to lock
        return os.open(path, os.O_RDONLY | flags)
    return None
