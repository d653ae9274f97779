"""What a command prints, reads and is told, in real processes without torch."""

import math
import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from commands import PATIENCE_S, until

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.goal import Goal
from mlbench.launch import command_run
from mlbench.script import child
from mlbench.script.printed_metric import PrintedMetric


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        ("val_acc", "epoch 3: val_acc 0.95.", 0.95),
        ("val_acc", "précision → val_acc: 95.5 % (best)", 95.5),
        ("loss", "loss=1.5e-3 lr 1", 0.0015),
        ("loss", "loss: -inf", float("-inf")),
        ("eval_loss", "{'eval_loss': '2.25', 'epoch': 1}", 2.25),
        ("val_acc", "| val_acc | .5 |", 0.5),
        ("val_acc", "\x1b[1;32mval_acc\x1b[0m: \x1b[1m0.95\x1b[0m", 0.95),
        ("val_acc", "│  val_acc  │  0.95  │", 0.95),
        ("val_acc", "{'val_acc': np.float64(0.95)}", 0.95),
        ("val_acc", "val_acc: tensor(0.9500, device='cuda:0')", 0.95),
        ("return", "step=31, return=[21.]", 21.0),
        ("val_acc", "val_acc: tensor([0.9500])", 0.95),
        ("Acc@1", " * Acc@1 97.2 Acc@5 99", 97.2),
        (r"\d+,[\d.]+,([\d.]+)", "4,0.31,0.875", 0.875),
    ],
)
def test_a_metric_is_the_number_after_its_name(metric: str, line: str, value: float) -> None:
    assert read(metric, None, line) == ([value], [])


def read(metric: str, goal: Goal | None, *lines: str, srun: bool = False) -> tuple[list[float], list[str]]:
    """Return the values of a metric in lines, and the sentences about them."""
    task: Any = compose(["task=script", f"task.metric={metric}"]).task
    values, doubts = list[float](), list[str]()
    printed = PrintedMetric(
        task.pattern, task.metric, goal, on_value=values.append, on_doubt=doubts.append, srun=srun
    )
    child.ScriptOutput(printed).take("".join(f"{line}\n" for line in lines).encode())
    return values, doubts


def test_of_several_numbers_in_brackets_none_is_the_metric() -> None:
    assert read("acc", None, "acc [0.9, 0.8]", "acc [0.9 0.8]", "acc=[ 0.7 ]") == ([0.7], [])


@pytest.mark.parametrize(
    ("goal", "line", "values"),
    [
        (0.99, "Accuracy: 1215/10000 (12%)", [0.1215]),
        (99.0, "Accuracy: 1215/10000 (12%)", [12.15]),
        (None, "Accuracy: 1215/10000 (12%)", [0.1215]),
        (0.9, "Accuracy: 12 %", [0.12]),
        (90.0, "Accuracy: 12.5%", [12.5]),
        (None, "Accuracy: 12.5%", [12.5]),
        (0.9, "Accuracy: 0.95 (38/40)", [0.95]),
        (0.9, "Accuracy: 95.2", []),
        (90.0, "Accuracy: 1215 of 10000", []),
        (0.9, "Accuracy: 120 %", []),
        (0.9, "Accuracy: 12/10", []),
        (70.0, "Accuracy: 75.10 (70.10)", []),
        (70.0, "Accuracy: 75.10 ( 70.10)", []),
        (0.9, "Accuracy: 0.95/0.93", []),
    ],
)
def test_a_number_that_reads_otherwise_reaches_no_goal(
    goal: float | None, line: str, values: list[float]
) -> None:
    target = None if goal is None else Goal("Accuracy", goal, "max")
    found, doubts = read("Accuracy", target, line)
    assert found == pytest.approx(values) and len(doubts) == (not values)
    assert values or repr(line) in doubts[0]


def test_the_expressions_of_an_ambiguous_line_take_its_first_and_its_second_number() -> None:
    line = "Acc@1  75.10 ( 70.10)"
    values, (doubt,) = read("Acc@1", None, line)
    assert values == []
    first, second = re.findall(r"task\.metric='(.*?)'", doubt)
    assert read(first, None, line)[0] == [75.1] and read(second, None, line)[0] == [70.1]


def test_a_smaller_value_that_is_better_is_not_made_smaller() -> None:
    goal = Goal("error", 0.5, "min")
    assert read("error", goal, "error 0.8 %")[0] == [0.8]
    assert read("error", goal, "error 12/100")[0] == [0.12]


def test_mixed_scales_are_said_once() -> None:
    values, (doubt,) = read("val_acc", None, "val_acc 95 %", "val_acc 0.96", "val_acc 97 %")
    assert values == [95, 0.96, 97] and "per-cent sign" in doubt
    assert read("val_acc", Goal("val_acc", 0.9, "max"), "val_acc 95 %", "val_acc 0.96") == ([0.95, 0.96], [])


@pytest.mark.parametrize(
    ("line", "srun", "values"),
    [
        ("[default0]:acc 0.5", False, [0.5]),
        ("[default1]:acc 0.5", False, []),
        ("[trainer12]: acc 0.5", False, []),
        ("[1,0]<stdout>:acc 0.5", False, [0.5]),
        ("[1,3]<stdout>:acc 0.5", False, []),
        ("3: acc 0.5", False, [0.5]),
        ("3: acc 0.5", True, []),
        ("[INFO]: acc 0.5", False, [0.5]),
    ],
)
def test_a_line_of_another_rank_reaches_no_goal(line: str, srun: bool, values: list[float]) -> None:
    assert read("acc", None, line, srun=srun) == (values, [])


def test_a_label_of_the_script_s_own_is_none_of_a_rank() -> None:
    values: list[float] = []
    printed = PrintedMetric(r"acc ([0-9.]+)", "acc", None, on_value=values.append, world=lambda: 2)
    for line in ("[default1]: acc 0.1", "[epoch2]: acc 0.5", "[1,2]<stdout>: acc 0.2"):
        printed.look(line.encode())
    assert values == [0.5]


@pytest.mark.parametrize("line", ["loss: 1,234.5", "loss: 12,5", "loss: 0,95 %", "loss 1.", "loss: 3.5,0.2"])
def test_a_number_with_a_comma_in_it_is_none(line: str) -> None:
    values, _ = read("loss", None, line)
    assert values == {"loss 1.": [1.0], "loss: 3.5,0.2": [3.5]}.get(line, [])


@pytest.mark.parametrize(
    ("name", "direction", "doubted"),
    [("val_loss", "max", True), ("val_loss", "min", False), ("flossy", "max", False), ("acc", "max", False)],
)
def test_a_loss_that_is_to_become_larger_is_doubted(name: str, direction: Any, *, doubted: bool) -> None:
    _, doubts = read(name, Goal(name, 0.3, direction), f"{name} 0.5")
    assert bool(doubts) is doubted and all("task.direction=min" in doubt for doubt in doubts)


def test_a_metric_that_is_no_number_any_more_is_told_once() -> None:
    values, doubts = read("loss", None, "loss 0.5", "loss nan", "loss nan", "loss 0.4")
    assert values[0] == 0.5 and math.isnan(values[1]) and values[3] == 0.4
    assert len(doubts) == 1 and "nan" in doubts[0] and "diverged" in doubts[0]


def test_the_last_line_may_lack_its_end_and_a_bar_has_returns() -> None:
    values: list[float] = []
    output = child.ScriptOutput(PrintedMetric("loss=([0-9.]+)", "loss", None, on_value=values.append))
    for part in ("10 %|█ | lo", "ss=0.5\r20 %|", "██ | loss=0.4"):
        output.take(part.encode())
    assert values == [0.5]
    output.take(b"", last=True)
    assert values == [0.5, 0.4]


def run(text: str, output: child.ScriptOutput, *, cwd: Path) -> child.Child:
    variables = child.variables("127.0.0.1:9", "")
    return child.Child([sys.executable, "-c", text], cwd=os.fspath(cwd), variables=variables, output=output)


def test_what_another_rank_prints_into_the_same_output_is_shown_and_not_measured(tmp_path: Path) -> None:
    values: list[float] = []
    output = child.ScriptOutput(PrintedMetric("acc ([0-9.]+)", "acc", None, on_value=values.append))
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


def begun(text: str, tmp_path: Path) -> tuple[child.Child, child.ScriptOutput]:
    """Return a command, and its output, once it has made the file `ready`."""
    output = child.ScriptOutput(None)
    command = run(text, output, cwd=tmp_path)
    while not (tmp_path / "ready").exists():
        assert command.wait(0.05) is None
    return command, output


def test_a_command_goes_on_to_its_goal_or_end_if_its_run_cannot_be_written(tmp_path: Path) -> None:
    class Recorder:
        experiment: Any = SimpleNamespace(task=SimpleNamespace(stop_at_goal=True, pattern="", stall_s=None))

        def __init__(self) -> None:
            self.collector = SimpleNamespace(reached=False, take=lambda: None)

        def take(self, *, final: bool) -> None:
            raise UserError(f"no space left: {final}")

    recorder: Any = Recorder()
    for code in (7, None):
        unwritten: list[Exception] = []
        command, _ = begun("import time; open('ready', 'w'); time.sleep(1); exit(7)", tmp_path)
        recorder.collector.reached = code is None
        assert command_run._follow(command, recorder, unwritten) == code
        assert [*map(str, unwritten)] == ["no space left: False"]
        command.end()
        (tmp_path / "ready").unlink()


SAVES = """
import signal, time
def save(number, _):
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, lambda number, _: exit("killed while it saved"))
    open("told", "w").close()
    time.sleep(1)
    exit(f"saved after {signal.Signals(number).name}")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, save)
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


def test_a_command_gets_the_signal_that_came_and_time_to_save_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "END_S", 0.1)  # what it has to end after a harder signal
    command, output = begun(SAVES, tmp_path)
    assert command.end(signal.SIGINT) == 1
    assert output.log().decode() == "saved after SIGINT\n"


def test_a_rank_with_a_session_of_its_own_ends_with_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun's ranks have it: a signal to the launcher's group does not come to them."""
    monkeypatch.setattr(child, "END_S", 0.1)
    rank = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(1e6)"
    )
    text = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-c", {rank!r}], start_new_session=True)
"""
    command, _ = begun(text, tmp_path)
    assert command.end() == 128 + signal.SIGKILL
    here = os.fspath(tmp_path)
    until(lambda: [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == here] == [])


def test_the_end_of_a_command_leaves_another_alone(tmp_path: Path) -> None:
    sleeps = "import time; open('ready', 'w').close(); time.sleep(1e6)"
    for name in ("ended", "other"):
        (tmp_path / name).mkdir()
    (ended, _), (other, _) = (begun(sleeps, tmp_path / name) for name in ("ended", "other"))
    ended.end()
    assert other.wait(0) is None
    assert other.end() == 128 + signal.SIGTERM


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    def again() -> None:
        until((tmp_path / "told").exists)
        os.kill(os.getpid(), signal.SIGINT)

    command, output = begun(SAVES.replace("sleep(1)", "sleep(1e6)"), tmp_path)
    threading.Thread(target=again).start()
    assert command.end(signal.SIGINT) == 1
    assert output.log().decode() == "killed while it saved\n"


def test_a_rank_may_save_its_state_after_its_launcher_has_ended(tmp_path: Path) -> None:
    text = """
import os, signal, subprocess, sys, time
rank = '''
import os, signal, sys, time
launcher = os.getppid()
def save(*_):
    while os.getppid() == launcher:
        time.sleep(0.05)
    time.sleep(0.5)
    sys.exit("saved")
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
while True:
    time.sleep(0.1)
'''
subprocess.run([sys.executable, "-c", rank])
"""
    command, output = begun(text, tmp_path)
    assert command.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert output.log() == b"saved\n"


def test_a_script_is_told_to_end_before_slurm_and_kubernetes_kill_it() -> None:
    """30 s after their SIGTERM; the record is written in what is left of them."""
    assert child.GRACE_S[signal.SIGTERM] <= 30 - 5
