"""Many runs: `python -m mlbench.sweep task=resnet20 workers=1,2,4,8 repeats=5`."""

import sys
from functools import partial

from mlbench.record import study
from mlbench.studies import preview
from mlbench.studies.sequential import FIRST, MOST
from mlbench.studies.session import StudyResult, compared, measure, publish
from mlbench.studies.spec import REPEATS, read
from mlbench.terminal import sweep_view
from mlbench.terminal.args import (
    BEFORE,
    CONFIG_DIR,
    FAILED,
    OK,
    Args,
    Command,
    check_overrides,
    run_command,
)

CLOSING = (
    ("other words", "All others are those of python -m mlbench.run."),
    (
        "stopping",
        "Ctrl-C ends the current run, as it ends a single run. The same command resumes a sweep that was "
        "stopped or killed, and repeats nothing that was finished. A failed run is reported, does not stop "
        "the others, and counts as a missed goal; more repeats add runs with new seeds.",
    ),
    (
        "results",
        "output_root/studies/NAME has the plan (study.yaml), the log of all attempts (trials.jsonl), the "
        "output of each run (logs) and the report. The runs are beside single runs; in MLflow they are "
        "children of the study.",
    ),
    (
        "exit codes",
        "0: everything is measured, whether or not goals were reached. 1: a run failed, did not fit on the "
        "cluster, or exceeded the budget. 2: a mistake in the command, reported before anything runs. "
        "130: interrupted.",
    ),
)
SETTINGS = {
    "repeats": (
        "",
        f"runs per point, each with a fresh seed that is logged (default: {REPEATS}); auto: {FIRST}, up to "
        f"{MOST} where the fastest or cheapest is undecided; seed=1,2,3 sets the seeds",
    ),
    "study": (
        "",
        "the folder in output_root/studies; by default named after what varies, so that the same command "
        "finds it again",
    ),
    "max_usd": (
        "",
        "no run starts that would bring the study's cost above this, by the median time of its point; the "
        "first run of a task has no estimate and starts, so it and any longer run may exceed it",
    ),
    "max_time": ("", "no run starts that would end later than so long after the first, e.g. 2h, 30min"),
    "question": ("", "what the study asks; the first line of its report"),
    "extend": ("", "true: add another task to a study that was begun without it"),
}
COMMAND = Command("sweep", sections=lambda: CLOSING)
main = partial(run_command, COMMAND)


@COMMAND.verb("", "name=value[,value ...] ...", settings=SETTINGS, options={**BEFORE, **CONFIG_DIR})
def _sweep(args: Args) -> int:
    r"""Measure every point of a grid several times, one run after the other in random
    order, and report speed-up, cost and their uncertainty.

    examples:
      python -m mlbench.sweep task=resnet20 workers=1,2,4,8 repeats=5
          Four points, each with five fresh seeds: twenty runs.
      python -m mlbench.sweep task=logreg,resnet20 workers=1,2
          Any fields, any number of them: tasks, workers, backends, hardware,
          recipes. Hydra's syntax: lists with commas, or range(1,9).
      python -m mlbench.sweep task=resnet20 workers=1,2,4,8,16 repeats=5
          The first study again, extended: only 16 workers are measured.
      python -m mlbench.sweep task=resnet50 scale=official data_root=/data \
          workers=1,2,4 hardware=gcp_n1_t4 backend=nccl cluster=attached \
          max_usd=50
          Starts no run that is expected to bring the cost of this study above 50
          USD.
      python -m mlbench.sweep study=quick --dry-run
          What a study of conf/study, or the rest of a begun one, would measure,
          and about how long.
    """
    check_overrides(args.arguments)
    own = [f"{name}={value}" for name, value in args.settings.items() if value]
    spec = read([*args.arguments, *own])
    if args.options.cfg:
        for document in preview.configurations(spec):
            print(document, end="")
        return OK
    if args.options.dry_run:
        lines, refused = preview.sweep(spec)
        print("\n".join(lines))
        return FAILED if refused else OK
    return _finish(measure(spec))


def _finish(outcome: StudyResult) -> int:
    """Publish what was measured, and say where it is and what it lacks; return the exit code."""
    groups = [] if outcome.interrupted else compared(outcome)
    for trial in outcome.unmeasured:
        print(f"not measured: {trial}", file=sys.stderr)
    if groups:
        print(sweep_view.answer(groups), flush=True)  # before the report, for which the disk may be too full
    try:
        if outcome.records and not outcome.interrupted:
            publish(outcome, groups)
    finally:
        for note in outcome.notes:
            print(note, file=sys.stderr)
    page = outcome.folder.absolute() / study.REPORT / "report.html"
    print(page.as_uri() if groups else outcome.folder)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return FAILED if outcome.unmeasured else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
