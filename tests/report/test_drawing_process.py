"""Figures are drawn in a process of its own: what ends it ends nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from driven import Run

from mlbench.report import drawing_process

DRAW = "import sys; from pathlib import Path; from mlbench.report import drawing_process\n"
DRAW += "print(drawing_process.draw(Path(sys.argv[1])))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = Run(tmp_path)
    run.validate(50.0)
    run.end("goal_not_reached")
    return run.folder


@pytest.mark.slow
def test_too_little_memory_for_the_engine_that_draws_costs_the_figures_alone(folder: Path) -> None:
    """4 GB of address space, as Slurm's limit of virtual memory may set: V8 reserves more, and aborts."""
    command = 'ulimit -v 4000000; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-c", DRAW, str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ended by SIG" in done.stdout
    assert not list(folder.glob("*.png"))
    assert drawing_process.draw(folder) is None
    assert {path.name for path in folder.glob("*.png")} >= {"validation.png", "training_loss.png"}


def test_a_full_disk_is_an_error_that_another_attempt_may_not_have(folder: Path) -> None:
    (folder / "validation.png").symlink_to("/dev/full")
    with pytest.raises(RuntimeError, match="No space left"):
        drawing_process.draw(folder)
