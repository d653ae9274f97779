"""What a tab completes, asked of a real bash and fish that have read their scripts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from conftest import ROOT
from driven import Run
from syrupy.assertion import SnapshotAssertion

from mlbench import __main__
from mlbench.terminal import completion

COMMANDS = list(__main__.COMMANDS)


def shell(folder: Path, *argv: str) -> list[str]:
    """Return the lines that a shell prints which finds the command of this checkout first."""
    tool = folder / "mlbench"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m mlbench "$@"\n')
    tool.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return [line.rstrip(" ") for line in done.stdout.splitlines()]


LINES = ("mlbench sw", "mlbench run task=resnet2", "mlbench run worke", "mlbench results sho")


@pytest.mark.slow
def test_bash_completes_names_and_values(tmp_path: Path) -> None:
    """Like readline, the script is asked with the line up to the cursor."""
    ask = 'eval "$(mlbench --completion bash)"; complete -p mlbench >/dev/null || exit 1\n'
    ask += 'for COMP_LINE in "$@"; do COMP_POINT=${#COMP_LINE}; _mlbench; echo "${COMPREPLY[*]}"; done'
    assert shell(tmp_path, "bash", "-c", ask, "bash", *LINES) == ["sweep", "resnet20", "workers=", "show"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish on this machine")
def test_fish_completes_names_and_values(tmp_path: Path) -> None:
    ask = "mlbench --completion fish | source; for line in $argv; complete -C $line; end"
    expected = ["sweep", "task=resnet20", "workers=", "show"]
    assert shell(tmp_path, "fish", "--no-config", "-c", ask, *LINES) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mlbench run hardware=gcp_n1_t", ["hardware=gcp_n1_t4 "]),
        ("mlbench run task=gnmt task.length_p", ["task.length_penalty="]),
        ("mlbench run task=logreg task.recipe=mlbench2020", ["task.recipe=mlbench2020 "]),
        ("mlbench run goal=", ["goal=official ", "goal=light ", "goal=none "]),
        ("mlbench run force=t", ["force=true "]),
        ("mlbench run --c", ["--cfg ", "--config-dir "]),
        ("mlbench sweep task=logreg,resnet2", ["task=logreg,resnet20"]),
        ("mlbench sweep rep", ["repeats="]),
        ("mlbench data pre", ["prepare "]),
        ("mlbench results list status=goal_r", ["status=goal_reached"]),
        ("mlbench results compare --with", ["--with-disturbed "]),
        ("mlbench cluster st", ["start ", "stop ", "status "]),
        ("mlbench nothing ", []),
    ],
)
def test_a_line_is_completed_by_what_the_command_takes_there(line: str, expected: list[str]) -> None:
    assert completion.replies("zsh", line, COMMANDS) == expected
    assert completion.replies("fish", line, COMMANDS) == [word.rstrip() for word in expected]


def test_runs_and_studies_are_completed_from_the_folder_that_the_line_names(tmp_path: Path) -> None:
    Run(tmp_path, name="2026-a", seed=1).end("completed")
    (tmp_path / "studies" / "scaling").mkdir(parents=True)
    (tmp_path / "studies" / "scaling" / "study.yaml").touch()
    line = f"mlbench results show output_root={tmp_path} 20"
    assert completion.replies("bash", line, COMMANDS) == ["2026-a-1 "]
    line = f"mlbench results plot output_root={tmp_path} study:"
    assert completion.replies("bash", line, COMMANDS) == ["scaling "]  # after the colon, as bash asks
    line = f"mlbench results rcp output_root={tmp_path} sc"
    assert completion.replies("zsh", line, COMMANDS) == ["scaling "]


def test_a_shell_that_is_not_known_is_a_mistake(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert __main__.main(["--completion", "tcsh"]) == 2
    assert capsys.readouterr().err == snapshot
