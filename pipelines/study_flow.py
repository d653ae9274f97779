"""What the flows of studies have in common: prepare data -> sweep -> aggregate -> report.

`resume` goes on where a run was stopped or killed; inside the sweep, with the first trial that was not
finished. The exit code is 1 if a trial has no result. `run --dry-run` prints the plan and an estimate,
`run --cfg job` every resolved configuration.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import local_flow
import stages
from metaflow.decorators import step
from metaflow.flowspec import FlowSpec

import mlbench

OK, USER_ERROR = 0, 2  # exit codes
# `resume` would begin at the end.
UNMEASURED = "a trial was not measured: `run` again, which repeats none that was"


class StudyFlow(FlowSpec):
    """Measures a study and reports it; a flow says in `findings` what it makes of the runs."""

    study: Any  # a Parameter of each flow, with the study that it is for as default

    def findings(self) -> list[str]:
        """Compute what this flow is for; return lines for its user."""
        raise NotImplementedError

    @step
    def start(self):
        """Prepare the data sets."""
        stages.load(self.study).prepare()
        self.next(self.sweep)

    @step
    def sweep(self):
        """Measure what is missing."""
        self.unmeasured, self.notes = stages.measure(self.study)
        self.next(self.aggregate)

    @step
    def aggregate(self):
        """Put the runs together."""
        self.lines = self.findings()
        self.next(self.report)

    @step
    def report(self):
        """Draw the figures, write the page, and bring the study into MLflow."""
        self.answer, self.page, more = stages.publish(self.study, self.unmeasured)
        self.notes = [*self.notes, *more]
        self.next(self.end)

    @step
    def end(self):
        """Print the answer, the findings, where the report is, and what it lacks; fail if that is a trial."""
        stages.close([self.answer, *self.lines, *self.lacking()])
        if self.unmeasured:
            raise SystemExit(UNMEASURED)

    def lacking(self) -> list[str]:
        """Return what was not measured, what went wrong beside the runs, and where the report is."""
        return [*(f"not measured: {trial}" for trial in self.unmeasured), *self.notes, self.page]


def main(flow: type[StudyFlow], **defaults: Any) -> int:
    """Run a flow's command line; return its exit code. Mistakes are told before Metaflow starts anything.

    `defaults` are those of the flow's parameters.
    """
    arguments = sys.argv[1:]
    if stages.ANSWER in os.environ:  # a step, which Metaflow has started: the command waits for its answer
        return _metaflow(flow)
    if {"run", "--dry-run", "--cfg"} & set(arguments):
        try:
            if _look(arguments, defaults):
                return OK
        except mlbench.UserError as error:
            print(f"mlbench: {error}", file=sys.stderr)
            return USER_ERROR
    with tempfile.TemporaryDirectory() as folder, local_flow.terminal():
        os.environ[stages.ANSWER] = str(Path(folder) / "answer.txt")
        code = _metaflow(flow)
        answer = Path(folder) / "answer.txt"
        if answer.exists():
            print(answer.read_text(), end="", flush=True)
    return code


def _look(arguments: list[str], defaults: dict[str, Any]) -> bool:
    """Check what a command asks for; return whether that was all that it asked for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--cfg", choices=("job",))
    parser.add_argument("--dry-run", action="store_true")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default)
    try:
        options = vars(parser.parse_known_args(arguments)[0])
    except argparse.ArgumentError as error:
        raise mlbench.UserError(str(error)) from error
    looks = {name: options.pop(name) for name in ("cfg", "dry_run")}
    study = stages.checked(**options)
    if looks["cfg"]:
        print(*study.configurations(), sep="", end="")
    elif looks["dry_run"]:
        print(*study.preview()[0], sep="\n")
    return bool(looks["cfg"] or looks["dry_run"])


def _metaflow(flow: type[StudyFlow]) -> int:
    """Hand the command line to Metaflow; return its exit code."""
    try:
        flow()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return OK
