"""A wing's folder can be deleted: the rest works, and asking for the wing is one sentence."""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
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


def points(project: str, *, without: Iterable[str]) -> str:
    """Return a pyproject's entry points as an installed package has them, without those of some wings."""
    groups = tomllib.loads(project)["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        for name, value in entries.items():
            if not any(f"mlbench.wings.{wing}" in value for wing in without):
                lines.append(f"{name} = {value}")
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


def remove(tree: Path, folder: Path, wings: Iterable[str]) -> Path:
    """Return a copy of the tree, in a folder, without the folders of wings and their tests."""
    shutil.copytree(tree, copy := folder / "tree")
    for wing in wings:
        for path in ("mlbench/wings", "tests/wings"):
            shutil.rmtree(copy / path / wing)
    return copy


def install(tree: Path, *, without: Iterable[str]) -> None:
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
def test_the_rest_works_without_a_wing(wing: str, tree: Path, tmp_path: Path) -> None:
    """With the metadata of before, which still name its entry points, and without these."""
    line, sentence = ASKED[wing]
    copy = remove(tree, tmp_path, [wing])
    for without, message in (([], f"mlbench.wings.{wing}"), ([wing], sentence)):
        install(copy, without=without)
        result = mlbench(copy, line)
        assert (result.returncode, len(result.stderr.splitlines()), result.stdout) == (2, 1, ""), (
            result.stderr
        )
        assert message in result.stderr and "(" in result.stderr, "the way out is in brackets"
        for works in WORKS if without else WORKS[:1]:
            done = mlbench(copy, works)
            assert done.returncode == 0 and done.stdout, (works, done.stderr)
            assert f"mlbench.wings.{wing}" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_suite_and_the_contracts_pass_without_any_wing(tree: Path, tmp_path: Path) -> None:
    """What needs one of them fails here, too; no wing needs another (a contract of import-linter)."""
    copy = remove(tree, tmp_path, ASKED)
    install(copy, without=ASKED)
    linted = run(copy, Path(sys.executable).parent / "lint-imports")
    assert linted.returncode == 0, linted.stdout
    tested = run(copy, sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CORE)
    assert tested.returncode == 0, tested.stdout[-4000:]
