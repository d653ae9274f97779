"""The command line of studies: `python -m mlbench.sweep task=resnet20 workers=1,2,4,8 repeats=5`."""

import sys
from collections.abc import Sequence

from mlbench.experiment import study
from mlbench.studies.session import Outcome, measure, publish
from mlbench.studies.spec import read
from mlbench.terminal import command
from mlbench.terminal.sweep_help import HELP


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        print(HELP, end="")
        return 0
    return command.ended(lambda: _swept(measure(read(arguments))))


def _swept(outcome: Outcome) -> int:
    """Publish what was measured, and say where it is and what it lacks; return the exit code."""
    if not outcome.interrupted:
        publish(outcome)
    for sentence in [*(f"not measured: {one}" for one in outcome.unmeasured), *outcome.notes]:
        print(sentence, file=sys.stderr)
    print(outcome.folder / study.REPORT if outcome.records else outcome.folder)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return command.FAILED if outcome.unmeasured else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
