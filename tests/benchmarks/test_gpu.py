"""The command for a machine with one GPU, on a CPU and without what such a machine has not got."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S

from mlbench.tasks import registry

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
assert gpu.main([*options, sys.argv[2], "--minutes", "0", "gnmt"]) == gpu.TIME_OVER
sys.exit(gpu.main([*options, sys.argv[1], "--minutes", "5", "gpt", "resnet20", "logreg", "transformer"]))
"""
ABSENT = (
    "ray", "mlflow", "PIL", "sacrebleu", "sacremoses", "tokenizers", "scipy", "psutil", "rich", "altair",
)  # fmt: skip


@pytest.mark.slow
def test_a_dry_run_needs_no_ray_and_measures_every_case_or_names_it(tmp_path: Path) -> None:
    """In a process in which the libraries of such a machine are all that can be imported."""
    folders = [str(tmp_path / "all"), str(tmp_path / "none")]
    command = [sys.executable, "-c", RUN.format(names=ABSENT), *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    everything, nothing = (json.loads((Path(folder) / "gpu.json").read_text()) for folder in folders)
    cases = {(each["task"], each["precision"]): each for each in everything["cases"]}
    tasks = ("gpt", "resnet20", "logreg", "transformer")
    assert set(cases) == {(task, number) for task in tasks for number in ("fp32", "bf16")}
    assert everything["skipped"] == everything["failed"] == {} and everything["left"] == []
    for each in cases.values():
        assert each["samples_per_s"] > 0 and each["reference_per_s"] > 0 and each["steps"] >= 2
        assert abs(sum(each["phases"].values()) - 1) < 0.02, "phases are shares of the step, to 3 digits"
    assert nothing["cases"] == [] and nothing["left"] == ["gnmt bf16 eager", "gnmt fp32 eager"]
    assert "- no time yet: gnmt bf16 eager" in done.stdout
    assert (tmp_path / "all" / "gpu.md").read_text().count("| eager |") == 8


def test_a_case_is_not_measured_with_what_the_one_before_decided(gpu: Any) -> None:
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = True
    gpu.release()
    assert torch.backends.cuda.cudnn_sdp_enabled() and not torch.backends.cudnn.benchmark


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the module changes
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("gpu")


def measured(name: str, number: str, mode: str, *, dry_run: bool) -> dict[str, Any]:
    return {"task": name, "precision": number, "mode": mode}


def call(gpu: Any, *options: str) -> tuple[int, dict[str, Any]]:
    code = gpu.main(["--dry-run", "--output", "out", *options, "resnet20", "logreg"])
    return code, json.loads(Path("out/gpu.json").read_text())


def test_a_later_call_goes_on_where_the_one_before_ended(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def case(name: str, number: str, mode: str, *, dry_run: bool) -> dict[str, Any]:
        made.append(f"{name} {number}")
        return dict.fromkeys(gpu.COLUMNS) | measured(name, number, mode, dry_run=dry_run)

    monkeypatch.setattr(gpu, "case", case)
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: float(next(ticks)))  # a case takes 10 s
    code, result = call(gpu, "--minutes", "0.9")
    assert code == gpu.TIME_OVER and 0 < len(made) < 4 and len(result["left"]) == 4 - len(made)
    code, result = call(gpu, "--minutes", "5")
    assert code == 0 and result["left"] == []
    assert made == ["resnet20 bf16", "logreg bf16", "resnet20 fp32", "logreg fp32"], "each once"
    code, result = call(gpu, "--minutes", "5")
    assert code == 0 and len(made) == 4 and len(result["cases"]) == 4


def test_a_failed_case_stops_no_other_and_a_gpu_that_lacks_a_precision_fails_none(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(name: str, number: str, mode: str, *, dry_run: bool) -> dict[str, Any]:
        if number == "bf16":
            raise gpu.UserError("it has no bf16")
        if name == "logreg":
            raise ImportError("no such module")
        return dict.fromkeys(gpu.COLUMNS) | measured(name, number, mode, dry_run=dry_run)

    monkeypatch.setattr(gpu, "case", case)
    code, result = call(gpu)
    assert code == 1 and result["failed"] == {"logreg fp32 eager": "ImportError: no such module"}
    assert set(result["skipped"]) == {"resnet20 bf16 eager", "logreg bf16 eager"}
    assert [each["task"] for each in result["cases"]] == ["resnet20"]
    assert call(gpu)[0] == 1, "it stays failed"


def test_results_of_other_code_or_another_machine_are_not_continued(gpu: Any, tmp_path: Path) -> None:
    here = {"torch": "2", "date": "2026-01-01", "commit": "a"}
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"machine": here, "done": {"rates": 1.0}}))
    assert gpu.earlier(path, here | {"date": "2026-01-02"})["done"] == {"rates": 1.0}
    assert gpu.earlier(path, here | {"commit": "b"})["done"] == {}
    path.write_text("{")
    assert gpu.earlier(path, here)["done"] == {}


def test_the_plan_begins_with_what_tells_most_and_has_every_case_once(gpu: Any) -> None:
    items = gpu.plan(gpu.TASKS, dry_run=False)
    first = ("gpt", "resnet50", "transformer")
    assert items[:4] == [*((name, "bf16", "eager") for name in first), ("rates",)]
    absent = len(gpu.NO_GRAPHS) + len(gpu.NO_FP16) + len(gpu.NO_BF16)
    assert len(set(items)) == len(items) == 2 + 6 * 7 - absent
    assert {item[0] for item in items[: items.index(("tests",))]} == {*gpu.TASKS, "rates"}


def test_the_plan_has_no_case_that_would_be_refused(gpu: Any) -> None:
    for name, number, *_ in (item for item in gpu.plan(gpu.TASKS, dry_run=False) if len(item) == 3):
        config = registry.load(name).Config
        assert number in config.PRECISIONS and number not in config.CPU_ONLY, (name, number)


def test_cuda_graphs_are_asked_only_of_steps_in_one_piece_and_of_one_shape(gpu: Any) -> None:
    """torch 2.11 refuses gradients that a replay overwrites, and records a graph for each shape."""
    graphs = {item[0] for item in gpu.plan(gpu.TASKS, dry_run=False) if item[-1] == gpu.MODES[2]}
    assert graphs == {"resnet50", "resnet20", "logreg"}


@pytest.mark.parametrize("other", ["PCIe", "NVL", "80GB HBM3 MIG 1g.10gb"])
def test_a_card_whose_peak_is_not_stated_has_no_mfu(gpu: Any, other: str) -> None:
    assert "NVIDIA H100 80GB HBM3" in gpu.PEAKS and f"NVIDIA H100 {other}" not in gpu.PEAKS


def test_results_say_that_the_code_was_changed_since_its_commit(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "code.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "gpu.json").write_text("what it writes itself is no change")
    clean = gpu.machine(dry_run=True)["commit"]
    (tmp_path / "code.py").write_text("2\n")
    assert len(clean) == 7 and gpu.machine(dry_run=True)["commit"] == f"{clean} with changes"


def test_files_that_need_what_is_not_installed_are_named_and_are_no_failure(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    mark = "import pytest\npytestmark = pytest.mark.gpu\n"
    (tests / "test_absent.py").write_text(mark + "import no_such_module\n")
    (tests / "test_here.py").write_text(mark + "def test_right(): pass\ndef test_wrong(): assert 0\n")
    (tests / "test_other.py").write_text("def test_not_of_a_gpu(): assert 0\n")
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    result = gpu.gpu_tests(60)
    assert result["passed"] == 1 and result["failed"] == ["tests.test_here.test_wrong"]
    assert [Path(name).name for name in result["not_imported"]] == ["tests.test_absent"]
