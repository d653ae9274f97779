"""Surroundings in which a program must keep its promises: a standard output that is full, or none."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from mlbench.experiment import record

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_run_whose_output_is_full_and_whose_driver_has_no_asserts_stays_what_it_is(
    kept_ray: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    environment = {**kept_ray, "PYTHONOPTIMIZE": "1"}
    words = ["task=logreg", "workers=2", f"output_root={tmp_path / 'runs'}", f"data_root={data_root}"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mlbench.run", *words],
            cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240,
        )  # fmt: skip
    (path,) = (tmp_path / "runs").glob("*/record.json")
    found = record.load(path)
    assert (found.status, found.error) == ("goal_reached", None) and found.time_to_accuracy
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "cannot show the result card" in done.stderr and path.parent.name in done.stderr


@pytest.mark.parametrize("words", [("mlbench.data", "list"), ("mlbench.run", "--cfg", "job")])
def test_a_full_standard_output_is_a_sentence(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "mlbench: the output cannot be written: no space left on device\n"


@pytest.mark.parametrize("words", [("mlbench.data", "list"), ("mlbench.run", "--cfg", "job")])
def test_a_command_without_standard_streams_is_no_traceback(words: tuple[str, ...]) -> None:
    command = f"{sys.executable} -m {' '.join(words)}"
    for closed in ("<&- >&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, ""), closed
