"""A wing's folder can be deleted: the rest works, and asking for the wing is one sentence."""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

# What a command says that asks for the wing, by wing: where its metadata still names it, and without.
ASKED = {
    "emulation": ("run network=1gbit_1ms --dry-run", "network=1gbit_1ms is unknown"),
    "kuberay": ("run cluster=kuberay --dry-run", "cluster=kuberay is unknown"),
    "jax": ("run task=logreg framework=jax --dry-run", "framework=jax is unknown"),
    "mpi": ("run backend=mpi --dry-run", "backend=mpi is unknown"),
    "prediction": ("predict published:gnmt", "no installed package has the command predict"),
}
LIST = "results list output_root=notebooks/sample"
WORKS = ("run --dry-run", "run --help", "run --cfg job", "cluster status", LIST)
# Of the tests that start neither Ray nor a server, those that meet most of what a wing could have held up.
CORE = (
    "tests/config", "tests/test_documents.py", "tests/test_mistakes.py", "tests/terminal/test_help.py",
    "tests/terminal/test_completion.py", "tests/record/test_build_record.py", "tests/record/test_format.py",
)  # fmt: skip


def points(project: str, *, without: str | None = None) -> str:
    """Return a pyproject's entry points as an installed package has them, without those of one wing."""
    groups = tomllib.loads(project)["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        rest = {name: value for name, value in entries.items() if f"mlbench.wings.{without}" not in value}
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in rest.items())]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what git tracks of the checkout."""
    copy = tmp_path_factory.mktemp("wings") / "tree"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def removed(tree: Path, wing: str, tmp_path: Path) -> Path:
    """Return a copy of the tree without a wing's folder and its tests."""
    shutil.copytree(tree, copy := tmp_path / "tree")
    for folder in ("mlbench/wings", "tests/wings"):
        shutil.rmtree(copy / folder / wing)
    return copy


def install(tree: Path, *, without: str | None) -> None:
    """Let the tree be what is installed: its metadata stands in front of the environment's."""
    metadata = tree / "mlbench_suite-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mlbench-suite\nVersion: 0\n")
    entries = points((ROOT / "pyproject.toml").read_text(), without=without)
    (metadata / "entry_points.txt").write_text(entries)


def run(tree: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the tree's mlbench, in the tree."""
    environment = os.environ | {"PYTHONPATH": str(tree), "MLBENCH_CONFIG_DIR": "", "COLUMNS": "120"}
    return subprocess.run([*map(str, command)], cwd=tree, env=environment, capture_output=True, text=True)


def mlbench(tree: Path, line: str) -> subprocess.CompletedProcess[str]:
    command, *arguments = shlex.split(line)
    return run(tree, sys.executable, "-m", f"mlbench.{command}", *arguments)


def test_every_wing_is_removed_here() -> None:
    folders = {path.parent.name for path in (ROOT / "mlbench/wings").glob("*/__init__.py")}
    assert folders == {path.name for path in (ROOT / "tests/wings").iterdir() if path.is_dir()} == {*ASKED}
    assert all((ROOT / "mlbench/wings" / name / "README.md").is_file() for name in folders)


@pytest.mark.slow
@pytest.mark.parametrize("wing", ASKED)
def test_the_rest_works_without_a_wing(wing: str, removed: Path) -> None:
    """With the metadata of before, which still name its entry points, and without these."""
    line, sentence = ASKED[wing]
    for without, message in ((None, f"mlbench.wings.{wing}"), (wing, sentence)):
        install(removed, without=without)
        result = mlbench(removed, line)
        assert (result.returncode, len(result.stderr.splitlines()), result.stdout) == (2, 1, ""), (
            result.stderr
        )
        assert message in result.stderr and "(" in result.stderr, "the way out is in brackets"
        for works in WORKS if without else WORKS[:1]:
            done = mlbench(removed, works)
            assert done.returncode == 0 and done.stdout, (works, done.stderr)
            assert f"mlbench.wings.{wing}" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wing", ASKED)
def test_the_suite_and_the_contracts_pass_without_a_wing(wing: str, removed: Path) -> None:
    install(removed, without=wing)
    linted = run(removed, Path(sys.executable).parent / "lint-imports")
    assert linted.returncode == 0, linted.stdout
    tested = run(removed, sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CORE)
    assert tested.returncode == 0, tested.stdout[-4000:]
