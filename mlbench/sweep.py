"""Many runs: `mlbench sweep task=resnet20 workers=1,2,4,8 repeats=5`."""

import sys
from collections.abc import Iterable
from functools import partial

from mlbench.api.studies import Study
from mlbench.studies.sequential import FIRST, MOST
from mlbench.studies.spec import REPEATS
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
    ("other words", "All others are those of mlbench run."),
    (
        "stopping",
        "Ctrl-C ends the current run. The same command resumes a sweep that was stopped or killed, and "
        "does not repeat finished runs. A failed run is reported, does not stop the others, and counts as a "
        "missed goal. More repeats add runs with new seeds.",
    ),
    (
        "results",
        "output_root/studies/NAME has the plan (study.yaml), the log of all attempts (trials.jsonl), the "
        "output of each run (logs) and the report. The runs are next to single runs. In MLflow they are "
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
        f"runs per point, each with a fresh, logged seed (default: {REPEATS}). auto: {FIRST}, up to {MOST} "
        "if the fastest or cheapest is undecided. seed=1,2,3 sets the seeds",
    ),
    "study": (
        "",
        "the folder in output_root/studies (default: named after the values that vary, so that the same "
        "command finds it again)",
    ),
    "max_usd": (
        "",
        "do not start runs that would raise the study's cost above this, estimated from the median time of "
        "their point. The first run of a task has no estimate, so it can exceed the limit",
    ),
    "max_time": ("", "do not start runs that would end later than this after the first, e.g. 2h, 30min"),
    "question": ("", "the question of the study, the first line of its report"),
    "extend": ("", "true: add another task to an existing study"),
}
COMMAND = Command("sweep", sections=lambda: CLOSING)
main = partial(run_command, COMMAND)


@COMMAND.verb("", "name=value[,value ...] ...", settings=SETTINGS, options={**BEFORE, **CONFIG_DIR})
def _sweep(args: Args) -> int:
    r"""Measure every point of a grid several times, one run after the other in random
    order, and report speed-up, cost and their uncertainty.

    examples:
      mlbench sweep task=resnet20 workers=1,2,4,8 repeats=5
          Four points, each with five fresh seeds: twenty runs.
      mlbench sweep task=logreg,resnet20 workers=1,2
          Any fields, any number of them: tasks, workers, backends, hardware,
          recipes. Hydra's syntax: lists with commas, or range(1,9).
      mlbench sweep task=resnet20 workers=1,2,4,8,16 repeats=5
          The first study again, extended: only 16 workers are measured.
      mlbench sweep task=resnet50 scale=official data_root=/data \
          workers=1,2,4 hardware=gcp_n1_t4 backend=nccl cluster=attached \
          max_usd=50
          Does not start runs that would raise the cost of this study above 50
          USD.
      mlbench sweep study=quick --dry-run
          What a study of conf/study, or the rest of a begun one, would measure,
          and about how long.
    """
    check_overrides(args.arguments)
    own = [f"{name}={value}" for name, value in args.settings.items() if value]
    study = Study([*args.arguments, *own])
    if args.options.cfg:
        print(*study.configurations(), sep="", end="")
        return OK
    if args.options.dry_run:
        lines, refused = study.preview()
        print("\n".join(lines))
        return FAILED if refused else OK
    try:
        study.measure(terminal=sys.stderr)
    except KeyboardInterrupt:
        _warn([*(f"not measured: {trial}" for trial in study.unmeasured), *study.notes])
        print(study.folder)
        raise
    _warn(f"not measured: {trial}" for trial in study.unmeasured)
    if study.groups():
        print(study.answer(), flush=True)  # before the report, for which the disk may be too full
    try:
        _warn(["writing the report"] * bool(study.records))
        study.publish()
    finally:
        _warn(study.notes)
    print(study.report.absolute().as_uri() if study.groups() else study.folder)
    return FAILED if study.unmeasured else OK


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
