"""`mlbench.measure(...)` in a script: the same file alone, under torchrun and under a command."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S

from mlbench.record.reader import load

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
SCRIPT = str(Path(__file__).parent / "scripts" / "five_lines.py")
PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MEASURE = [*PYTHON, "-m", "mlbench.measure", "cluster.exclusive=false", "--"]


@pytest.mark.parametrize(
    ("command", "workers"),
    [(PYTHON, 1), (TORCHRUN, 2), (MEASURE + PYTHON, 1), (MEASURE + TORCHRUN, 2)],
    ids=["alone", "torchrun", "command", "command with torchrun"],
)
def test_the_same_file_reaches_the_same_goal_however_it_is_started(
    tmp_path: Path, command: list[str], workers: int
) -> None:
    done = subprocess.run(
        [*command, SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("GOAL REACHED: loss") == 1
    (path,) = tmp_path.glob("runs/*/record.json")
    record = load(path)
    assert (record.status, record.workers, record.contradictions) == ("goal_reached", workers, [])
    losses = [validation.metrics["loss"] or 1.0 for validation in record.validations]
    assert losses[-1] <= 0.01 < min(losses[:-1])
    assert record.steps == 4 * len(losses) and record.samples == 64 * workers * len(losses)
    assert record.phases["data_wait"].mean > 0 and record.phases["forward"].mean > 0
