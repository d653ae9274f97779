"""A training command of your own: `python -m mlbench.measure -- torchrun --nproc-per-node 2 train.py`."""

import sys
from collections.abc import Sequence

from mlbench import clock
from mlbench.config.goal import Direction
from mlbench.launch import command_run, in_script, signals
from mlbench.terminal import show
from mlbench.terminal.args import FAILED, Args, Command, check_overrides, run_command

SETTINGS = {
    "listen": (
        "127.0.0.1",
        "this host's address, where ranks on other hosts reach it",
    )
}
CLOSING = (
    (
        "exit codes",
        "That of the command; 0 where it was ended at its goal, 1 where it hung, 2: a mistake in the command "
        "line, or nothing was trained. 130: interrupted.",
    ),
)
COMMAND = Command("measure", sections=lambda: CLOSING)
_line: list[str] = []  # the command to measure, which is none of mlbench's words


def main(argv: Sequence[str]) -> int:
    """Measure what stands after the first `--`; return the exit code."""
    arguments = list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    _line[:] = arguments[cut + 1 :]
    return run_command(COMMAND, arguments[:cut] or [f"listen={SETTINGS['listen'][0]}"] * bool(_line))


def measure(
    metric: str = "none",
    goal: float | None = None,
    *,
    direction: Direction = "max",
    overrides: Sequence[str] = (),
) -> in_script.Measurement:
    """Return a context manager that measures a training loop in a script of yours; `mlbench.measure`.

    - metric: what `validation(metric=...)` is given; goal: its value that ends the training; None: no goal.
    - direction: "max", or "min" for a loss. overrides: words as of `mlbench.run`, e.g. "hardware=gcp_n1_t4".

    The run is written by rank 0, in the folder `runs`, with a card at the end; where a command of mlbench has
    started the script, by that command. Raises UserError where several ranks have no process group yet.
    """
    return in_script.Measurement(
        metric, goal, direction=direction, overrides=overrides, output=show.Terminal()
    )


@COMMAND.verb("", "[name=value ...] -- COMMAND ...", settings=SETTINGS)
def _measure(args: Args) -> int:
    r"""Run a training command as it is, and record where its time goes.

    No line of the script changes, and Ray is not used. Steps, phases, late ranks
    and the time to a printed metric come from public hooks of PyTorch in each
    process (docs/your-own-script.md).

    examples:
      python -m mlbench.measure -- torchrun --nproc-per-node 2 train.py --lr 0.1
          Phases of a step, and the rank that keeps the others waiting.
      python -m mlbench.measure task.metric=val_acc goal=0.95 -- python train.py
          Time until the script prints val_acc 0.95 or more; it is ended there.
    """
    begun = clock.process_start()
    signals.exit_with_parent()
    check_overrides(args.arguments)
    record, code, error = command_run.run(
        _line, args.arguments, begun=begun, listen=args.settings["listen"], output=show.Terminal()
    )
    if record is None and error is not None:
        show.Terminal().sentence(f"mlbench: {error}")
    return FAILED if code == 0 and record is not None and record.status == "failed" else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
