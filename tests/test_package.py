"""The package, installed elsewhere: it has all of its modules, and finds what another package brings."""

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import installed
import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "tests" / "example_package"


def command(*arguments: str | Path, at: Path, **variables: str) -> str:
    """Run a command in a folder, in a shell in which nothing was set; return its output."""
    clean = installed.plain_variables() | {"XDG_CACHE_HOME": str(at / "cache")} | variables
    clean |= {"MLBENCH_MACHINE_LOCK": os.environ["MLBENCH_MACHINE_LOCK"]}
    done = subprocess.run(list(map(str, arguments)), cwd=at, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder beside a new environment with mlbench's wheel and two packages of others.

    One is the example package, one is what `mlbench run --new` of that wheel writes.
    """
    root = tmp_path_factory.mktemp("package")
    empty = root / "empty"
    empty.mkdir()
    source = installed.sources(root / "source")
    shutil.copytree(EXAMPLE, root / "example")
    python = installed.environment(root / "venv")
    installed.install(installed.wheel(source, root / "wheels" / "source"), python)
    command(root / "venv" / "bin" / "mlbench", "run", "--new", "task=blobs", at=root)
    for name in ("mlbench_blobs", "example"):
        installed.install(installed.wheel(root / name, root / "wheels" / name), python)
    where = command(python, "-c", "import mlbench; print(mlbench.__file__)", at=empty)
    assert Path(where.strip()).is_relative_to(root / "venv")
    return empty


def tool(folder: Path, name: str) -> Path:
    return folder.parent / "venv" / "bin" / name


def test_another_package_s_task_and_strategy_run_under_torchrun(place: Path) -> None:
    """That workers on Ray import an installed package is shown by every run of tests/use."""
    words = ["task=blobs", "sync=model_average", "division=open", "workers=2", "seed=1", "launcher=torchrun"]
    command(tool(place, "mlbench"), "run", *words, at=place)
    (path,) = place.glob("runs/*-blobs-*/record.json")
    result = json.loads(path.read_text())
    assert result["status"] == "goal_reached" and result["experiment"]["sync"]["every"] == 4
    assert {"task", "sync"} <= {deviation["field"] for deviation in result["deviations"]}
    assert result["eligible"] is False


def test_other_packages_pass_the_contract(place: Path) -> None:
    options = ("--task=mlbench_blobs", "--sync=model_average", "--cluster=few_cpus")
    python = tool(place, "python")
    words = ("-m", "pytest", "-q", "--pyargs", "mlbench.contract", *options)
    output = command(python, *words, at=place, PYTEST_DEBUG_TEMPROOT=str(place.parent))
    assert "passed" in output and ("skipped" in output) == (importlib.util.find_spec("jax") is None)
