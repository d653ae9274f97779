"""What a command prints, reads and is told, in real processes without torch."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S

from mlbench.config.compose import compose
from mlbench.script import child


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        ("val_acc", "epoch 3: val_acc 0.95.", 0.95),
        ("val_acc", "précision → val_acc: 95.5 % (best)", 95.5),
        ("loss", "loss=1.5e-3 lr 1", 0.0015),
        ("loss", "loss: -inf", float("-inf")),
        ("eval_loss", "{'eval_loss': '2.25', 'epoch': 1}", 2.25),
        ("val_acc", "| val_acc | .5 |", 0.5),
        ("Acc@1", " * Acc@1 97.2 Acc@5 99", 97.2),
        (r"\d+,[\d.]+,([\d.]+)", "4,0.31,0.875", 0.875),
    ],
)
def test_a_metric_is_the_number_after_its_name(metric: str, line: str, value: float) -> None:
    task: Any = compose(["task=script", f"task.metric={metric}"]).task
    values: list[float] = []
    child.ScriptOutput(task.pattern, values.append).take(f"{line}\n".encode())
    assert values == [value]


@pytest.mark.parametrize("line", ["loss: 1,234.5", "loss: 12,5", "loss: 0,95 %", "loss 1.", "loss: 3.5,0.2"])
def test_a_number_with_a_comma_in_it_is_none(line: str) -> None:
    task: Any = compose(["task=script", "task.metric=loss"]).task
    values: list[float] = []
    child.ScriptOutput(task.pattern, values.append).take(f"{line}\n".encode())
    assert values == {"loss 1.": [1.0], "loss: 3.5,0.2": [3.5]}.get(line, [])


def test_the_last_line_may_lack_its_end_and_a_bar_has_returns() -> None:
    values: list[float] = []
    output = child.ScriptOutput("loss=([0-9.]+)", values.append)
    output.take("10 %|█ | loss=0.5\r20 %|██ | loss=0.4".encode())
    assert values == [0.5]
    output.take(b"", last=True)
    assert values == [0.5, 0.4]


def run(text: str, output: child.ScriptOutput, *, cwd: Path) -> child.Child:
    variables = child.variables("127.0.0.1:9", "")
    return child.Child([sys.executable, "-c", text], cwd=os.fspath(cwd), variables=variables, output=output)


def test_what_another_rank_prints_into_the_same_output_is_shown_and_not_measured(tmp_path: Path) -> None:
    values: list[float] = []
    output = child.ScriptOutput("acc ([0-9.]+)", values.append)
    text = """
import os, subprocess, sys
rank_1 = "import sys; print('acc 0.1'); print('acc 0.2', file=sys.stderr)"
subprocess.run([sys.executable, "-c", rank_1], env=os.environ | {"RANK": "1"}, check=True)
print("acc 0.5")
subprocess.run([sys.executable, "-c", "print('acc 0.6')"], env=os.environ | {"RANK": "0"}, check=True)
"""
    command = run(text, output, cwd=tmp_path)
    assert command.wait(PATIENCE_S) == 0
    command.finish()
    assert values == [0.5, 0.6]
    assert sorted(output.log().decode().split()[1::2]) == ["0.1", "0.2", "0.5", "0.6"]


def test_a_command_that_is_interrupted_may_save_its_state(tmp_path: Path) -> None:
    output = child.ScriptOutput("ready", lambda _: None)
    text = """
import time
try:
    open("ready", "w").close()
    time.sleep(1e6)
except KeyboardInterrupt:
    print("saved")
"""
    command = run(text, output, cwd=tmp_path)
    while not (tmp_path / "ready").exists():
        assert command.wait(0.05) is None
    assert command.end(signal.SIGINT) == 0
    assert output.log() == b"saved\n"
