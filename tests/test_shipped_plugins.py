"""A plugin's folder can be deleted: the rest works, and asking for the plugin is one sentence."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import ROOT

# What a command says that asks for the plugin, by plugin: where its metadata still names it, and without.
ASKED = {
    "emulation": ("run network=1gbit_1ms --dry-run", "network=1gbit_1ms is unknown"),
    "kuberay": ("run cluster=kuberay --dry-run", "cluster=kuberay is unknown"),
    "jax": ("run task=logreg framework=jax --dry-run", "framework=jax is unknown"),
    "mpi": ("run backend=mpi --dry-run", "backend=mpi is unknown"),
    "prediction": ("predict published:gnmt", "no installed package has the command predict"),
}
LIST = "results list output_root=notebooks/sample"
WORKS = ("run --dry-run", "run --help", "run --cfg job", "cluster status", LIST)
# Of the tests that start neither Ray nor a server, those that meet most of what a plugin could have held up.
CORE = ("tests/config", "tests/test_documents.py", "tests/terminal/test_help.py")
# Runs command lines one after the other, and prints exit code and both streams of each.
LINES = """
import contextlib, importlib, io, json, shlex, sys
answers = []
for line in sys.argv[1:]:
    command, *words = shlex.split(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = importlib.import_module(f"mlbench.{command}").main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


def points(project: str, *, without: Iterable[str]) -> str:
    """Return a pyproject's entry points as an installed package has them, without those of some plugins."""
    groups = tomllib.loads(project)["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        for name, value in entries.items():
            if not any(f"mlbench.plugins.{plugin}" in value for plugin in without):
                lines.append(f"{name} = {value}")
    return "\n".join(lines)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what git tracks of the checkout, without the plugins' folders and tests."""
    copy = tmp_path / "tree"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    plugins = ("mlbench/plugins/", "tests/plugins/")
    for name in tracked.stdout.splitlines():
        if (ROOT / name).exists() and not (name.startswith(plugins) and name.count("/") > 2):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
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


def answers(tree: Path, *lines: str) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of each command line, of the tree's mlbench."""
    done = run(tree, sys.executable, "-c", LINES, *lines)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_plugin_is_removed_here() -> None:
    folders = {path.parent.name for path in (ROOT / "mlbench/plugins").glob("*/__init__.py")}
    assert folders == {path.name for path in (ROOT / "tests/plugins").iterdir() if path.is_dir()} == {*ASKED}
    assert all((ROOT / "mlbench/plugins" / name / "README.md").is_file() for name in folders)


@pytest.mark.slow
def test_the_rest_works_without_any_plugin_and_asking_for_one_is_a_sentence(tree: Path) -> None:
    """With the metadata of before, which still name the plugins' entry points, and without these.

    What needs one of them fails here, too; no plugin needs another (a contract of import-linter).
    """
    for without in ((), ASKED):
        install(tree, without=without)
        asked = answers(tree, *(line for line, _ in ASKED.values()))
        for (plugin, (_, sentence)), (code, out, err) in zip(ASKED.items(), asked, strict=True):
            assert (code, len(err.splitlines()), out) == (2, 1, ""), (plugin, err)
            assert (sentence if without else f"mlbench.plugins.{plugin}") in err
            assert re.search(r"\(|: choose one of", err), "no way out"
        for line, (code, out, err) in zip(WORKS, answers(tree, *WORKS), strict=True):
            assert code == 0 and out and "mlbench.plugins." not in out + err, (line, err)
    linted = run(tree, Path(sys.executable).parent / "lint-imports")
    assert linted.returncode == 0, linted.stdout
    tested = run(tree, sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CORE)
    assert tested.returncode == 0, tested.stdout[-4000:]
