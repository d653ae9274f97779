"""One run: `mlbench run task=gnmt workers=8`."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import yaml

from mlbench import clock
from mlbench.api import runs
from mlbench.clusters import connection
from mlbench.config import compose, resolved
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.contract import new_task
from mlbench.launch import remote_run, signals, torchrun
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
        "mlbench sweep --help (grids of repeated runs), mlbench predict --help (more workers than were "
        "measured), mlbench results --help (finished runs), mlbench data --help (data sets), mlbench cluster "
        "--help (a persistent Ray), mlbench measure --help (your training script), mlbench duel "
        "--help (which "
        "of two commands is faster), mlbench doctor --help (what this machine can run).",
    ),
)
SETTINGS = {
    "detach": ("false", "true: return after the run is submitted to a cluster"),
    "attach": ("", "follow the submitted run of this name (do not repeat its arguments)"),
    "down_after": ("", "run: delete the cluster that `mlbench cluster up` made, after the run"),
    "retries": ("0", "times that a submitted run which lost a spot node starts again, as another run"),
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
        **flag("--new", "write the package of a custom task, task=NAME, into this folder and stop"),
    },
)
def _run(args: Args) -> int:
    r"""Train one task on several workers with Ray Train until it reaches its goal,
    measure where the time goes, and record the run.

    examples:
      mlbench run
          The default task at mini scale on this machine: about a minute.
      mlbench run task=logreg workers=8
          Another task, eight workers. More workers than CPUs are allowed, and
          the result reports it.
      mlbench run task=gnmt workers=4 --dry-run
          The plan and its duration, without starting a run.
      mlbench run task=resnet20 scale=official data_root=/data \
          workers=4 hardware=gcp_n1_t4 backend=nccl goal=light cluster=attached
          The published task on four GPU nodes, to its light goal. Run it on a node
          of their Ray cluster.
      mlbench run --new task=mine
          A package with a small complete task that you can change.
    """
    command_started = clock.process_start()
    signals.exit_with_parent()
    check_overrides(args.arguments)
    if args.options.new:
        return _new(args.arguments)
    # torch's import is most of the start-up, so it begins before the experiment is known.
    early = "launcher=torchrun" in args.arguments and not (args.options.cfg or args.options.dry_run)
    with torchrun.agent() if early else nullcontext():
        received = resolved.received()
        experiment, words = received or (compose.compose(args.arguments), args.arguments)
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
        record = runs.measure(
            experiment, words, begun=command_started, output=show.Terminal(), submitted=settings
        )
        if record is None:
            return OK  # detached
        failed = dict.fromkeys(("failed", "preempted", "diverged"), FAILED)
        code = ({"interrupted": INTERRUPTED} | failed).get(record.status, OK)
        return FAILED if streams.discarded and code == OK else code


def _new(arguments: Sequence[str]) -> int:
    """Write the package of a new task and print the next steps."""
    if len(arguments) != 1 or not arguments[0].startswith("task="):
        raise UserError(f"--new takes task=NAME alone, got: {' '.join(arguments) or 'nothing'}")
    name = arguments[0].removeprefix("task=")
    folder = new_task.write(name, Path.cwd())
    print(f"{folder.name}/ has the task {name} in {folder.name}/{folder.name}. Next:")
    print(f"  cd {folder.name} && pip install -e .   # found by its entry points from then on")
    print("  pytest                             # what every task has to do")
    print(f"  mlbench run task={name}")
    return OK


def _manifest(experiment: Experiment, overrides: Sequence[str]) -> str:
    """Return what a run would create on its cluster, as YAML that `kubectl apply -f -` takes."""
    name = experiment.cluster.name
    cluster = connection.load(name)
    if not hasattr(cluster, "manifest"):
        hint = f"--cfg manifest shows what {connection.offering('manifest')} would create"
        raise UserError(f"cluster={name} has no manifest", hint=hint)
    return yaml.safe_dump_all(cluster.manifest(experiment, overrides), sort_keys=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
