"""Make network namespaces without names: they live as long as a process or an open file is in them.

So the kernel removes them with all their interfaces however the process that made them ends, even by kill -9.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mlbench.config.errors import UserError

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Namespace:
    """A separate network and host name. `net` and `uts` are open files of this process."""

    hostname: str
    net: int
    uts: int

    @property
    def path(self) -> str:
        """The path for `ip link set ... netns PATH`."""
        return f"/proc/{os.getpid()}/fd/{self.net}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block of this thread in the namespace's network. Sockets made there stay in it."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", self.net, CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", before, CLONE_NEWNET)
        finally:
            os.close(before)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs `arguments` in the namespace.

        It ends with the thread that starts it. util-linux: setpriv(1), nsenter(1). Both replace themselves
        with the command, so that its process id is the child's.
        """
        uts = f"/proc/{os.getpid()}/fd/{self.uts}"
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={self.path}", f"--uts={uts}", *arguments]

    def close(self) -> None:
        """Release the namespace."""
        os.close(self.net)
        os.close(self.uts)


def create(hostname: str) -> Namespace:
    """Make a namespace. Raises UserError if this process lacks the right.

    A separate thread makes it: a namespace belongs to a thread, and this one keeps its namespace.
    """

    def make() -> Namespace:
        _call("unshare", CLONE_NEWNET | CLONE_NEWUTS)
        _call("sethostname", hostname.encode(), len(hostname))
        net, uts = (os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts"))
        return Namespace(hostname, net, uts)

    try:
        with ThreadPoolExecutor(1, "namespace") as thread:
            return thread.submit(make).result()
    except OSError as error:
        raise UserError(
            f"network= emulates hosts, but this process lacks a right: {error.strerror}",
            hint="run it as root (CAP_SYS_ADMIN and CAP_NET_ADMIN), or leave network= out",
        ) from error


def _call(name: str, *values: int | bytes) -> None:
    if getattr(_libc, name)(*values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
