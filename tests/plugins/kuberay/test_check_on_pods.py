"""`cluster check` of a Kubernetes cluster: one command, pods that send to each other, a verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from conftest import ROOT

pytest.importorskip("mlbench.plugins.emulation.namespace")
from played_operator import played  # noqa: E402
from test_submission import IMAGE, nothing_is_left  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="root makes networks and roots")]


def test_the_pods_of_a_cluster_are_checked_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(tmp_path, monkeypatch, workers=2) as cluster:
        command = [sys.executable, "-m", "mlbench.cluster", "check", "--json", "cluster=kuberay", IMAGE]
        command += ["workers=2", "hardware=gcp_n1_standard_4", "hardware.cpus=1", "cluster.head_cpus=1"]
        command += ["minutes=1", f"output_root={tmp_path / 'runs'}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        nothing_is_left(cluster)
    result = json.loads(done.stdout)
    assert len(set(result["machines"])) == 2 and len(result["pairs"]) == 2
    assert result["expected_bytes_per_s"] > 0 and bool(result["faults"]) == done.returncode
