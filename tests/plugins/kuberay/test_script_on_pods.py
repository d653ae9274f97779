"""A script with a package beside it, its own Python and its outputs, from one command to its record."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import doc_pages
import pytest
from commands import PATIENCE_S
from conftest import ROOT

pytest.importorskip("mlbench.plugins.emulation.namespace")
from played_operator import played  # noqa: E402
from test_submission import IMAGE, nothing_is_left  # noqa: E402

from mlbench.record.reader import load  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="root makes networks and roots")]
TRAIN = """
import os
from pathlib import Path
import torch
import torch.distributed as dist
import needed
from nets.small import net

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
rows = torch.tensor([float(line) for line in Path("rows.txt").read_text().split()])
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows[:, None]), batch_size=4)
for epoch in range(4):
    for (batch,) in loader:
        loss = ((model(batch) - 3 * batch) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"val_loss {loss.item():.6f}", flush=True)
outputs = Path(os.environ["MLBENCH_OUTPUT_DIR"])
torch.save(model.module.state_dict(), outputs / "model.pt")
Path("scratch.txt").write_text("its own folder may be written to")
print("needed says", needed.WORD, "secret", os.environ.get("WANDB_API_KEY"), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "nets").mkdir(parents=True)
    (folder / "nets" / "__init__.py").touch()
    (folder / "nets" / "small.py").write_text("import torch\n\ndef net(): return torch.nn.Linear(1, 1)\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "rows.txt").write_text("\n".join(str(number / 32) for number in range(32)))
    (folder / ".mlbenchignore").write_text("*.bin\n")
    (folder / "large.bin").write_bytes(os.urandom(3_000_000))
    return folder


def test_a_script_with_its_package_and_python_runs_and_its_outputs_come_home(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = Path(tempfile.mkdtemp(dir="/var/tmp"))  # the image's own environment: not below /tmp
    packages.chmod(0o755)
    (packages / "needed.py").write_text("WORD = 'here'\n")
    python = packages / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with played(tmp_path, monkeypatch, workers=2) as cluster:
        (typed, *_) = doc_pages.blocks(ROOT / "docs" / "script-on-a-cluster.md", "bash")
        words = shlex.split(typed.replace("\\\n", " "))[2:]  # less `mlbench run`
        words[words.index("cluster.image=REPOSITORY@sha256:DIGEST")] = IMAGE
        words += [f"task.python={python}", "task.stop_at_goal=false", "seed=3"]
        words += ["hardware.cpus=1", "cluster.head_cpus=1", f"output_root={tmp_path / 'runs'}"]
        done = subprocess.run(
            [sys.executable, "-m", "mlbench.run", *words], cwd=project, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        nothing_is_left(cluster)
        assert cluster.names("configmaps") == []
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/record.json"))
    record: Any = load(folder / "record.json")
    assert record.status == "goal_reached" and len(record.nodes) == 2
    for rank in range(2):
        assert "needed says here" in (folder / f"rank_{rank}.log").read_text()
        assert (folder / "outputs" / f"rank_{rank}" / "model.pt").stat().st_size > 0
    assert not list(tmp_path.glob("project/scratch.txt"))
    shutil.rmtree(packages)
