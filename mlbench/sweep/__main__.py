"""The command line of studies: `python -m mlbench.sweep task=resnet20 workers=1,2,4,8 repeats=5`."""

import sys
from collections.abc import Sequence

from mlbench import study
from mlbench.errors import UserError
from mlbench.sweep import EXIT_INTERRUPTED, EXIT_USER_ERROR, measure, publish
from mlbench.sweep.request import read
from mlbench.terminal.sweep_help import HELP


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        print(HELP, end="")
        return 0
    try:
        outcome = measure(read(arguments))
        if not outcome.interrupted:
            publish(outcome)
    except UserError as error:
        print(f"mlbench: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("mlbench: interrupted; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    for sentence in [*(f"not measured: {one}" for one in outcome.unmeasured), *outcome.notes]:
        print(sentence, file=sys.stderr)
    if outcome.interrupted:
        print("mlbench: interrupted; the same command goes on", file=sys.stderr)
    print(outcome.folder / study.REPORT if outcome.records else outcome.folder)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
