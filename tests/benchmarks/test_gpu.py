"""The command for a machine with one GPU, on a CPU and without what such a machine has not got."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import sys

class Absent:
    names = {names}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
sys.path.insert(0, "benchmarks")
import gpu

options = ["--dry-run", "--output"]
sys.exit(gpu.main([*options, sys.argv[1], "--minutes", "5", "resnet20", "logreg", "transformer"])
         or gpu.main([*options, sys.argv[2], "--minutes", "0", "gnmt"]))
"""
ABSENT = (
    "ray", "mlflow", "PIL", "sacrebleu", "sacremoses", "tokenizers", "scipy", "psutil", "rich", "altair",
)  # fmt: skip


@pytest.mark.slow
def test_a_dry_run_needs_no_ray_and_measures_every_case_or_names_it(tmp_path: Path) -> None:
    """In a process in which the libraries of such a machine are all that can be imported."""
    folders = [str(tmp_path / "all"), str(tmp_path / "none")]
    command = [sys.executable, "-c", RUN.format(names=ABSENT), *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    everything, nothing = (json.loads((Path(folder) / "gpu.json").read_text()) for folder in folders)
    cases = {(each["task"], each["precision"]): each for each in everything["cases"]}
    tasks = ("resnet20", "logreg", "transformer")
    assert set(cases) == {(task, number) for task in tasks for number in ("fp32", "bf16")}
    assert everything["skipped"] == []
    for each in cases.values():
        assert each["samples_per_s"] > 0 and each["reference_per_s"] > 0 and each["steps"] >= 2
        assert abs(sum(each["phases"].values()) - 1) < 0.02, "phases are shares of the step, to 3 digits"
    assert nothing["cases"] == []
    assert nothing["skipped"] == ["gnmt bf16 eager: no time left", "gnmt fp32 eager: no time left"]
    assert "SKIPPED gnmt bf16 eager: no time left" in done.stdout
    assert (tmp_path / "all" / "gpu.md").read_text().count("| eager |") == 6
