"""Processes that should have ended are ended."""

import subprocess
import sys

import psutil

from mlbench.clusters import persistent


def test_a_process_that_does_not_end_by_itself_is_killed() -> None:
    quick = subprocess.Popen([sys.executable, "-c", "pass"])
    stuck = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    both = persistent.children(psutil.Process())
    assert {quick.pid, stuck.pid} <= {process.pid for process in both}
    persistent.end([process for process in both if process.pid in (quick.pid, stuck.pid)])
    assert quick.wait(timeout=30) == 0
    assert stuck.wait(timeout=30) == -9
