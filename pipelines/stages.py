"""The stages that the flows have in common; each is a few calls of `mlbench`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from local_flow import DATA_ROOT, OUTPUT_ROOT, TERMINAL

import mlbench

ANSWER = "MLBENCH_ANSWER"  # environment variable: the file in which the last step leaves what it says


def load(name: str) -> mlbench.Study:
    """Return the study of conf/study, or the begun one, with this flow's folders."""
    return mlbench.load_study(name, output_root=OUTPUT_ROOT, data_root=DATA_ROOT)


def checked(study: str, baseline: str = "", limit: float | str = 0.0) -> mlbench.Study:
    """Return what a flow measures; UserError for every mistake that would show in a later step."""
    measured = load(study)
    measured.check()
    try:
        share = float(limit)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise mlbench.ConfigurationError(
            f"limit={limit} is not a share from 0 to 1", hint="write 0.05 for 5 %"
        )
    if baseline:
        measured.compare_with(baseline, limit=share)
    return measured


def measure(name: str) -> tuple[list[str], list[str]]:
    """Measure what the study lacks; return a sentence for every trial without a result, and the notes.

    The step ends with the flow that runs it: a flow that was killed leaves no sweep behind.
    """
    os.environ["MLBENCH_PARENT"] = str(os.getppid())
    study = load(name)
    study.measure(terminal=_terminal())
    return study.unmeasured, study.notes


def _terminal() -> TextIO:
    """Return the terminal on which the flow was started; stderr if it was started on none."""
    path = os.environ.pop(TERMINAL, "")  # the runs of the sweep show nothing there
    return open(path, "w") if path else sys.stderr  # noqa: SIM115  (it lives as long as the step)


def publish(name: str, unmeasured: list[str]) -> tuple[str, str, list[str]]:
    """Write the report and the parent run in MLflow; return the answer, the page's path and notes."""
    study = load(name)
    study.unmeasured.extend(unmeasured)
    study.publish()
    return study.answer(), str(study.report), study.notes


def close(lines: Sequence[str]) -> None:
    """Say the last words of a flow: after Metaflow's own, or where nobody waits for them at once."""
    text = "".join(f"{line}\n" for line in lines if line)
    if ANSWER in os.environ:
        Path(os.environ[ANSWER]).write_text(text)
    else:
        print(text, end="")
