"""What `task=script` does on a worker, with a real child process and without Ray."""

import gzip
import json
import os
import shlex
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlbench.config.compose import compose
from mlbench.script import summary
from mlbench.script.child import LOG_BYTES
from mlbench.tasks.script.torch import measure
from mlbench.training.setup import TaskResult
from mlbench.training.worker import Worker

pytestmark = pytest.mark.usefixtures("own_temporary_files")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(text: str, *overrides: str, seed: int = 0) -> tuple[TaskResult, str]:
        (tmp_path / "a script.py").write_text(text)
        task: Any = compose(["task=script", "task.path=a script.py", *overrides]).task
        result = measure(task, Worker(seed=seed))
        return result, gzip.decompress(result.files["rank_0.log"]).decode()

    return run


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('nothing')", summary.NOTHING),
        ("import os, sys; os.execv(sys.executable, ['python', '-I', '-c', ''])", summary.NOTHING),
        ("import sys; print('bad data'); sys.exit(3)", "the script ended with exit code 3: bad data"),
        (
            "import no_such_package",
            "the script ended with exit code 1: ModuleNotFoundError: No module named 'no_such_package' "
            "(a script.py:1)",
        ),
        ("import os; os.kill(os.getpid(), 9)", "the script ended with exit code 137 (SIGKILL)"),
    ],
)
def test_a_script_that_measures_nothing_has_failed_in_one_sentence(run: Any, text: str, error: str) -> None:
    result, _ = run(text)
    assert (result.status, result.error, result.steps) == ("failed", error, 0)


def test_while_a_script_trains_its_steps_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('nothing')")
    task: Any = compose(["task=script", "task.path=train.py"]).task
    shown: list[Any] = []
    measure(task, Worker(heartbeat=shown.append))
    assert {"doing": "training, 0 steps"} in shown


def test_a_script_that_hangs_is_ended_with_what_it_has_started(run: Any, tmp_path: Path) -> None:
    text = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
time.sleep(1e6)
"""
    result, _ = run(text, "task.stall_s=2")
    assert result.error == "the script hung: no step and no output for 2 s (task.stall_s)"
    there = [each.pid for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == os.fspath(tmp_path)]
    assert there == [os.getpid()]


def test_what_a_script_prints_is_bounded_with_its_begin_and_its_end(run: Any) -> None:
    result, log = run("print('begin'); [print('x' * 2**16) for _ in range(200)]; print('end')")
    assert result.error == summary.NOTHING
    assert len(log) < 2 * LOG_BYTES + 2**17 and log.startswith("begin\n") and log.endswith("end\n")


def test_a_script_has_the_seed_of_its_run_where_its_arguments_ask_for_it(run: Any) -> None:
    _, log = run("import sys; print(sys.argv[1:])", "task.args=--seed {seed} name={seed}", seed=7)
    assert log.strip() == "['--seed', '7', 'name=7']"


def test_arguments_and_place_are_those_of_torchrun(run: Any, tmp_path: Path) -> None:
    given = ["a b", "it's", '"', "x=1, y", "$HOME"]
    text = "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]))"
    _, log = run(text, f"task.args={shlex.join(given)}")
    arguments, folder, variables = json.loads(log)
    assert (arguments, folder) == (["a script.py", *given], os.fspath(tmp_path))
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    assert [variables[name] for name in names] == ["0", "0", "1", "1", "0", "127.0.0.1"]
    assert 0 < int(variables["MASTER_PORT"]) < 2**16
