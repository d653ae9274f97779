"""All that a test could leave behind on this machine, by name.

Other tests run beside it, so whatever they could have made has a mark: a process and what it starts have
TRACE in their environment, a control group has its owner's name, a test has its own temporary folder, and
what lies in a folder that all share is somebody else's while a process of his uses it.
"""

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from commands import PATIENCE_S, until
from conftest import STAYS

from mlbench.clusters import processes, reaper

SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/run/netns")
# What mlbench, Ray, torch and multiprocessing would call what they leave there.
OURS = re.compile("mlb-|mlbench|ray|plasma|torch_|psm_|sem[.]|loky")
POD_BRIDGE = "mlbpods"
OF_PODS = re.compile(f"{POD_BRIDGE}|pod[0-9]+")  # interfaces of another test's pods
TRACE = "MLBENCH_TEST_TRACE"  # environment variable of the commands of one test, and of what they start
KEPT = (".ray/auth_token", ".cache/mlbench/ray.lock")  # in the home directory (docs/security.md)
USERS_RAY = "192.0.2.7:6379"  # where the user's own Ray is, as `ray start` notes it
# What a program's plain ray.init() joins; None: it starts its own.
FIND = "from ray._private import services; print(services.get_ray_address_from_environment(None, None))"
KEEPERS = (
    "resource_tracker",
    "forkserver",
    "loky",
    "mlbench.report.drawing_process",
)  # they live as long as the process that uses them


@contextmanager
def own_places() -> Iterator[dict[str, str]]:
    """Yield variables with home and temporary directories of their own, in which a user's Ray is noted."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as name:  # short: Ray's sockets lie below
        home, temporary = Path(name, "h"), Path(name, "t")
        for folder in (home / ".ray", home / ".cache" / "mlbench", temporary / "ray"):
            folder.mkdir(parents=True)
        for path, text in zip(KEPT, (secrets.token_hex(32), ""), strict=True):
            (home / path).write_text(text)
            (home / path).chmod(0o600)
        (temporary / "ray" / "ray_current_cluster").write_text(USERS_RAY)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "RAY_"))}
        own |= {"HOME": str(home), "TMPDIR": str(temporary), TRACE: secrets.token_hex(8)}
        yield own | {"MLBENCH_MACHINE_LOCK": str(Path(name, "lock")), "XDG_CACHE_HOME": str(home / ".cache")}


def mlbench(environment: Mapping[str, str], *arguments: str) -> str:
    """Run `mlbench.cluster`; return what it prints."""
    command = [sys.executable, "-m", "mlbench.cluster", *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def ray_found(environment: Mapping[str, str]) -> str:
    """Return the address that a plain ray.init() would join."""
    return subprocess.run(
        [sys.executable, "-c", FIND], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def leftovers(environment: Mapping[str, str] | None = None) -> set[str]:
    """Return what is on this machine beside other tests' processes and files.

    - environment: of the test's commands; None: this process's, and no home directory is looked at.
    """
    trace = (environment or os.environ)[TRACE]
    left = {f"control group {group}" for group in _control_groups()}
    left |= {f"interface {name}" for name in psutil.net_if_addrs() if not OF_PODS.fullmatch(name)}
    for kind in ("shm", "sem", "msg"):
        with suppress(OSError):
            lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
            left |= {f"System V {kind} {line.split()[1]}" for line in lines}
    below, started = _ours(trace)
    for process in below | started:
        with suppress(psutil.Error):  # it has just ended
            command = " ".join(process.cmdline())
            if process in started or not any(keeper in command for keeper in KEEPERS):
                left.add(f"process {process.pid} {command}")
    left |= {f"file {path}" for path in _shared_files(below | started)}
    own = Path(tempfile.gettempdir())
    left |= {f"file {path}" for path in own.iterdir() if not path.name.startswith(STAYS)}
    for root in (environment["HOME"], environment["TMPDIR"]) if environment else ():
        left |= {f"file {path}: {_text(path)}" for path in Path(root).rglob("*")}
    return left


def await_nothing_but(
    before: set[str], environment: Mapping[str, str] | None = None, *, of_torch: bool = False
) -> None:
    """Wait until nothing is left but what was there before; what was killed needs a moment.

    - of_torch: a torchrun that the test starts itself leaves its folders, as it does without mlbench.
    """
    torch_folder = re.compile("/torch(elastic|inductor)_")

    def left() -> set[str]:
        lines = leftovers(environment) - before
        return {line for line in lines if not (of_torch and torch_folder.search(line))}

    end = time.monotonic() + PATIENCE_S
    while (found := left()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not found, sorted(found)


def await_end(trace: str) -> None:
    """Wait until no process is left that was started with this trace."""
    until(lambda: not _ours(trace)[1])


def end_log_monitor(trace: str) -> None:
    """End what looks ten times a second for output of this Ray's workers, as a run with its own Ray does.

    No test reads that output; in 36 minutes of tests it took 30 s of CPU time.
    """
    for process in _ours(trace)[1]:
        with suppress(psutil.Error):  # it has just ended
            if any(word.endswith("/log_monitor.py") for word in process.cmdline()):
                process.kill()


def _ours(trace: str) -> tuple[set[psutil.Process], set[psutil.Process]]:
    """Return what lives of the processes below this one, and of those that the test's commands started."""
    below = {process for process in psutil.Process().children(recursive=True) if processes.lives(process)}
    started = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process in below or process.pid == os.getpid()
            if not mine and process.environ().get(TRACE) == trace and processes.lives(process):
                started.add(process)
    return below, started


def _shared_files(ours: set[psutil.Process]) -> list[str]:
    """Return what was left in folders that all programs share, but for what other processes use.

    E.g. the semaphores of another test's queues, which last as long as its ranks.
    """
    left = {}  # by device and inode as in maps, proc(5): there a semaphore has the name before its last one
    for folder in SHARED:
        with suppress(OSError):
            for entry in os.scandir(folder):
                if OURS.match(entry.name):
                    status = entry.stat()
                    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
                    left[f" {device} {status.st_ino} "] = entry.path
    for process in psutil.process_iter() if left else ():
        if process not in ours and process.pid != os.getpid():
            with suppress(OSError):  # it has just ended, or is another user's
                used = Path(f"/proc/{process.pid}/maps").read_text()
                left = {file: path for file, path in left.items() if file not in used}
    return list(left.values())


def _control_groups() -> Iterator[Path]:
    """Yield what this process has made and what the dead have left; another test's command lives."""
    for group in reaper._groups():
        owner = group.name.removeprefix(reaper.PREFIX)
        if owner == reaper.owner() or not reaper._lives(owner):
            yield from (group, *(host for host in group.iterdir() if host.is_dir()))


def _text(path: Path) -> str:
    """Return a short file's content, "" for any other."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size < 100:
            return path.read_text()
    return ""
