"""The job scripts of docs/slurm.md: their syntax, and what the first asks of Slurm and of Ray.

Programs that write down their words stand for Slurm and Ray here; test_slurm_job.py has a real Slurm.
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
    "srun": 'echo "srun $*" >> "$LOG"; while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "hostname": 'echo "10.1.2.3 192.168.0.1 fd00::2 "',
    "ray": 'mkdir -p "$RAY_TMPDIR"; echo "ray $* [$RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}]" >> "$LOG"; echo said',
    # Writes its words down, once the step on the other nodes has; anything but a module is the real Python.
    "python": 'if [[ $1 != -m ]]; then exec "$PYTHON" "$@"; fi\n'
    'until grep -qs "^ray.*block" "$LOG" || [[ $SLURM_JOB_NUM_NODES == 1 ]]; do sleep 0.02; done\n'
    'echo "python $*" >> "$LOG"; exit 2',
}


@pytest.fixture
def scripts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("mlbench.sbatch", "measure.sbatch")]
    for path, text in zip(paths, blocks(ROOT / "docs" / "slurm.md", "sh"), strict=True):
        path.write_text(text)
    return paths


def test_the_scripts_are_valid_shell(scripts: list[Path]) -> None:
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck: apt-get install shellcheck")
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("nodes", ["1", "4"])
def test_the_script_starts_ray_on_every_node_and_hands_on_words_and_exit_code(
    scripts: list[Path], tmp_path: Path, nodes: str
) -> None:
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    for name, body in STUBS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    (programs / "activate").write_text("")
    job = {"SLURMD_NODENAME": "node-a", "SLURM_JOB_NUM_NODES": nodes, "SLURM_JOB_ID": "1234567"}
    environment = {
        **os.environ, **job, "SLURM_CPUS_PER_TASK": "8", "LOG": str(log), "MLBENCH_VENV": str(tmp_path),
        "PYTHON": sys.executable, "PATH": f"{programs}:{os.environ['PATH']}",
    }  # fmt: skip
    overrides = ["task=gnmt", "workers=16", "study=a b"]
    done = subprocess.run(["bash", scripts[0], *overrides], env=environment, cwd=tmp_path)
    assert done.returncode == 2
    first, *others, run, step, stop = log.read_text().splitlines()
    assert step == (
        f"srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 bash -c "
        "ray stop; rm -rf /tmp/ray-1234567"
    )
    assert stop == "ray stop [token 64]"
    assert not Path("/tmp/ray-1234567").exists()  # Ray's folder, which another user's job would find
    assert first == (
        "ray start --head --node-ip-address=10.1.2.3 --port=24567 --num-cpus=8 "
        "--object-store-memory=100000000 --include-dashboard=false [token 64]"
    )
    node = (
        "ray start --address=10.1.2.3:24567 --num-cpus=8 --object-store-memory=100000000 --block [token 64]"
    )
    step = "srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --exclude=node-a --cpus-per-task=8"
    assert others == ([] if nodes == "1" else [f"{step} {node.removesuffix(' [token 64]')}", node])
    assert run == (
        "python -m mlbench.run cluster=attached cluster.address=10.1.2.3:24567 cluster.wait_s=120 "
        "task=gnmt workers=16 study=a b"
    )
    assert set((tmp_path / "ray-1234567.log").read_text().splitlines()) == {"said"}
