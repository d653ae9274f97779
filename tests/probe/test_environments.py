"""The probe needs nothing of mlbench: it runs in the Python and with the torch that a script has.

MLBENCH_PYTHONS names Python interpreters with other versions of torch, between colons, for the last test.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from conftest import ROOT

from mlbench.analysis.stragglers import of_run
from mlbench.probe import sender
from mlbench.record.reader import load

PROBE = ROOT / "mlbench" / "probe"
OLDEST = (3, 9)
DDP = ROOT / "tests" / "script" / "scripts" / "ddp.py"
PYTHONS = [path for minor in range(9, 16) if (path := shutil.which(f"python3.{minor}"))]
PYTHONS += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))]
GIVEN = [path for path in os.environ.get("MLBENCH_PYTHONS", "").split(":") if path]


def imported(path: Path) -> set[str]:
    """Return what a module imports at its top; what torch is, is the script's."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), feature_version=OLDEST)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return names


@pytest.mark.parametrize("path", sorted(PROBE.rglob("*.py")), ids=lambda path: path.name)
def test_a_module_of_the_probe_imports_python_s_own_and_its_neighbours_alone(path: Path) -> None:
    foreign = {name for name in imported(path) if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name.split(".")[0] not in ("torch", "sitecustomize")} <= {
        name for name in foreign if name.startswith("mlbench.probe")
    }
    assert (
        not foreign
        or "from __future__ import annotations" in path.read_text()
        or path.name
        in (
            "sitecustomize.py",
            "buckets.py",  # DDP refuses annotations that are texts
        )
    )


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
def test_a_python_without_mlbench_loads_the_probe_and_says_nothing(tmp_path: Path, python: str) -> None:
    done = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info >= (3, 9))"], capture_output=True
    )
    if done.stdout != b"True\n":
        pytest.skip("older than Python 3.9, or no Python")
    (tmp_path / "sitecustomize.py").write_text("print('own')")  # of the script's environment
    path = os.pathsep.join([str(PROBE / "startup"), str(tmp_path)])
    code = (
        "import sys; print(type(sys.meta_path[0]).__name__, 'mlbench' in sys.modules, "
        "[name for name in ('torch', 'numpy', 'pydantic', 'psutil') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": path, sender.ADDRESS: "127.0.0.1:9"}
    done = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    installed = "mlbench" in done.stdout.splitlines()[0]
    assert not installed and (done.stdout, done.stderr) == ("own\n_AfterTorch False []\n", "")


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
@pytest.mark.parametrize("python", GIVEN)
def test_another_torch_is_measured_by_a_command_of_another_environment(tmp_path: Path, python: str) -> None:
    """As DDP on two ranks, of which one is late by 200 ms."""
    folder = tmp_path / "runs"
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [sys.executable, "-m", "mlbench.measure", f"output_root={folder}", "--", *torchrun, str(DDP)]
    line += ["1", "1", "0.2"]
    frozen = [python, "-m", "pip", "freeze"]
    before = subprocess.run(frozen, capture_output=True).stdout
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*/record.json")
    record = load(path)
    late = of_run(record)
    assert (record.steps, record.samples, record.workers) == (32, 2048, 2)
    assert late is not None and late.rank == 1 and 0.15 < late.low_s < 0.3
    assert all(record.phases[name].mean > 0 for name in ("data_wait", "forward", "loss", "backward", "wait"))
    assert not [warning for warning in record.warnings if "probe" in warning]
    assert subprocess.run(frozen, capture_output=True).stdout == before
