"""Create temporary folders that a later command removes if their process was killed.

A folder is locked (flock(2)) for as long as the process that made it lives. The kernel frees the lock also
after kill -9, and it holds across containers that share the folder.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "mlb-"  # short, as Ray's sockets lie below (ray_env.require_short_paths)
MARKER = ".mlbench"  # an empty file in each of them: another program's folder may have a name like theirs
ATTEMPTS = 10  # to make one (another command may remove it before it is locked), and to remove one
PAUSE_S = 0.1  # s between two attempts to remove one
_open: set[Path] = set()  # this process's
_lock_of_open = threading.Lock()
_ended = threading.Event()


def root() -> Path:
    """Return the folder in which they are made, the same that Ray uses for its folders."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def create() -> tuple[Path, int | None]:
    """Make a folder that only this user can read. Return it and its lock to close (None: no locks there)."""
    for _ in range(ATTEMPTS - 1):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root()))
        if (descriptor := _lock(path)) is not None:
            (path / MARKER).touch()
            return path, descriptor
        with suppress(OSError):
            path.rmdir()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root())), None


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder, which is removed with the block.

    Raises RuntimeError in a thread that outlives the main one, because the folder would never be removed.
    """
    with _lock_of_open:
        if _ended.is_set():
            raise RuntimeError("this process ends")
        if not _open:
            atexit.register(_remove_all)
        path, descriptor = create()
        _open.add(path)
    try:
        yield path
    finally:
        remove(path)
        _open.discard(path)  # not before: if the process ends meanwhile, _remove_all removes the rest
        if descriptor is not None:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a folder, or leave it to a later command if an ended process may just have written to it."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(PAUSE_S)
    with suppress(OSError):
        (path / MARKER).touch()


def _remove_all() -> None:
    """Remove what threads still use when the process ends, e.g. one that writes to a slow store."""
    with _lock_of_open:
        _ended.set()
    for path in tuple(_open):
        with suppress(OSError):  # renamed, so that no process writes into it while it is removed
            remove(path.rename(f"{path}-"))


def abandoned() -> Iterator[Path]:
    """Yield this user's folders whose makers have ended. Each is locked until the next is requested."""
    for path in sorted(root().glob(f"{PREFIX}*")):
        if (descriptor := _lock(path)) is not None:
            try:
                if (path / MARKER).exists() or not any(path.iterdir()):
                    yield path
            finally:
                os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Lock a folder of this user's. None if another process has it, or has removed it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and os.path.samestat(status, os.stat(path)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
