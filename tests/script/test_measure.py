"""Scripts that know nothing of mlbench under `python -m mlbench.measure`, in real processes without Ray."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT

from mlbench.analysis.stragglers import of_run
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.script import summary
from mlbench.script.child import LOG_BYTES

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
PYTHON = [sys.executable]
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


def test_a_ddp_script_computes_and_prints_what_it_does_alone_and_its_rate_is_ours(tmp_path: Path) -> None:
    command = [*TWO, SCRIPTS / "ddp.py", 6, 0, 0.02]  # in steps of 20 ms a print is nothing
    alone = subprocess.run(
        [*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout
    done = measure(tmp_path, "task.metric=val_acc", command=command)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.findall(r"epoch \d+ val_acc (\S+)", done.stdout)
    assert printed == re.findall(r"epoch \d+ val_acc (\S+)", alone) and len(printed) == 6
    record = only_record(tmp_path)
    assert (record.status, record.workers, record.contradictions) == ("completed", 2, [])
    assert [validation.metrics["val_acc"] for validation in record.validations] == [
        float(value) for value in printed
    ]
    assert (record.steps, record.samples, record.sample_unit) == (192, 12288, "rows")
    (rate,) = re.findall(r"rate (\S+)", done.stdout)
    assert record.samples_per_s == pytest.approx(float(rate), rel=0.03)
    assert all(record.phases[name].mean > 0 for name in ("data_wait", "forward", "loss", "backward"))
    assert record.phases["transfer"].mean > 0 and record.outside["validation"].mean > 0
    assert not record.eligible and record.experiment.division.name == "open"


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


def test_a_rank_that_is_late_in_backward_is_named(tmp_path: Path) -> None:
    done = measure(tmp_path, command=[*TWO, SCRIPTS / "ddp.py", 1, 1, 0.2])
    record = only_record(tmp_path)
    late = of_run(record)
    assert late is not None and late.rank == 1 and late.low_s > 0.15
    assert "rank 1 keeps the others waiting" in " ".join(done.stdout.split())
    assert record.phases["wait"].max > 0.9 * 0.2 * record.steps > record.phases["wait"].min


def test_a_goal_ends_the_run_at_the_moment_at_which_it_was_printed(tmp_path: Path) -> None:
    overrides = ["task.metric=val_acc (?P<top1>[0-9.]+)", "goal=0.9"]
    done = measure(tmp_path, *overrides, command=[*TWO, SCRIPTS / "ddp.py", 100_000, -1, 0])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    assert record.status == "goal_reached" and record.contradictions == []
    values = [validation.metrics["top1"] or 0 for validation in record.validations]
    assert values[-1] >= 0.9 > max(values[:-1])
    assert record.time_to_accuracy == record.validations[-1].elapsed
    assert record.steps >= 32 * len(values)  # it goes on until its line has come


def test_a_script_that_fails_keeps_its_exit_code_and_what_was_measured(tmp_path: Path) -> None:
    done = measure(tmp_path, "task.metric=loss", command=[*PYTHON, SCRIPTS / "plain.py", 20, "fail"])
    record = only_record(tmp_path)
    assert (done.returncode, record.status, record.steps) == (3, "failed", 20)
    assert record.error == "the script ended with exit code 3: loss: 0.25"
    assert record.best == 0.25


def test_a_script_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = [*PYTHON, SCRIPTS / "plain.py", 5, "hang", pid]
    done = measure(tmp_path / "runs", "task.stall_s=20", command=command)
    assert (done.returncode, only_record(tmp_path / "runs").status) == (1, "failed")
    assert "hung: no step and no line for 20 s" in done.stdout
    assert not psutil.pid_exists(int(pid.read_text()))


@pytest.mark.parametrize("how", ["spawn", "fork", "forkserver"])  # which imports torch in the forks
def test_a_script_that_starts_its_own_processes(tmp_path: Path, how: str) -> None:
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "spawn.py", how])
    assert done.returncode == 0, done.stdout + done.stderr
    record = only_record(tmp_path)
    assert (record.workers, record.steps, record.samples) == (2, 30, 240)
    assert any("the wait for data was not seen" in warning for warning in record.warnings)


def test_a_second_process_of_a_rank_ends_well_and_a_warning_names_it(tmp_path: Path) -> None:
    script = f"{sys.executable} {SCRIPTS / 'plain.py'}"
    done = measure(tmp_path, command=["sh", "-c", f"{script} 5 end && {script} 9999 end && echo ended"])
    assert done.returncode == 0 and "\nended\n" in done.stdout, done.stdout + done.stderr
    record = only_record(tmp_path)
    assert (record.status, record.steps, record.contradictions) == ("completed", 5, [])
    assert any(summary.REFUSED in warning for warning in record.warnings)


def test_a_script_may_make_a_step_before_it_tells_its_goal(tmp_path: Path) -> None:
    text = (SCRIPTS / "five_lines.py").read_text()
    text = text.replace(
        "with mlbench", "model(rows).sum().backward()\noptimizer.step()\ntime.sleep(2)\nwith mlbench"
    )
    (tmp_path / "warm.py").write_text(text.replace("import os", "import os\nimport time"))
    done = measure(tmp_path / "runs", command=[*PYTHON, tmp_path / "warm.py"])
    record = only_record(tmp_path / "runs")
    assert (record.status, record.contradictions) == ("goal_reached", []), done.stdout + done.stderr
    assert record.steps % 4 == 1 and (record.best or 1.0) <= 0.01


def test_paths_and_arguments_arrive_as_they_were_written(tmp_path: Path) -> None:
    script = tmp_path / 'my "own" folder' / "it's a script.py"
    script.parent.mkdir()
    script.write_text("import json, sys\nprint(json.dumps(sys.argv))\n")
    given = ["--name", "a b", "it's", '"', "x=1", "--"]
    done = measure(tmp_path / "runs", command=[*PYTHON, script, *given])
    assert json.loads(done.stdout.splitlines()[0]) == [str(script), *given]


def test_two_at_once_that_print_much_have_a_folder_and_a_bounded_log_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        both = [
            threads.submit(
                measure, tmp_path, "seed=1", command=[*PYTHON, SCRIPTS / "plain.py", steps, "print"]
            )
            for steps in (5, 6)
        ]
    for future in both:
        done = future.result()
        assert done.returncode == 0 and len(done.stdout) > 20_000_000
    records = [load(path) for path in tmp_path.glob("*/record.json")]
    assert sorted(record.steps for record in records) == [5, 6]
    assert all(record.status == "completed" and record.contradictions == [] for record in records)
    logs = list(tmp_path.glob("*/output.log"))
    assert len(logs) == 2
    for log in logs:
        assert log.stat().st_size < 2 * LOG_BYTES + 2**17
        assert log.read_text().startswith("loss: 0.25\nxxx") and "bytes left out]" in log.read_text()


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ([*PYTHON, "-c", "pass"], 2, "no optimizer step of PyTorch was seen"),
        ([*PYTHON, "-c", "import sys; sys.exit(3)"], 3, "ended with exit code 3"),
        ([*PYTHON, "-c", "import no_such_package"], 1, "No module named 'no_such_package'"),
        ([*PYTHON, "no_such_file.py"], 2, "No such file or directory"),
        (["no_such_command"], 2, "no_such_command: there is no such command"),
    ],
)
def test_a_command_that_trains_nothing_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, command: list[str], code: int, sentence: str
) -> None:
    done = measure(tmp_path / "runs", command=command)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("mlbench: ")]
    assert (done.returncode, len(lines)) == (code, 1) and sentence in " ".join(done.stderr.split() + lines)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_reaches_the_script_which_may_save_its_state(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [*PYTHON, SCRIPTS / "plain.py", 5, "save", tmp_path / "ready"]
    line = [*PYTHON, "-m", "mlbench.measure", f"output_root={tmp_path / 'runs'}", "cluster.exclusive=false"]
    run = subprocess.Popen([*line, "--", *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "ready").exists() or run.poll() is not None)
    run.send_signal(number)
    output, _ = run.communicate(timeout=PATIENCE_S)
    record = only_record(tmp_path / "runs")
    assert (run.returncode, record.status, record.steps) == (130, "interrupted", 5)
    assert f"saved after {number.name}\n" in output
    assert not psutil.pid_exists(int((tmp_path / "ready").read_text()))
