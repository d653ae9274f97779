"""One run: `python -m mlbench.run task=gnmt workers=8`."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import yaml

from mlbench import clock
from mlbench.clusters import connection
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.contract import new_task
from mlbench.launch import execute, remote_run, signals, torchrun
from mlbench.terminal import help, show, streams
from mlbench.terminal.args import (
    BEFORE,
    CONFIG_DIR,
    FAILED,
    INTERRUPTED,
    OK,
    Args,
    Command,
    check_overrides,
    flag,
    run_command,
)

CLOSING = (
    (
        "results",
        "Each run has a folder in output_root: events.jsonl (the log, written as things happen) and "
        "record.json (the result). The same goes to the MLflow store at tracking_uri, by default a SQLite "
        "file in output_root. A finished run with the same configuration, seed, data, code and libraries on "
        "the same machine is shown instead of measured again, unless force=true.",
    ),
    (
        "exit codes",
        "0: measured, whether or not the goal was reached. 1: the run failed, diverged or was preempted, or "
        "its result could not be shown. 2: a mistake in the command, or a cluster too small for it, reported "
        "before any worker trains. 130: interrupted.",
    ),
    (
        "see also",
        "python -m mlbench.sweep --help (grids of repeated runs), python -m mlbench.predict --help (more "
        "workers than were measured), python -m mlbench.results --help (finished runs), python -m "
        "mlbench.data --help (data sets), python -m mlbench.cluster --help (a persistent Ray), python -m "
        "mlbench.measure --help (a training script of your own), python -m mlbench.doctor --help "
        "(what this machine can run).",
    ),
)
SETTINGS = {
    "detach": ("false", "true: return once the run is submitted to a cluster that takes whole runs"),
    "attach": ("", "follow the run of this name, which was submitted before; its own words are not repeated"),
    "retries": ("0", "start a submitted run that lost a spot node anew, as another run, so many times"),
}


COMMAND = Command("run", sections=lambda: [*help.sections(), *CLOSING], empty=True)
main = partial(run_command, COMMAND)


@COMMAND.verb(
    "",
    "[name=value ...]",
    settings=SETTINGS,
    options={
        **BEFORE,
        "--cfg": {
            "choices": ("job", "manifest"),
            "help": "print the resolved configuration, or what a run would create on its cluster, and stop",
        },
        **CONFIG_DIR,
        **flag("--new", "write the package of a task of your own, task=NAME, into this folder and stop"),
    },
)
def _run(args: Args) -> int:
    r"""Train one task on several workers with Ray Train until it reaches its goal,
    measure where the time goes, and record the run.

    examples:
      python -m mlbench.run
          The default task at mini scale on this machine: about a minute.
      python -m mlbench.run task=logreg workers=8
          Another task, eight workers. More workers than CPUs are allowed; the
          result says so.
      python -m mlbench.run task=gnmt workers=4 --dry-run
          What it would do, and about how long: nothing is started.
      python -m mlbench.run task=resnet20 scale=official data_root=/data \
          workers=4 hardware=gcp_n1_t4 backend=nccl goal=light cluster=attached
          The published task on four GPU nodes, to its light goal; run it on a node
          of their Ray cluster.
      python -m mlbench.run --new task=mine
          A package with a small complete task, to change into your own.
    """
    command_started = clock.process_start()
    signals.exit_with_parent()
    check_overrides(args.arguments)
    if args.options.new:
        return _new(args.arguments)
    # torch's import is most of the start-up, so it begins before the experiment is known.
    early = "launcher=torchrun" in args.arguments and not (args.options.cfg or args.options.dry_run)
    with torchrun.agent() if early else nullcontext():
        experiment = compose.compose(args.arguments)
        name, settings = experiment.cluster.name, None
        if remote_run.takes(name):
            settings = remote_run.SubmitSettings.parse(args.settings)
        elif changed := [word for word, (default, _) in SETTINGS.items() if args.settings[word] != default]:
            hint = f"{connection.offering('submit')} does"
            raise UserError(f"cluster={name} does not take {', '.join(changed)}", hint=hint)
        if args.options.cfg == "manifest":
            print(_manifest(experiment, args.arguments), end="")
            return OK
        if args.options.cfg:
            print(yaml.safe_dump(experiment.plain(), sort_keys=False), end="")
            return OK
        if args.options.dry_run:
            from mlbench.studies import preview

            print("\n".join(preview.run(experiment, args.arguments)))
            return OK
        if settings is not None:
            record = remote_run.execute(
                experiment,
                begun=command_started,
                overrides=args.arguments,
                settings=settings,
                output=show.Terminal(),
            )
            if record is None:
                return OK  # detached
        else:
            record = execute.execute(
                experiment, begun=command_started, overrides=args.arguments, output=show.Terminal()
            )
        failed = dict.fromkeys(("failed", "preempted", "diverged"), FAILED)
        code = ({"interrupted": INTERRUPTED} | failed).get(record.status, OK)
        return FAILED if streams.discarded and code == OK else code


def _new(arguments: Sequence[str]) -> int:
    """Write the package of a new task and say what comes next."""
    if len(arguments) != 1 or not arguments[0].startswith("task="):
        raise UserError(f"--new takes task=NAME alone, got: {' '.join(arguments) or 'nothing'}")
    name = arguments[0].removeprefix("task=")
    folder = new_task.write(name, Path.cwd())
    print(f"{folder.name}/ has the task {name} in {folder.name}/{folder.name}; next:")
    print(f"  cd {folder.name} && pip install -e .   # found by its entry points from then on")
    print("  pytest                             # what every task has to do")
    print(f"  python -m mlbench.run task={name}")
    return OK


def _manifest(experiment: Experiment, overrides: Sequence[str]) -> str:
    """Return what a run would create on its cluster, as YAML that `kubectl apply -f -` takes."""
    name = experiment.cluster.name
    cluster = connection.load(name)
    if not hasattr(cluster, "manifest"):
        hint = f"--cfg manifest shows what {connection.offering('manifest')} would create"
        raise UserError(f"cluster={name} creates nothing that a manifest could show", hint=hint)
    return yaml.safe_dump_all(cluster.manifest(experiment, overrides), sort_keys=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
