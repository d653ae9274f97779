"""What all tests share: telemetry off, prepared data, and one Ray session for those that need one."""

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from syrupy.assertion import SnapshotAssertion
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from installed import Place

# A busy machine fails no property.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
os.environ.update(
    DO_NOT_TRACK="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="token",
    MLFLOW_DISABLE_TELEMETRY="true",
    MPLBACKEND="Agg",
    MLBENCH_CALIBRATION_S="0",  # what a node can do is measured in tests/use/test_first_run.py
    MLBENCH_CONFIG_DIR="",  # nobody's own configuration
)
# Commands and workers load the byte code of the first: compiling the package took each 0.2 s of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# pytest's own folders stay, to be looked at; xdist's processes inherit where.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
OWNER = ".owner"  # a file that the process of the tests has locked, in their folder
STAYS = (
    OWNER,
    "lock",
    "torchinductor_",
    "pymp-",
)  # of mlbench, on purpose; torch's cache; multiprocessing's, until the end
LEFT: list[str] = []  # by xdist's processes, in their folders
pytest_plugins = ["mlbench.contract.options"]
ROOT = Path(__file__).parent.parent
QUICK_CPU_S = 3.0  # of a test without the mark slow
CPU_S = "cpu_s"  # a property of a test that took longer
# Files whose tests share a Ray, and those that take longest besides: they begin, so none is left for the end.
RAYS = (
    ("test_sweep.py", "test_run_command.py"),
    ("test_faults.py", "test_faulty_tasks.py", "test_sockets.py"),
    ("test_pipelines.py", "test_kuberay_commands.py"),
)
# In turn, as each ends what the dead have left, and looks for what its own dead have left.
ON_HOSTS = (
    "test_network_run.py",
    "test_emulation.py",
    "test_traces.py",
    "test_reaper.py",
)
ON_PODS = ("test_check_on_pods.py", "test_script_on_pods.py")  # in turn: the played kubelet has one bridge
LONG = (
    "test_official_steps.py",
    "test_package.py",
    "test_official_run.py",
    "test_recorded_values.py",
    "test_contract.py",
    *ON_HOSTS,
    *ON_PODS,
    "test_attached_run.py",
    "test_slurm_job.py",
    "test_aws.py",
    "test_gke.py",
    "test_mpi.py",
    "test_architecture.py",
    "test_ui.py",
    "test_loop.py",
)
ON_USERS_RAY = ("test_on_ray.py", "test_studies.py")  # of tests/use: each file has a Ray of its own
FOLDER = pytest.StashKey[Path]()
# A shell that starts the tests in the background has SIGINT ignored, and what they start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def own_folder(root: Path) -> Path:
    """Make a folder for this process's tests, and remove those of tests that were killed."""
    for path in root.glob(f"mlbt-*/{OWNER}"):
        with suppress(OSError), path.open() as file:  # BlockingIOError: its tests still run
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="mlbt-", dir=root))  # short, as Ray's sockets lie below it
    descriptor = os.open(folder / "new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel frees it with this process
    (folder / "new").rename(folder / OWNER)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this process's tests a temporary directory; processes that they start import this file, too."""
    config.stash[FOLDER] = folder = own_folder(Path(os.environ["PYTEST_DEBUG_TEMPROOT"]))
    tempfile.tempdir = None
    os.environ["TMPDIR"] = str(folder)
    os.environ["MLBENCH_MACHINE_LOCK"] = f"{folder}/lock"  # tests wait for nobody else


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session whose tests have left temporary files, once what they killed was cleaned up."""
    from mlbench.clusters import reaper

    reaper.reap()
    folder = session.config.stash[FOLDER]
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith(STAYS))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)  # after multiprocessing's own, at -100
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = left
        return
    LEFT.extend(left)
    if LEFT:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many blocks of the documentation were typed, and which tests may need the mark slow."""
    for report in terminalreporter.getreports("passed"):
        for used_s in (value for name, value in report.user_properties if name == CPU_S):
            if report.when == "call":
                terminalreporter.write_line(f"{report.nodeid} took {used_s} s of CPU time: is it slow?")
    if LEFT:
        what = f"FAILED: tests have left in their temporary directory: {', '.join(LEFT)}"
        terminalreporter.write_line(what, red=True)
    if config.option.markexpr == "use":
        from doc_pages import counts

        terminalreporter.write_line(counts())


def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what one of xdist's processes has left."""
    LEFT.extend(getattr(node, "workeroutput", {}).get("left", ()))


class ByFile(LoadScopeScheduling):
    """Run a file's tests in one process, and those of all files that share a Ray or its address.

    What users type apart from that is spread over the processes.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder, _, file = nodeid.partition("::")[0].rpartition("/")
        if folder.endswith("tests/use") and file not in ON_USERS_RAY:
            return nodeid
        return next((files[0] for files in (*RAYS, ON_HOSTS, ON_PODS) if file in files), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Distribute the files; xdist's own choices would start a Ray in each process."""
    return ByFile(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without slow tests for `-m slow`; each of the processes would import all."""
    mark = str(config.option.markexpr).partition(" ")[0]
    if collection_path.suffix != ".py" or mark not in ("slow", "use"):
        return None
    return True if f"mark.{mark}" not in collection_path.read_text() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    on_ray = [name for files in RAYS for name in files]
    first = [*ON_USERS_RAY, "test_first_run.py", "test_pages.py", *on_ray, *LONG]
    for item in items:
        name = item.path.name
        if "kept_ray" in getattr(item, "fixturenames", ()):
            assert name in on_ray and item.get_closest_marker("slow"), f"{name}: add it to RAYS, mark it slow"
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU or a plugin where there is none, before any of its fixtures is made."""
    for mark in item.iter_markers("plugin"):
        if not (ROOT / "mlbench" / "plugins" / mark.args[0]).is_dir():
            pytest.skip(f"needs mlbench/plugins/{mark.args[0]}")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note a test that takes too long for `python -m pytest` and has no mark.

    This process's CPU time counts, which also grows on a busy machine, so that no test fails for it. What
    fixtures make once for many tests does not count.
    """
    begin_s = time.process_time()
    yield
    used_s = time.process_time() - begin_s
    # The first test on a GPU loads CUDA's libraries, which alone takes seconds.
    marks = map(item.get_closest_marker, ("slow", "use", "gpu"))
    if used_s > QUICK_CPU_S and not any(marks):
        item.user_properties.append((CPU_S, f"{used_s:.1f}"))


@pytest.fixture(autouse=True)
def _no_writer_left() -> Iterator[None]:
    """Fail the test after which a thread still writes to MLflow: later tests would meet it."""
    from commands import PATIENCE_S

    yield
    for thread in threading.enumerate():
        if thread.name == "mlflow":
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "it writes to MLflow for ever"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small models are slower with more, above all where other processes compute too."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion, tmp_path: Path) -> SnapshotAssertion:
    """Compare with the stored text, with TMP for the test's folder and ABOVE for its parent."""

    def without_folder(*, data: Any, path: Any) -> Any:
        if not isinstance(data, str):
            return data
        return data.replace(str(tmp_path), "TMP").replace(str(tmp_path.parent), "ABOVE")

    matcher: Any = without_folder  # syrupy's type is a protocol with a name for each argument
    return snapshot.with_defaults(matcher=matcher)


@pytest.fixture
def as_stored(snapshot: SnapshotAssertion) -> Callable[[BaseException], bool]:
    """Return a check of `pytest.raises(..., check=as_stored)`: the error is the stored sentence."""

    def check(error: BaseException) -> bool:
        assert str(error) == snapshot
        return True

    return check


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test that leaves anything behind: processes, files, control groups, interfaces and others."""
    from leftovers import TRACE, await_nothing_but, leftovers

    monkeypatch.setenv(TRACE, secrets.token_hex(8))
    before = leftovers()
    yield
    await_nothing_but(before)


@pytest.fixture
def own_places() -> Iterator[dict[str, str]]:
    """Yield variables with home and temporary directories of the test's own; a user's Ray is noted there."""
    from leftovers import own_places

    with own_places() as environment:
        yield environment


@pytest.fixture
def own_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail the test whose commands leave temporary files, but for logs and caches of torch."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    torchs = ("torchelastic_", "torchinductor_")
    assert [path.name for path in folder.iterdir() if not path.name.startswith(torchs)] == []


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepared mini data sets are shared by all tests, also of xdist's processes.

    Of several that prepare the same data set at once one writes, while the others wait for its lock.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the session
    (folder / "data").mkdir(exist_ok=True)
    return folder / "data"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder from which workers on the kept Ray import packages, as installed ones."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="session")
def kept_ray(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[dict[str, str]]:
    """Keep one Ray for all tests that start runs; yield the environment in which commands find it.

    At the end it is stopped and leaves no process (its files, see `pytest_sessionfinish`).
    """
    from leftovers import TRACE, await_end, end_log_monitor

    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    trace = secrets.token_hex(8)
    command = [sys.executable, "-m", "mlbench.cluster"]
    of_workers = {**environment, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), TRACE: trace}
    subprocess.run([*command, "start"], cwd=ROOT, env=of_workers, check=True)
    end_log_monitor(trace)
    yield environment
    subprocess.run([*command, "stop"], cwd=ROOT, env=environment, check=True)
    await_end(trace)


@pytest.fixture(scope="session")
def installed_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the environments with this tree's wheel are, shared by xdist's processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def installed(installed_root: Path) -> Path:
    """Return a new environment with this tree's wheel and all libraries of this one."""
    from installed import shared

    return shared(installed_root)


@pytest.fixture(scope="session")
def user(installed: Path, tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Iterator["Place"]:
    """Yield a user's folder for many commands, in a shell that has this tree's wheel.

    At the end the shell's temporary directory has what torch and MLflow leave there, and nothing of mlbench.
    """
    from installed import Place, plain_variables

    root = tmp_path_factory.mktemp("user")
    temporary = Path(tempfile.gettempdir(), "u")  # short, as Ray's sockets lie below it
    temporary.mkdir()
    (root / "home").mkdir()
    (root / "folder").mkdir()
    (root / "folder" / "data").symlink_to(data_root)
    variables = plain_variables() | {
        "HOME": str(root / "home"),
        "TMPDIR": str(temporary),
        "MLBENCH_MACHINE_LOCK": os.environ["MLBENCH_MACHINE_LOCK"],  # tests wait for nobody else
        "MLBENCH_CALIBRATION_S": "0",  # but for test_first_run.py
    }
    yield Place(root / "folder", variables).activated(installed)
    left = [path.name for path in temporary.iterdir()]
    shutil.rmtree(temporary)
    theirs = ("torchelastic_", "torchinductor_", "lock", "db_init_lock-")  # MLflow's, once per database
    assert [name for name in left if not name.startswith(theirs)] == []


@pytest.fixture
def place(user: "Place", tmp_path: Path) -> "Place":
    """Return an empty folder in the user's shell."""
    return user.within(tmp_path / "empty")


@pytest.fixture(scope="session")
def users_ray(user: "Place") -> Iterator["Place"]:
    """Keep one Ray for the user's commands, as `mlbench cluster start` does; yield the user's folder."""
    user.type("mlbench cluster start")
    yield user
    user.type("mlbench cluster stop")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store as MLflow makes it, to copy: making one takes it a second."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
