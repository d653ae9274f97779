"""Every command of the README, the tutorial and the guides runs as printed."""

import shlex
import subprocess
import sys
from pathlib import Path

import doc_pages
import pytest
import screenshots
import terminals
from conftest import ROOT

PAGES = ("README", "docs/tutorial", "docs/howto")
INSTALLS = ("python3 -m venv", ". .venv", "pip install")  # .ci/run executes these
SWEEP = "python -m mlbench.sweep task=logreg"  # its beginning
SUITE = "python -m pytest"  # this suite
TOO_BUSY = (
    "a prediction needs runs at 2 or more worker counts"  # whose runs noise left out, on a busy machine
)


@pytest.mark.ray
@pytest.mark.slow
def test_every_command_runs(tmp_path: Path, kept_ray: dict[str, str]) -> None:
    """One folder for all, so that later commands find the runs of earlier ones, as a reader's do."""
    env = {**kept_ray, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done: dict[str, str] = {}
    lines = [line for page in PAGES for line in doc_pages.commands(ROOT / f"{page}.md")]
    assert len(lines) > 15
    for line in dict.fromkeys(lines):
        if line.startswith((*INSTALLS, SUITE)):
            continue
        words = shlex.split(line)
        assert words[:2] == ["python", "-m"], line
        command = [sys.executable, *words[1:]]
        if line.startswith(SWEEP):  # as a person sees it, on a terminal
            shown = terminals.show(
                command, terminals.LARGE, env=env, cwd=tmp_path, frame=lambda screen: "4/6 done" in screen
            )
            assert shown.code == 0 and "4/6 done" in shown.frame.plain, shown.written
            screenshots.terminal(shown.frame, "sweep-120x40", terminals.LARGE[0])
            done[line] = shown.written
            continue
        ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        refused = "mlbench.predict" in line and TOO_BUSY in ended.stderr
        assert ended.returncode == (2 if refused else 0), (line, ended.stdout[-2000:], ended.stderr[-2000:])
        done[line] = ended.stdout
    assert "GOAL REACHED" in done["python -m mlbench.run task=logreg"]
    answers = ("Fastest to", "No point reached", "left out")  # the last two on a busy machine
    assert any(one in text for one in answers for text in done.values())
    assert (tmp_path / "tutorial-report" / "report.html").exists()
