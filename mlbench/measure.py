"""Measure your training command: `mlbench measure -- torchrun --nproc-per-node 2 train.py`."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from mlbench import clock
from mlbench.config.goal import Direction
from mlbench.launch import command_run, in_script, signals
from mlbench.terminal import show
from mlbench.terminal.args import Args, Command, check_overrides, run_command

SETTINGS = {
    "listen": (
        "127.0.0.1",
        "this host's address for ranks on other hosts",
    )
}
CLOSING = (
    (
        "exit codes",
        "That of the command, also after a signal. 0: it was stopped at its goal. 1: it hung. 2: a "
        "mistake in the command line.",
    ),
)
COMMAND = Command("measure", sections=lambda: CLOSING)
_line: list[str] = []  # the command to measure, which is none of mlbench's words


def main(argv: Sequence[str]) -> int:
    """Measure the command after the first `--`, and return the exit code."""
    arguments = list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    _line[:] = arguments[cut + 1 :]
    return run_command(replace(COMMAND, empty="--" in arguments), arguments[:cut])


def measure(
    metric: str = "none",
    goal: float | None = None,
    *,
    direction: Direction = "max",
    overrides: Sequence[str] = (),
) -> in_script.Measurement:
    """Return a context manager that measures a training loop in a script of yours, `mlbench.measure`.

    - metric: what `validation(metric=...)` is given.
    - goal: its value that ends the training (None: no goal).
    - direction: "max", or "min" for a loss.
    - overrides: words as of `mlbench.run`, e.g. "hardware=gcp_n1_t4".

    The run is written by rank 0, in the folder `runs`, with a card at the end. If a command of mlbench has
    started the script, that command writes it. Raises UserError if several ranks have no process group yet.
    """
    return in_script.Measurement(
        metric, goal, direction=direction, overrides=overrides, output=show.Terminal(errors=True)
    )


@COMMAND.verb("", "[name=value ...] -- COMMAND ...", settings=SETTINGS)
def _measure(args: Args) -> int:
    r"""Run a training command as it is, and record how it spends its time.

    No line of the script changes, and Ray is not used. Steps, phases, late ranks
    and the time to a printed metric come from public hooks of PyTorch in each
    process (docs/your-own-script.md).

    examples:
      mlbench measure -- torchrun --nproc-per-node 2 train.py --lr 0.1
          Phases of a step, and the rank that keeps the others waiting.
      mlbench measure task.metric=val_acc goal=0.95 -- python train.py
          Time until the script prints val_acc 0.95 or more. It is ended there.
    """
    begun = clock.process_start()
    signals.exit_with_parent()
    check_overrides(args.arguments)
    output = show.Terminal(errors=True)
    ended = command_run.run(_line, args.arguments, begun=begun, listen=args.settings["listen"], output=output)
    if ended.error is not None:
        output.sentence(f"mlbench: {ended.error}")
    return ended.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
