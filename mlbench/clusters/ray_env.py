"""Set the environment variables of Ray, Ray Train and Ray Tune. No other module sets them.

Ray reads most of them when it is imported or when one of its processes starts, so a command calls these
functions before it imports ray. Values set by the user stay.
"""

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from mlbench.clusters import node
from mlbench.config.errors import ClusterError
from mlbench.record import temporary_folder

TOKEN = Path(".ray") / "auth_token"  # below the home directory, as for Ray itself
MIN_THREADS = 512  # Ray's servers, the driver and four workers have 353 (2.60, 2 CPUs, 2026-11-22)
AF_UNIX_BYTES = 107  # longest path of a Unix socket (Linux, unix(7): 108 with the closing zero)
# Ray's folder, below the temporary folder of mlbench: Ray opens the folder that it gets to all users (mode
# 0777, 2.60).
SUBFOLDER = "r"
# The longest path that Ray makes, and the temporary folder above it.
SOCKET = f"{temporary_folder.PREFIX}12345678/{SUBFOLDER}/session_2000-01-01_00-00-00_000000_4194304"
SOCKET += "/sockets/plasma_store.0"


def disable_background_work() -> None:
    """Keep Ray's processes, which share the machine with the workers, from using time that is measured.

    Ray would also give its workers the priority of a background job (nice 15), so that other load on the
    machine would count as theirs.
    """
    _default(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",
        RAY_enable_metrics_collection="0",  # for Prometheus, which does not run here
        RAY_task_events_report_interval_ms="0",  # for the dashboard, which is off
        LOG_NAME_UPDATE_INTERVAL_S="10",  # s between two searches for new log files
    )


def require_token(*, shared: bool = False) -> None:
    """Make Ray's servers refuse clients without this user's token.

    Ray's default would create a token that every user of the machine can read. A token that others can read
    raises UserError. If the home directory cannot be written, the token is in this process's environment.
    With `shared`, other commands have to find it, so this case raises UserError.
    """
    _default(RAY_AUTH_MODE="token")
    if os.environ["RAY_AUTH_MODE"] != "token" or "RAY_AUTH_TOKEN" in os.environ:
        return
    own = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(own or Path.home() / TOKEN)
    try:
        if own or path.exists():
            if own or path.read_text().strip():
                return _require_private(path)
            path.unlink()  # it is empty
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".token-") as file:  # mode 0600
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):  # of two simultaneous commands the second takes the first one's
                os.link(file.name, path)
    except OSError as error:
        if own:
            raise ClusterError(f"RAY_AUTH_TOKEN_PATH={own} cannot be read: {error.strerror}") from error
        if shared:
            raise ClusterError(
                f"cannot write {path}, the token that Ray's servers require: {error.strerror}",
                hint="name another file with RAY_AUTH_TOKEN_PATH",
            ) from error
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _require_private(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ClusterError(
            f"others can read or write {path} (mode {mode:04o}), the Ray authentication token (it "
            "permits code execution)",
            hint=f"rm {path} (the next command creates another), or chmod 600 if no other user has read it",
        )


def stay_on_loopback() -> None:
    """Make a Ray that serves this machine alone listen on 127.0.0.1, as it does by itself on macOS.

    Ray has no other way: it replaces a given loopback address by the machine's address (2.60).
    """
    _default(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")


def allow_addresses() -> None:
    """Undo `stay_on_loopback`, which a sweep's environment brings to its runs."""
    os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)


def require_short_paths() -> None:
    """Raise UserError if Ray's sockets would get paths that Unix does not allow."""
    folder = temporary_folder.root()
    if len(os.fsencode(os.path.join(folder, SOCKET))) > AF_UNIX_BYTES:
        raise ClusterError(
            f"the temporary directory {folder} is too long for Ray's sockets: their paths may have "
            f"{AF_UNIX_BYTES} bytes",
            hint="export RAY_TMPDIR=/tmp",
        )


def require_processes() -> None:
    """Raise UserError if a control group has no room for the processes and threads of another Ray."""
    limit = node.process_limit()
    if limit is not None and limit[0] - limit[1] < MIN_THREADS:
        raise ClusterError(
            f"the control group may have {limit[0]} processes and threads (pids.max) and has {limit[1]}, "
            f"Ray needs {MIN_THREADS}",
            hint="raise the limit: docker run --pids-limit=4096, systemd-run -p TasksMax=4096",
        )


def configure_train(*, timeout_s: float) -> None:
    """Set the variables that Ray Train reads when it is imported or when its controller starts.

    `timeout_s` is the time limit of a collective operation, including Ray's barrier of a report, which has no
    limit by default.
    """
    _default(
        RAY_TRAIN_METRICS_ENABLED="0",  # Prometheus gauges that are not scraped
        RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",  # one more process; see max_failures
        RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="600",  # s that workers wait for CPUs that other runs use
        RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="1",  # s, the delay until an end is noticed
        RAY_CHDIR_TO_TRIAL_DIR="0",  # relative paths stay as the user wrote them
    )
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(timeout_s)


def configure_tune() -> None:
    """Set the variables that Ray Tune reads when it is imported."""
    _default(
        TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",  # no CSV, JSON and TensorBoard files
        RAY_AIR_NEW_OUTPUT="0",  # the old output can be silenced
        TUNE_DISABLE_AUTO_INIT="1",  # the sweep has joined Ray
    )


def _default(**values: str) -> None:
    for name, value in values.items():
        os.environ.setdefault(name, value)
