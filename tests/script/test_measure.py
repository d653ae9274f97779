"""Scripts that know nothing of mlbench under `python -m mlbench.measure`, in real processes without Ray."""

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT

from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.script import summary

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
PYTHON = [sys.executable]
LINEAR = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
TWO = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def measure(
    folder: Path, *overrides: str, command: Sequence[object], cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    line = [*PYTHON, "-m", "mlbench.measure", f"output_root={folder}", "cluster.exclusive=false", *overrides]
    return subprocess.run(
        [*line, "--", *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S
    )


def only_record(folder: Path) -> Record:
    (path,) = folder.glob("*/record.json")
    return load(path)


def test_a_ddp_script_s_rate_is_ours(tmp_path: Path) -> None:
    """That it computes and prints what it does alone is held by tests/use/test_scripts.py."""
    command = [*TWO, SCRIPTS / "ddp.py", 6, 0, 0.02]  # in steps of 20 ms a print is nothing
    done = measure(tmp_path, "task.metric=val_acc", command=command)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.findall(r"epoch \d+ val_acc (\S+)", done.stdout)
    record = only_record(tmp_path)
    assert (record.status, record.workers, record.contradictions) == ("completed", 2, [])
    values = [validation.metrics["val_acc"] for validation in record.validations]
    assert values == [float(value) for value in printed] and len(values) == 6
    assert (record.steps, record.samples, record.sample_unit) == (192, 12288, "rows")
    (rate,) = re.findall(r"rate (\S+)", done.stdout)
    rows, seconds = (record.warm_up.samples, record.warm_up.seconds) if record.warm_up else (0, 0.0)
    assert record.samples_per_s is not None
    seconds += (record.samples - rows) / record.samples_per_s
    assert seconds == pytest.approx(record.samples / float(rate), rel=0.03)
    assert all(record.phases[name].mean > 0 for name in ("data_wait", "forward", "loss", "backward"))
    assert record.phases["transfer"].mean > 0 and record.outside["validation"].mean > 0
    assert not record.eligible and record.experiment.division.name == "open"


@pytest.mark.parametrize("launcher", ["command", "torchrun"])
def test_a_script_gets_its_password_and_nothing_else_keeps_it(tmp_path: Path, launcher: str) -> None:
    key = f"hf_{17 * 'xY'}"
    (tmp_path / "train.py").write_text(
        f"import sys\nassert sys.argv[1:] == ['--password', {key!r}[3:], {key!r}]\n{LINEAR}"
    )
    runs, given = tmp_path / "runs", ["--password", key[3:], key]
    if launcher == "command":
        done = measure(runs, command=[*PYTHON, "train.py", *given], cwd=tmp_path)
    else:
        words = ["task=script", "task.path=train.py", f"task.args={' '.join(given)}", f"launcher={launcher}"]
        line = [*PYTHON, "-m", "mlbench.run", f"output_root={runs}", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert only_record(runs).steps == 8 and (runs / "mlflow.db").is_file()
    kept = [path for path in runs.rglob("*") if path.is_file() and key[3:].encode() in path.read_bytes()]
    assert kept == [] and key[3:] not in done.stdout + done.stderr


@pytest.mark.gpu
def test_a_script_may_capture_its_step_in_a_cuda_graph(tmp_path: Path) -> None:
    """What watches it calls CUDA in no other thread, which would end the capture, and sees each replay."""
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "graph.py", 20_000])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    warnings = record.nodes[0].warnings
    assert record.steps == 20_003 and summary.MISSING["graph"] in warnings
    assert not [warning for warning in warnings if warning.startswith("the probe stopped")]
    assert record.peak_memory_bytes
    (rate,) = re.findall(r"rate (\S+)", done.stdout)
    median_s = 64 / float(rate)
    assert record.step_s["p50"] == pytest.approx(median_s, rel=0.1)


def test_a_goal_ends_the_run_at_the_moment_at_which_it_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")  # which torchrun sets anew
    overrides = ["task.metric=val_acc (?P<top1>[0-9.]+)", "goal=0.9"]
    done = measure(tmp_path, *overrides, command=[*TWO, SCRIPTS / "ddp.py", 100_000, -1, 0])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    assert record.status == "goal_reached" and record.contradictions == []
    values = [validation.metrics["top1"] or 0 for validation in record.validations]
    assert values[-1] >= 0.9 > max(values[:-1])
    assert record.time_to_accuracy == record.validations[-1].elapsed
    assert record.steps >= 32 * len(values)  # it goes on until its line has come
    assert record.workers == 2
    assert not any(summary.MISSING["outer_rank"] in warning for warning in record.warnings)


def test_a_script_that_fails_keeps_its_exit_code_and_what_was_measured(tmp_path: Path) -> None:
    done = measure(tmp_path, "task.metric=loss", command=[*PYTHON, SCRIPTS / "plain.py", 20, "fail"])
    record = only_record(tmp_path)
    assert (done.returncode, record.status, record.steps) == (3, "failed", 20)
    assert record.error == "the script ended with exit code 3: loss: 0.25" and record.best == 0.25


def test_a_command_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 100000 & echo $! >{pid}; wait"]
    done = measure(tmp_path / "runs", "task.stall_s=5", command=command)
    assert done.returncode == 1 and "hung: no step and no output for 5 s" in done.stderr
    left = int(pid.read_text())  # process 1 may not have waited for it yet
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ["spawn", "forkserver"])  # which imports torch in the forks
def test_a_script_that_starts_its_own_processes(tmp_path: Path, how: str) -> None:
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "spawn.py", how])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    assert (record.workers, record.steps, record.samples) == (2, 30, 240)
    assert any("the wait for data was not seen" in warning for warning in record.warnings)


def test_a_script_may_make_a_step_before_it_tells_its_goal(tmp_path: Path) -> None:
    text = (SCRIPTS / "five_lines.py").read_text()
    text = text.replace(
        "with mlbench", "model(rows).sum().backward()\noptimizer.step()\ntime.sleep(2)\nwith mlbench"
    )
    (tmp_path / "warm.py").write_text(text.replace("import os", "import os\nimport time"))
    done = measure(tmp_path / "runs", command=[*TWO, tmp_path / "warm.py"])
    record = only_record(tmp_path / "runs")
    assert (record.status, record.workers, record.contradictions) == ("goal_reached", 2, []), done.stderr
    losses = [validation.metrics["loss"] or 1.0 for validation in record.validations]
    assert losses[-1] <= 0.01 < min(losses[:-1]) and done.stderr.count("GOAL REACHED: loss") == 1
    assert record.steps == 4 * len(losses) + 1 and record.phases["data_wait"].mean > 0


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ([*PYTHON, "-c", "import no_such_package"], 1, "No module named 'no_such_package'"),
        (["no_such_command"], 2, "command not found: no_such_command"),
    ],
)
def test_a_command_that_trains_nothing_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, command: list[str], code: int, sentence: str
) -> None:
    done = measure(tmp_path / "runs", command=command)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("mlbench: ")]
    assert (done.returncode, len(lines)) == (code, 1) and sentence in " ".join(done.stderr.split() + lines)
    assert not (tmp_path / "runs").exists()


def test_a_signal_to_the_command_reaches_the_script_which_may_save_its_state(tmp_path: Path) -> None:
    command = [*PYTHON, SCRIPTS / "plain.py", 5, "save", tmp_path / "ready"]
    line = [*PYTHON, "-m", "mlbench.measure", f"output_root={tmp_path / 'runs'}", "cluster.exclusive=false"]
    run = subprocess.Popen(
        [*line, "--", *map(str, command)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until(lambda: (tmp_path / "ready").exists() or run.poll() is not None)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=PATIENCE_S)
    record = only_record(tmp_path / "runs")
    assert (run.returncode, record.status, record.steps) == (1, "interrupted", 5)
    assert "saved after SIGTERM\n" in output
    assert not psutil.pid_exists(int((tmp_path / "ready").read_text()))
