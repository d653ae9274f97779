"""`task=script`: the script as it is, on Ray's workers."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from mlbench.analysis.stragglers import of_run
from mlbench.record.reader import load
from mlbench.record.record import Record

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"


def run(environment: dict[str, str], folder: Path, *overrides: str) -> tuple[Record, str, int]:
    command = [sys.executable, "-m", "mlbench.run", f"output_root={folder}", "task=script", *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    (path,) = folder.glob("*/record.json")
    return load(path), done.stdout + done.stderr, done.returncode


def test_a_script_trains_on_rays_workers_and_its_late_rank_is_named(
    kept_ray: dict[str, str], tmp_path: Path
) -> None:
    overrides = [f"task.path={SCRIPTS / 'ddp.py'}", "task.args=1 1 0.2", "task.metric=val_acc", "workers=2"]
    record, shown, code = run(kept_ray, tmp_path, *overrides)
    assert (code, record.status, record.contradictions) == (0, "completed", []), shown
    assert (record.workers, record.steps, record.samples) == (2, 32, 2048)
    assert len(record.validations) == 1 and record.best is not None
    late = of_run(record)
    assert late is not None and late.rank == 1 and late.low_s > 0.15
    logs = [path.read_text() for path in sorted(tmp_path.glob("*/rank_*.log"))]
    assert len(logs) == 2 and "val_acc" in logs[0] and "val_acc" not in logs[1]


def test_a_script_that_fails_says_so_with_its_exit_code(kept_ray: dict[str, str], tmp_path: Path) -> None:
    overrides = [f"task.path={SCRIPTS / 'plain.py'}", "task.args=20 fail", "workers=1"]
    record, shown, code = run(kept_ray, tmp_path, *overrides)
    assert (code, record.status, record.steps) == (1, "failed", 20), shown
    assert record.error == "the script ended with exit code 3: loss: 0.25"
