"""The job script of docs/slurm.md: its syntax, and what it asks of Slurm and of Ray.

Programs that write down their words stand for Slurm and Ray here; the page says what ran on a real Slurm.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from doc_pages import blocks

STUBS = {
    "scontrol": 'echo "scontrol $*" >> "$LOG"; printf "node-a\\nnode-b\\n"',
    # Without its options, srun runs the command; here on one node in the place of all.
    "srun": 'echo "srun $*" >> "$LOG"; while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "hostname": 'echo "10.1.2.3 192.168.0.1 fd00::2 "',
    "ray": 'echo "ray $*" >> "$LOG"; echo "token $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}" >> "$LOG"; exit 2',
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (text,) = blocks(ROOT / "docs" / "slurm.md", "sh")
    path = tmp_path / "mlbench.sbatch"
    path.write_text(text)
    return path


def test_the_script_is_valid_shell(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck: apt-get install shellcheck")
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_script_starts_one_ray_on_all_nodes_and_hands_on_words_and_exit_code(
    script: Path, tmp_path: Path
) -> None:
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    for name, body in STUBS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (programs / "activate").write_text("")
    job = {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "1234567"}
    environment = {
        **os.environ, **job, "SLURM_CPUS_PER_TASK": "8", "LOG": str(log), "MLBENCH_VENV": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(["bash", script, "task=gnmt", "workers=16", "study=a b"], env=environment)
    assert done.returncode == 2
    lines = log.read_text().splitlines()
    assert lines[0] == "scontrol show hostnames node-[a-b]"
    assert lines[1] == "srun --nodes=1 --ntasks=1 --nodelist=node-a hostname -I"
    assert lines[2].startswith("srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=8 ")
    assert lines[3] == (
        "ray symmetric-run --address 10.1.2.3:24567 --min-nodes 2 --num-cpus=8 -- python -m mlbench.run "
        "cluster=attached cluster.address=10.1.2.3:24567 task=gnmt workers=16 study=a b"
    )
    assert lines[4] == "token token 64"
