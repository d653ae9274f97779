"""Loops alone and measured in turn, on a CPU: the table, the cards, and what ends with which exit code."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

CARD = "rate 98.0\nGOAL: none\ntime              2 s trained\n"


@pytest.fixture
def gpu_scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("gpu_scripts")


@pytest.mark.parametrize(
    ("measured_output", "measured_code", "minutes", "expected"),
    [
        (CARD, 0, "1", 0),
        (CARD, 3, "1", 1),
        ("rate 98.0\n", 0, "1", 1),  # no card
        (CARD, 0, "0", 75),
    ],
)
def test_the_exit_code_tells_whether_every_loop_was_measured(
    gpu_scripts: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured_output: str,
    measured_code: int,
    minutes: str,
    expected: int,
) -> None:
    order: list[tuple[str, bool]] = []
    ticks = iter(range(0, 10_000, 7))
    monkeypatch.setattr(gpu_scripts.time, "perf_counter", lambda: float(next(ticks)))

    def run(loop: str, *, measured: bool, dry_run: bool) -> tuple[int, str]:
        order.append((loop, measured))
        return (measured_code, measured_output) if measured else (0, "rate 100.0\n")

    monkeypatch.setattr(gpu_scripts, "run", run)
    assert gpu_scripts.main(["--dry-run", "--minutes", minutes, "trainer", "graphs"]) == expected
    printed = capsys.readouterr().out
    if minutes == "1":
        assert order[:4] == [("trainer", False), ("trainer", True), ("graphs", False), ("graphs", True)]
        assert order[4:6] == [("trainer", True), ("trainer", False)], "the ways change places"
        ends = "0" if measured_code == 0 else f"0, {measured_code}"
        assert f"| trainer | 100 | 98 | 0.980 | 2 | {ends} |" in printed
    assert printed.count("## ") == (2 if minutes == "1" else 0)


@pytest.mark.slow
def test_a_loop_is_measured_as_a_user_would(gpu_scripts: Any) -> None:
    code, output = gpu_scripts.run("compiled_gpt", measured=True, dry_run=True)
    assert code == 0 and "rate " in output and "trained" in output, output
