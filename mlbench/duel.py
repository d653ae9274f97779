"""Which of two is faster: `mlbench duel -- COMMAND A --- COMMAND B`."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, chdir
from dataclasses import replace
from pathlib import Path

from mlbench import clock
from mlbench.analysis import duel as test
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import command_run, execute, signals
from mlbench.record import study, temporary_folder
from mlbench.studies import duel, duel_answer
from mlbench.terminal.args import (
    FAILED,
    INTERRUPTED,
    JSON,
    NO_VERDICT,
    OK,
    Args,
    Command,
    check_overrides,
    flag,
    percentage,
    run_command,
    say,
    seconds,
    warn,
)

USAGE = "mlbench duel -- COMMAND A --- COMMAND B"
SETTINGS = {
    "compare": (
        "wall",
        f"step (the median), {duel.FAST_STEP} (the 5th percentile, for busy machines), goal, rate, memory, "
        "another number of a run, or "
        f"{duel.PRINTED}NAME, the last number that a command prints after NAME (or a regular expression)",
    ),
    "better": ("", "less or more (default: more for rates and metrics, less for all else)"),
    "margin": ("0%", "e.g. 1%: also decide that both are the same within this share"),
    "max_time": ("15min", "do not start pairs that would end later"),
    "max_pairs": (str(test.MOST_PAIRS), "pairs after which the duel ends"),
    "study": ("", "names the runs for results list study:NAME (default: duel and the time)"),
}
OPTIONS = {
    **JSON,
    **flag("--aa", "run one command against itself: does this machine show a difference?"),
    **flag("--with-disturbed", "also count pairs that other processes disturbed"),
    "--commits": {"metavar": "A..B", "help": "run one command in worktrees of two commits"},
}
CLOSING = (
    ("two settings of a task", "mlbench duel task=logreg -- sync=ddp --- sync=zero1"),
    (
        "exit codes",
        "0: decided, or --aa shows no difference. 1: --aa shows one. 2: a mistake in the command. "
        "3: not decided. 130: interrupted. A command that fails ends the duel with that command's exit code.",
    ),
)
COMMAND = Command("duel", sections=lambda: CLOSING)
_sides: list[list[str]] = []  # what follows `--`, divided at `---`


def main(argv: Sequence[str]) -> int:
    """Compare the two commands after the first `--`; return the exit code."""
    arguments = list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    _sides[:] = [[]] * (cut < len(arguments))
    for word in arguments[cut + 1 :]:
        _sides[-1:] = [_sides[-1], []] if word == "---" else [[*_sides[-1], word]]
    return run_command(replace(COMMAND, empty=bool(_sides)), arguments[:cut])


@COMMAND.verb("", "[name=value ...] -- COMMAND A --- COMMAND B", settings=SETTINGS, options=OPTIONS)
def _duel(args: Args) -> int:
    r"""Run two commands in pairs of random order until it is decided which is faster.

    Each run is measured as by mlbench measure. A warm-up pair does not count, each
    side has separate compiler caches, and disturbed pairs are left out: see
    docs/duel.md.

    examples:
      mlbench duel -- python train.py --- python train.py --fused
          The time of the whole command.
      mlbench duel compare=step margin=1% -- python a.py --- python b.py
          The median step; the duel also ends when both are the same within 1 %.
      mlbench duel --commits main..HEAD -- torchrun train.py
          Two commits, each in a separate worktree.
    """
    signals.exit_with_parent()
    if not _sides:
        raise UserError("missing -- before the commands", hint=USAGE)
    check_overrides(args.arguments)
    name = args.settings["study"] or f"duel-{clock.iso(clock.wall())[:19].replace(':', '')}"
    quantity = duel.quantity(args.settings["compare"], args.settings["better"])
    try:
        margin = percentage(args.settings["margin"])
    except argparse.ArgumentTypeError as error:
        raise UserError(f"margin= {error}") from error
    max_time_s = seconds("max_time", args.settings["max_time"])
    max_pairs = args.settings["max_pairs"]
    if not max_pairs.isdecimal() or not test.LOOKS[0] <= int(max_pairs) <= test.MOST_PAIRS:
        hint = f"write {test.LOOKS[0]} to {test.MOST_PAIRS}"
        raise UserError(f"max_pairs={max_pairs} is not a number of pairs", hint=hint)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder.folder())
        sides = _contestants(args, stack, folder)
        if quantity.name == duel.FAST_STEP and sides[0].task:
            hint = "use compare=step, the mean between two validations"
            raise UserError(f"compare={quantity.name}: the record of a task has no single steps", hint=hint)
        experiments = [_composed(side, args.arguments) for side in sides]
        root = experiments[0].output_root.absolute()
        where = study.folder(root, name)
        if where.exists():
            raise UserError(f"study={name} exists already", hint="give another name")
        contest = duel.Contest(name, quantity, sides, root, margin, args.options.with_disturbed)
        words = [word for word in args.arguments if not word.startswith("output_root=")]
        try:
            code = duel.run(
                contest,
                [*words, f"output_root={root}"],
                caches=folder,
                max_time_s=max_time_s,
                max_pairs=int(max_pairs),
                show=warn,
            )
        except KeyboardInterrupt:
            warn("mlbench: interrupted, nothing is decided. The same command starts a new duel")
            return INTERRUPTED
        if code:
            return code
        found = duel_answer.answer(contest)
    duel_answer.keep(contest, found, where, uri=experiments[0].store)
    if args.json:
        print(found.model_dump_json(indent=2))
    else:
        for side in sides:
            say(f"{side.name}: {shlex.join(side.words)}")
        say("\n".join([found.sentence, *(f"note: {note}" for note in found.notes), str(where)]))
    if args.options.aa:
        return FAILED if found.decision in ("faster", "slower") else OK
    return OK if found.decision else NO_VERDICT


def _contestants(args: Args, stack: ExitStack, folder: Path) -> tuple[duel.Side, duel.Side]:
    """Return the two sides; UserError for words that name no two."""
    one = bool(args.options.aa) + bool(args.options.commits)
    if one == 2:
        raise UserError("--aa and --commits cannot be used together", hint="leave one of them out")
    if one and len(_sides) > 1:
        raise UserError("--aa and --commits take one command", hint="leave out --- and the second")
    if not one and len(_sides) != 2:
        many = "a second ---" if _sides[2:] else "no --- between two commands"
        raise UserError(f"got {many}", hint=USAGE)
    settings = [side for side in _sides if side and all(re.match(r"[a-z_][\w.]*=", word) for word in side)]
    task = bool(settings) and len(settings) == sum(map(bool, _sides))
    if not task and (settings or not all(_sides)):
        why = "one side is a command and the other is not" if all(_sides) else "a command is missing"
        raise UserError(why, hint=f"{USAGE}, or task=NAME -- name=value --- name=value")
    places = (Path.cwd(), Path.cwd())
    if args.options.commits:
        places = stack.enter_context(duel.worktrees(args.options.commits, folder))
    a, b = (_sides * 2)[:2]
    return duel.Side("A", tuple(a), places[0], task), duel.Side("B", tuple(b), places[1], task)


def _composed(side: duel.Side, overrides: Sequence[str]) -> Experiment:
    """Return a side's experiment; UserError for one that cannot be measured."""
    if not side.task:
        with chdir(side.folder):
            return command_run.experiment_of(overrides, side.words)
    experiment = compose.compose([*overrides, *side.words])
    execute.check(experiment)
    return experiment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
