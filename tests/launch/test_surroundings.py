"""A standard output that is full, or none, is no traceback."""

import subprocess
import sys

import pytest
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

pytestmark = pytest.mark.slow


def test_a_full_standard_output_is_a_sentence(snapshot: SnapshotAssertion) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mlbench.run", "--cfg", "job"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == snapshot


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_is_no_traceback(closed: str) -> None:
    command = f"{sys.executable} -m mlbench.data list {closed}"
    done = subprocess.run(command, shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
