"""What would make a local Ray hang or end in its own words is told before it starts."""

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlbench.clusters import local, node, ray_env
from mlbench.config.compose import compose
from mlbench.config.errors import UserError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_TMPDIR", "TMPDIR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")


def test_a_temporary_directory_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = "/" + "t" * (ray_env.AF_UNIX_BYTES - len(ray_env.SOCKET) - 2)
    for variable in ("TMPDIR", "RAY_TMPDIR"):  # the second takes precedence
        monkeypatch.setenv(variable, fits)
        ray_env.require_short_paths()
        monkeypatch.setenv(variable, fits + "t")
        with pytest.raises(UserError, match="RAY_TMPDIR=/tmp"):
            ray_env.require_short_paths()


def test_few_open_files_are_raised_as_far_as_allowed_and_refused_beyond() -> None:
    code = (
        "import resource, sys; from mlbench.clusters import local;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])));"
        "local.require_machine(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = subprocess.run([sys.executable, "-c", code, str(hard)], capture_output=True, text=True)
    assert enough.stdout.strip() == str(local.MIN_OPEN_FILES), enough.stderr
    few = subprocess.run([sys.executable, "-c", code, "64"], capture_output=True, text=True)
    assert few.returncode and "open 64 files" in few.stderr.splitlines()[-1]


def test_few_processes_are_raised_as_far_as_allowed_and_refused_beyond() -> None:
    code = (
        "import os, resource, sys; from mlbench.clusters import local;"
        "''.encode('idna');"  # loaded while Python's own folder can be read
        "os.getuid() or os.setuid(65534); hard = int(sys.argv[1]);"
        "resource.setrlimit(resource.RLIMIT_NPROC, (64, hard));"
        "local.require_machine(); print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    )
    enough = subprocess.run([sys.executable, "-c", code, "9999"], capture_output=True, text=True)
    assert ray_env.MIN_THREADS < int(enough.stdout) < 9999, enough.stderr
    few = subprocess.run([sys.executable, "-c", code, "64"], capture_output=True, text=True)
    assert few.returncode and "have 64 processes" in few.stderr.splitlines()[-1]


def test_a_token_is_made_once_for_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ray_env.require_token()
    path = tmp_path / ray_env.TOKEN
    token = path.read_text()
    assert len(token) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
    ray_env.require_token()
    assert path.read_text() == token and "RAY_AUTH_TOKEN" not in os.environ


def test_of_two_commands_that_make_the_first_token_at_once_both_have_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the jobs of an array with one home: the first one's Ray may have started with its token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    hexadecimal, path = ray_env.secrets.token_hex, tmp_path / ray_env.TOKEN

    def meanwhile(size: int) -> str:
        monkeypatch.setattr(ray_env.secrets, "token_hex", hexadecimal)
        ray_env.require_token()
        taken.append(path.read_text())
        return hexadecimal(size)

    taken: list[str] = []
    monkeypatch.setattr(ray_env.secrets, "token_hex", meanwhile)
    ray_env.require_token()
    assert taken == [path.read_text()] and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*path.parent.iterdir()] == [path]


def test_a_token_that_others_can_read_is_refused_and_an_empty_file_becomes_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ray_env.TOKEN
    path.parent.mkdir()
    path.touch(0o644)
    ray_env.require_token()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text()) == 64
    for mode in (0o640, 0o604, 0o622):
        path.chmod(mode)
        with pytest.raises(UserError, match=rf"{path} \(mode {mode:04o}\)"):
            ray_env.require_token()
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        with pytest.raises(UserError, match=rf"\(mode {mode:04o}\)"):
            ray_env.require_token()
        monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    path.chmod(0o600)
    ray_env.require_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match=f"{tmp_path / 'none'} "):
        ray_env.require_token()


@pytest.mark.parametrize(
    "groups",
    [
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/pids.max": "120",
            "sys/fs/cgroup/a/pids.current": "9",
        },
        {
            "proc/self/cgroup": "8:pids:/x\n0::/",
            "sys/fs/cgroup/pids/x/pids.max": "max",
            "sys/fs/cgroup/pids/pids.max": "120",
            "sys/fs/cgroup/pids/pids.current": "9",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_control_group_with_few_processes_is_refused_before_ray_starts(
    groups: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in groups.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(node, "ROOT", tmp_path)
    monkeypatch.setattr(local.persistent, "address", lambda: None)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    monkeypatch.setattr("ray.init", None)  # not reached
    with pytest.raises(UserError, match="120 processes .*pids.max.* 9"):
        local.connect(compose([])).__enter__()
    for file in tmp_path.rglob("pids.max"):
        file.write_text("4096\n")
    ray_env.require_processes()


def test_where_home_cannot_be_written_the_token_is_this_process_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ray").write_text("a file in the way")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"cannot write .*auth_token.*RAY_AUTH_TOKEN_PATH"):
        ray_env.require_token(shared=True)  # other commands would not find it
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    ray_env.require_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "RAY_worker_niceness"
    monkeypatch.setenv(name, "5")
    ray_env.disable_background_work()
    assert os.environ[name] == "5"


def test_ray_opens_no_folder_but_its_own_to_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above it has the workers' temporary files, e.g. the code that compile=inductor loads."""

    def init(*, _temp_dir: str, **_: object) -> None:  # as Ray 2.60 does
        os.makedirs(_temp_dir, exist_ok=True)
        os.chmod(_temp_dir, 0o777)

    monkeypatch.setattr("ray.init", init)
    folder = tmp_path / "mlb-12345678"
    folder.mkdir(mode=0o700)
    local._init(None, folder, verbose=True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (below,) = folder.iterdir()
    assert below.relative_to(tmp_path).parts == Path(ray_env.SOCKET).parts[:2], "sockets' paths count it"
