"""A cluster, a profile and prices of a --config-dir, in pods that cannot read its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from conftest import ROOT
from test_manifest import laboratory

pytest.importorskip("mlbench.plugins.emulation.namespace")
from played_operator import played  # noqa: E402
from test_submission import nothing_is_left  # noqa: E402

from mlbench.record.reader import load  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="root makes networks and roots")]


def test_a_lab_s_cluster_profile_and_price_reach_pods_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prices = laboratory(tmp_path)
    with played(tmp_path, monkeypatch, workers=2) as cluster:
        command = [sys.executable, "-m", "mlbench.run", "--config-dir", str(folder)]
        command += ["task=logreg", "workers=2", "hardware=lab", "cluster=lab", "seed=5"]
        command += [f"output_root={tmp_path / 'runs'}"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
            env=os.environ | {"MLBENCH_PRICES": str(prices)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        nothing_is_left(cluster)
    record = load(next(tmp_path.glob("runs/*/record.json")))
    assert record.status == "goal_reached" and len(record.nodes) == 2
    hardware = record.experiment.hardware
    assert (hardware.name, hardware.cpus) == ("lab", 1)
    assert hardware.price is not None and hardware.price.usd_per_hour == 0.45
