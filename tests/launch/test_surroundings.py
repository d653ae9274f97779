"""A standard output that is full, or none, is no traceback."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("arguments", [("mlbench.data", "list"), ("mlbench.run", "--cfg", "job")])
def test_a_full_standard_output_is_a_sentence(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "mlbench: the output cannot be written: no space left on device\n"


@pytest.mark.parametrize("arguments", [("mlbench.data", "list"), ("mlbench.run", "--cfg", "job")])
def test_a_command_without_standard_streams_is_no_traceback(arguments: tuple[str, ...]) -> None:
    command = f"{sys.executable} -m {' '.join(arguments)}"
    for closed in ("<&- >&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, ""), closed
