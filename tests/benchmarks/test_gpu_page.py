"""The page's tables and its picture, of results as benchmarks/gpu.py writes them."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

CASE = {
    "task": "gpt", "precision": "bf16", "mode": "eager", "words": "", "samples_per_s": 400_000.0,
    "unit": "tokens", "step_ms": 1310.0, "mfu": 0.34, "data_wait": 0.002, "peak_gb": 29.9,
    "reference_per_s": 398_000.0, "ratio": 1.004, "flop_per_byte": 40.0, "flops_per_sample": 8.6e8,
}  # fmt: skip
FASTER = CASE | {"mode": "inductor", "samples_per_s": 500_000.0, "flop_per_byte": None, "mfu": None}
RESULT = {
    "machine": {"gpu": "NVIDIA H200", "date": "2026-12-01", "commit": "abc"},
    "cases": [CASE, FASTER, CASE | {"task": "logreg", "flop_per_byte": None}],
    "rates": {"cuda_half_gemm_flops_per_s": 8e14, "cuda_copy_bytes_per_s": 4e12},
    "profile": {"gpt": [{"kernel": "gemm", "share": 0.25}]},
}


@pytest.fixture
def gpu_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("gpu_page")


def test_the_tables_have_every_case_with_its_units(gpu_page: Any) -> None:
    text = gpu_page.page(RESULT)
    assert "| gpt | eager | 400,000 tokens/s | 1,310 | 34.0% | 29.9 | 398,000 | 1.00 |" in text
    assert "| gpt | inductor | 500,000 tokens/s | 1,310 | - | 29.9 | 398,000 | 1.00 |" in text
    assert (
        "- 25.0%: `gemm`" in text and "NVIDIA H200, date 2026-12-01" in text and text.endswith("commit abc")
    )


def test_a_task_stands_where_its_fastest_case_is(gpu_page: Any) -> None:
    assert gpu_page.points(RESULT, "bf16") == {"gpt": (40.0, 500_000 * 8.6e8, "inductor")}
    assert gpu_page.roof(RESULT, "bf16") == (8e14, 4e12)
    assert gpu_page.roof(RESULT | {"rates": {}}, "bf16") is gpu_page.roof(RESULT, "tf32") is None


def test_the_picture_is_drawn_from_the_results(gpu_page: Any, tmp_path: Path) -> None:
    results, picture = tmp_path / "gpu.json", tmp_path / "roofline.svg"
    results.write_text(json.dumps(RESULT))
    assert gpu_page.main([str(results), "--picture", str(picture)]) == 0
    assert picture.read_text().startswith("<svg") and "gpt" in picture.read_text()
    assert gpu_page.main([str(tmp_path / "absent.json")]) == 2
