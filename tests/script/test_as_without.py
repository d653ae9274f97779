"""A measured command does what it does alone: streams, terminal, signals, environment, exit code."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from commands import PATIENCE_S, until
from controlling_terminal import SIZE, typed

from mlbench.record.reader import load
from mlbench.script import summary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_files")]
MEASURE = [sys.executable, "-m", "mlbench.measure"]
PLAIN = str(Path(__file__).parent / "scripts" / "plain.py")
ASKS = """
import getpass, os, sys, time
print("out", [os.isatty(number) for number in (0, 1, 2)], tuple(os.get_terminal_size()), flush=True)
print("err", file=sys.stderr, flush=True)
print("to the terminal", file=open("/dev/tty", "w"))
print("got", input("name: "), getpass.getpass("secret: "))
try:
    print("ready\\n", end="", flush=True)  # in one piece
    while True:
        time.sleep(0.1)  # a signal that comes just before a sleep is handled after it
except KeyboardInterrupt:
    exit(7)
"""


def script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [sys.executable, "script.py"]


def measured(
    folder: Path, command: list[str], *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Return the command as it ended when it was measured."""
    return subprocess.run(
        [*MEASURE, *words, "--", *command],
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_what_goes_into_one_file_keeps_its_order(tmp_path: Path) -> None:
    text = "import sys\nfor n in range(300): print(n, file=sys.stderr if n % 2 else sys.stdout, flush=True)"
    command = [*MEASURE, "--", *script(tmp_path, text)]
    with (tmp_path / "log").open("w") as log:
        subprocess.run(command, cwd=tmp_path, stdout=log, stderr=log, timeout=PATIENCE_S, check=True)
    assert (tmp_path / "log").read_text().split("\n")[:300] == [str(number) for number in range(300)]


def test_a_command_on_a_terminal_has_one_and_gets_what_is_typed_and_ctrl_c(tmp_path: Path) -> None:
    answers = [("name: ", "Ada\n"), ("secret: ", "xyzzy\n"), ("ready", "\x03")]
    command = script(tmp_path, ASKS)
    alone, measured = (typed([*prefix, *command], answers, cwd=tmp_path) for prefix in ([], [*MEASURE, "--"]))
    for code, shown in (alone, measured):
        assert (code, "got Ada xyzzy\nready\n" in shown, shown.count("xyzzy")) == (7, True, 1)
    assert f"[True, True, True] {SIZE[::-1]}" in alone[1] and "to the terminal" in alone[1]
    assert measured[1].partition("ready")[0] == alone[1].partition("ready")[0]


SIGNALS = """
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])  # as a DataLoader's worker
def note(number, _):
    print(signal.Signals(number).name, helper.poll(), flush=True)
    if number == signal.SIGTERM:
        time.sleep(0.5)
        print(helper.poll(), flush=True)
        helper.kill()
        sys.exit(5)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_signal_comes_to_the_script_and_not_to_its_helpers(tmp_path: Path) -> None:
    command = [*MEASURE, "--", *script(tmp_path, SIGNALS)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        shown = [run.stdout.readline()]
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            run.send_signal(number)
            shown.append(run.stdout.readline())
        shown.append(run.stdout.readline())
        assert run.wait(PATIENCE_S) == 5
    assert "".join(shown).split("\n")[:5] == ["ready", "SIGUSR1 None", "SIGUSR2 None", "SIGTERM None", "None"]


def test_arguments_and_environment_are_those_given_and_a_background_process_outlives_the_command(
    tmp_path: Path,
) -> None:
    """No variable of mlbench's libraries is added, no word is split, and a sentence names what is left."""
    text = """
import json, os, subprocess, sys
print(json.dumps([sys.argv, dict(os.environ)]), flush=True)
later = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(4); print('late')"
subprocess.Popen([sys.executable, "-c", later])
"""
    path = tmp_path / 'my "own" folder' / "it's a script.py"
    path.parent.mkdir()
    path.write_text(text)
    ours = {"MLBENCH_COLLECTOR", "MLBENCH_COLLECTOR_TOKEN", "MLBENCH_OTHERS", "MLBENCH_OUTER"}
    ours |= {"PYTHONPATH", "PYTHONUNBUFFERED"}
    given = ["--name", "a b", "it's", '"', "x=1", "--"]
    libraries = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = measured(tmp_path, [sys.executable, str(path), *given], **libraries)
    printed, late = done.stdout.splitlines()
    arguments, after = json.loads(printed)
    before = {name: value for name, value in (os.environ | libraries).items() if name not in ours}
    assert (done.returncode, late, arguments) == (0, "late", [str(path), *given])
    assert {name for name in after if after[name] != before.get(name)} - {"LC_CTYPE"} == ours
    assert "MLFLOW_TRACKING_URI: not read" in done.stderr
    pid = (tmp_path / "pid").read_text()
    assert f"(pid {pid}): outlives the command, and was left running" in done.stderr
    until(lambda: not psutil.pid_exists(int(pid)))


def test_what_trains_beyond_the_command_s_end_is_not_ended_by_its_probe(tmp_path: Path) -> None:
    later = """
import os, sys, time, psutil, torch
weight = torch.ones(1, requires_grad=True)
optimizer, end = torch.optim.SGD([weight], lr=0.1), None
command = psutil.Process(int(sys.argv[1]))
def ended():  # a zombie, until this process closes the pipes that the test reads
    try:
        return command.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
while end is None or time.monotonic() < end:
    (weight * 2).backward()
    optimizer.step()
    time.sleep(0.02)
    open("begun", "w").close()
    if end is None and ended():
        end = time.monotonic() + 3  # longer than two messages of a probe
print("late")
"""
    text = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {later!r}, str(os.getppid())])
while not os.path.exists("begun"):
    time.sleep(0.1)
time.sleep(2)
"""
    command = [*MEASURE, "--", *script(tmp_path, text)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr


def test_a_machine_that_another_run_has_is_not_waited_for_and_a_rank_left_over_not_believed(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "machine.lock"
    variables = {"MLBENCH_MACHINE_LOCK": str(lock), "RANK": "3", "WORLD_SIZE": "4"}
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # held until the command has ended
        done = measured(tmp_path, [sys.executable, PLAIN, "5", "end"], **variables)
    assert done.returncode == 0 and "another run measures on this machine" in done.stderr
    (path,) = tmp_path.glob("runs/*/record.json")
    record = load(path)
    assert (record.workers, record.steps) == (1, 5)
    assert any(summary.MISSING["outer_rank"] in warning for warning in record.warnings)


def test_a_measured_command_may_measure(tmp_path: Path) -> None:
    inner = [*MEASURE, "output_root=inner", "cluster.exclusive=true", "--", sys.executable, PLAIN, "5", "end"]
    done = measured(tmp_path, inner, MLBENCH_MACHINE_LOCK=str(tmp_path / "machine.lock"))
    assert done.returncode == 0 and done.stdout == "loss: 0.25\n", done.stderr
    assert len(list(tmp_path.glob("inner/*/record.json"))) == 1


def test_a_command_that_cannot_be_watched_has_its_exit_code_and_the_cause(tmp_path: Path) -> None:
    done = measured(tmp_path, [sys.executable, "-I", "-c", "print(5)"])
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert "no Python process of the command could be watched" in done.stderr
    assert "PYTHONPATH=lib:$PYTHONPATH" in done.stderr and not (tmp_path / "runs").exists()


def test_ctrl_z_stops_the_command_and_fg_goes_on(tmp_path: Path) -> None:
    text = "import time\nprint('ready', flush=True)\nfor n in range(60): time.sleep(0.1)\nprint('the end')"
    line = " ".join([*MEASURE, "--", *script(tmp_path, text)])
    answers = [
        ("$ ", f"{line}\n"),
        ("ready\r\n", "\x1a"),
        ("Stopped", "fg\n"),
        ("No record was written\r\n", "exit\n"),  # what is typed before goes to the command
    ]
    shell = ["bash", "--norc", "--noprofile", "-i"]
    code, shown = typed(shell, answers, cwd=tmp_path, env={"PS1": "$ "})
    assert code == 0 and re.search(r"Stopped.*the end", shown, re.S), shown
