"""mlbench as its users have it: a wheel in a new environment, and commands typed in a folder of their own."""

import fcntl
import importlib.metadata
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from commands import PATIENCE_S, until
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlbench.record.reader import load
from mlbench.record.record import Record

PACKED = ("mlbench/", "conf/", "pyproject.toml", "README.md", "LICENSE")
# What the fresh environment does not take over. torchvision is a reference of the suite's tests and no
# dependency: users of mlbench have the one that fits their torch, or none.
LEFT_OUT = ("mlbench", "__editable__", "torchvision", "distutils-precedence.pth", "_virtualenv")
COMMANDS = {"torch": ("torchrun",), "accelerate": ("accelerate",), "pytest": ("pytest",)}
LINES = 30  # of a failed command's output that are shown


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    line: str
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Return both streams as words with a blank between two, however they were wrapped."""
        return " ".join((self.stdout + " " + self.stderr).split())

    def fail(self, why: str) -> None:
        """Fail the test: the command, its exit code, and the end of what it printed."""
        ends = [*self.stdout.splitlines(), *self.stderr.splitlines()][-LINES:]
        pytest.fail("\n".join([why, f"$ {self.line}", f"exit code {self.code}", *ends]), pytrace=False)


@dataclass(frozen=True)
class Place:
    """A folder in which commands are typed, and their environment."""

    folder: Path
    environment: dict[str, str]

    def type(
        self, line: str, *, codes: Sequence[int] = (0,), stdin: str = "", seconds: float = PATIENCE_S
    ) -> Answer:
        """Run a line in bash; fail the test at another exit code than those expected, or at a traceback."""
        try:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as expired:
            out, err = ((text or b"").decode() for text in (expired.stdout, expired.stderr))
            Answer(line, -1, out, err).fail(f"not over after {seconds:.0f} s")
            raise
        answer = Answer(line, done.returncode, done.stdout, done.stderr)
        if answer.code not in codes:
            answer.fail(f"exit code {answer.code} instead of {' or '.join(map(str, codes))}")
        if "Traceback (most recent call last)" in answer.stdout + answer.stderr:
            answer.fail("a traceback")
        return answer

    def type_until(self, line: str, printed: str) -> Answer:
        """Run one command until it has printed this, then press Ctrl-C."""
        path = self.folder / "printed.txt"
        with path.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        until(lambda: printed in path.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        answer = Answer(line, process.wait(), path.read_text(), "")
        if printed not in answer.stdout or answer.code not in (0, 130):
            answer.fail(f"{printed} was not printed before Ctrl-C, or another exit code than 130 or 0")
        if "Traceback" in answer.stdout:
            answer.fail("a traceback")
        path.unlink()
        return answer

    def within(self, folder: Path) -> "Place":
        """Return another folder with this environment."""
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, folder=folder)

    def activated(self, environment: Path) -> "Place":
        """Return this folder in a shell where another environment comes first."""
        path = f"{environment / 'bin'}{os.pathsep}{self.environment['PATH']}"
        return self.variables(VIRTUAL_ENV=str(environment), PATH=path)

    def variables(self, **values: str) -> "Place":
        """Return this folder with more variables of the environment."""
        return replace(self, environment=self.environment | values)

    def run(self, line: str) -> Record:
        """Type a line that makes one run; return its record."""
        before = {*self.folder.glob("runs/*/record.json")}
        answer = self.type(line)
        made = {*self.folder.glob("runs/*/record.json")} - before
        if len(made) != 1:
            answer.fail(f"{len(made)} new records instead of one")
        record = load(made.pop())
        if record.contradictions:
            answer.fail(f"contradictions: {record.contradictions}")
        return record


def wheel(source: Path, to: Path) -> Path:
    """Build the wheel of a folder of sources into `to`, without a network."""
    _pip("wheel", "-w", str(to), str(source))
    (made,) = to.glob("*.whl")
    return made


def install(made: Path, python: Path) -> None:
    """Install a wheel into the environment of an interpreter."""
    _pip("install", str(made), python=python)


def _pip(*arguments: str, python: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", *(("--python", str(python)) if python else ())]
    offline = ("--no-deps", "--no-index", "-q", *(() if python else ("--no-build-isolation",)))
    # Below the checkout `import mlbench` would be the checkout's.
    done = subprocess.run(
        [*command, arguments[0], *offline, *arguments[1:]],
        cwd=tempfile.gettempdir(),
        env=plain_variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of the installed distributions that requirements need, themselves included."""
    found: set[tuple[str, str]] = set()  # extra and name
    waiting = [each for line in requirements if _is_wanted(each := Requirement(line))]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {(each, name) for each in requirement.extras or {""}} - found:
            found.add(extra)
            needs = map(Requirement, importlib.metadata.requires(name) or ())
            waiting += [need for need in needs if _is_wanted(need, extra[0])]
    return {name for _, name in found}


def _is_wanted(requirement: Requirement, extra: str = "") -> bool:
    """Tell whether this Python and this machine need it."""
    return not requirement.marker or requirement.marker.evaluate({"extra": extra})


def environment(to: Path, distributions: Collection[str] | None = None) -> Path:
    """Make a new environment with the libraries of this one, but without its mlbench; return its Python.

    Nothing is fetched or copied: each library is a link.

    Args:
        to: its folder.
        distributions: which libraries it has; all by default.
    """
    kept: set[str] | None = None
    if distributions is not None:
        files = [file for name in distributions for file in importlib.metadata.distribution(name).files or ()]
        kept = {file.parts[0] for file in files}
    venv.create(to, symlinks=True)
    python = to / "bin" / "python"
    site = to / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        wanted = kept is None or path.name in kept
        if wanted and not path.name.startswith(LEFT_OUT) and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    for library, names in COMMANDS.items():
        if distributions is not None and library not in distributions:
            continue
        try:
            entries = importlib.metadata.distribution(library).entry_points
        except importlib.metadata.PackageNotFoundError:
            continue
        for entry in entries.select(group="console_scripts"):
            if entry.name in names:
                _script(to / "bin" / entry.name, python, entry)
    for folder, kinds in {"bin": ("mpi*", "hydra*"), "lib": ("libmpi*", "mpich")}.items():  # MPICH's wheel
        for path in (path for kind in kinds for path in Path(sys.prefix, folder).glob(kind)):
            (to / folder / path.name).symlink_to(path)
    return python


def _script(path: Path, python: Path, entry: importlib.metadata.EntryPoint) -> None:
    """Write a library's command as pip does."""
    path.write_text(
        f"#!{python}\nimport sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
    )
    path.chmod(0o755)


def plain_variables() -> dict[str, str]:
    """Return the variables of a shell in which nothing was set for Python, pip, MLflow, Ray or mlbench."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "USER", "LOGNAME")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    return variables | {
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "80",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def shared(root: Path, extras: Collection[str] | None = None) -> Path:
    """Return the folder of the environment with this tree's wheel; the first that asks makes it.

    The processes of pytest-xdist share `root`.

    Args:
        root: where it is made.
        extras: those of mlbench-suite whose libraries it has; by default it has all that this one has.
    """
    name = "installed" if extras is None else "-".join(["with", *extras])
    made, complete = root / name, root / f"{name}.complete"
    with (root / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wheels = root / "wheels"
        if not wheels.exists():
            wheel(sources(root / "source"), wheels)
        if not complete.exists():
            python = environment(made, None if extras is None else distributions(extras))
            (packed,) = wheels.glob("*.whl")
            install(packed, python)
            complete.touch()
    return made


def distributions(extras: Collection[str] = ()) -> set[str]:
    """Return the names of what mlbench-suite with these extras needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return closure([*project["dependencies"], *optional])


def sources(to: Path) -> Path:
    """Copy what a wheel is built from, as it lies in this checkout; return the copy's folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if name.startswith(PACKED) and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((ROOT / name).read_bytes())
    (to / "mlbench" / "conf").symlink_to(Path("..", "conf"))
    return to
