"""The command for a machine with one GPU, on a CPU and without what such a machine has not got."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S

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
sys.exit(gpu.main([*options, sys.argv[1], "--minutes", "5", "logreg", "transformer"]))
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
    cases = {(each["task"], each["precision"], each["mode"]): each for each in everything["cases"]}
    expected = {(task, number, "eager") for task in ("logreg", "transformer") for number in ("fp32", "bf16")}
    assert set(cases) == expected | {("logreg", "fp32", "inductor")}
    assert everything["skipped"] == everything["failed"] == {} and everything["left"] == []
    for each in cases.values():
        assert each["samples_per_s"] > 0 and each["reference_per_s"] > 0 and each["steps"] >= 2
        assert each["mode"] != "eager" or 0 < each["flop_per_byte"] < 1000
        assert abs(sum(each["phases"].values()) - 1) < 0.02, "phases are shares of the step, to 3 digits"
    assert nothing["cases"] == [] and nothing["left"] == ["gnmt bf16 eager", "gnmt fp32 eager"]
    assert "yet: gnmt bf16" in done.stdout
    assert (tmp_path / "all" / "gpu.md").read_text().count("| eager |") == 4


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


def measured(name: str, number: str, mode: str, words: list[str], *, dry_run: bool) -> dict[str, Any]:
    return {"task": name, "precision": number, "mode": mode}


def call(gpu: Any, *options: str) -> tuple[int, dict[str, Any]]:
    code = gpu.main(["--dry-run", "--output", "out", *options, "resnet20", "logreg"])
    return code, json.loads(Path("out/gpu.json").read_text())


def test_a_later_call_goes_on_where_the_one_before_ended(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def case(name: str, number: str, mode: str, words: list[str], *, dry_run: bool) -> dict[str, Any]:
        made.append(f"{name} {number} {mode}")
        return dict.fromkeys(gpu.COLUMNS) | measured(name, number, mode, words, dry_run=dry_run)

    monkeypatch.setattr(gpu, "case", case)
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: float(next(ticks)))  # a case takes 10 s
    code, result = call(gpu, "--minutes", "0.9")
    assert code == gpu.TIME_OVER and 0 < len(made) < 6 and len(result["left"]) == 6 - len(made)
    code, result = call(gpu, "--minutes", "5")
    assert code == 0 and result["left"] == []
    modes = ("bf16 eager", "fp32 eager", "fp32 inductor")
    assert made == [f"{task} {how}" for how in modes for task in ("resnet20", "logreg")], "each once"
    code, result = call(gpu, "--minutes", "5")
    assert code == 0 and len(made) == 6 and len(result["cases"]) == 6


def test_a_failed_case_stops_no_other_and_a_gpu_that_lacks_a_precision_fails_none(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(name: str, number: str, mode: str, words: list[str], *, dry_run: bool) -> dict[str, Any]:
        if number == "bf16":
            raise gpu.UserError("it has no bf16")
        if name == "logreg":
            raise ImportError("no such module")
        return dict.fromkeys(gpu.COLUMNS) | measured(name, number, mode, words, dry_run=dry_run)

    monkeypatch.setattr(gpu, "case", case)
    code, result = call(gpu)
    missing = "ImportError: no such module"
    assert code == 1
    assert result["failed"] == {"logreg fp32 eager": missing, "logreg fp32 inductor": missing}
    assert set(result["skipped"]) == {"resnet20 bf16 eager", "logreg bf16 eager"}
    assert [each["task"] for each in result["cases"]] == ["resnet20", "resnet20"]
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
    assert items[:3] == [
        ("gpt", "bf16", "inductor"),
        ("resnet20", "bf16", "graphs"),
        ("resnet50", "bf16", "inductor"),
    ]
    assert items[3] == ("tests",), "the tests come after the three first cases"
    assert len(set(items)) == len(items)
    plain = {item for item in items if len(item) == 3 and item[0] in gpu.TASKS}
    for name in gpu.TASKS:
        half = "fp16" if name in gpu.NO_BF16 else "bf16"
        modes = gpu.MODES if name in gpu.ONE_SHAPE else gpu.MODES[:2]
        wanted = {(name, half, mode) for mode in modes} | {(name, "tf32", "eager"), (name, "fp32", "eager")}
        assert wanted <= plain, name
    assert ("gpt", "bf16", "inductor", "attention=flash") in items
    assert items.count(("rates",)) == 1 and ("profile", "gpt", "bf16", "inductor") in items
