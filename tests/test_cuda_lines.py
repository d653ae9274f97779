"""Which lines are for CUDA alone, as tools/cuda_lines.py tells them from the source."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
def f(device):
    a = 1
    torch.cuda.synchronize()
    if device.type == "cuda":
        b = 2
        for c in a:
            d = 3
    else:
        e = 4
    if device.type != "cuda":
        return a
    g = 5
def h(tensor):
    i = 6
    if not tensor.is_cuda:
        j = 7
    else:
        k = 8
    if not i or tensor.is_cuda:
        return i
    m = 9
"""


def test_the_lines_are_those_that_call_torch_cuda_or_that_a_condition_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    tool: Any = import_module("cuda_lines")
    monkeypatch.delitem(sys.modules, "cuda_lines")
    lines = SOURCE.splitlines()
    result = [lines[number - 1].strip() for number in tool.cuda_lines(SOURCE)]
    assert result == ["torch.cuda.synchronize()", "b = 2", "d = 3", "g = 5", "k = 8"]
