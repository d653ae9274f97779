"""One experiment: `python -m mlbench.run task=gnmt workers=8`.

The way of a run, in four hops: `main` composes and validates the experiment, `execute` reuses a finished run
or starts one, `launch` trains on the workers, and the record goes to the event log and from there to MLflow.
"""

import sys
from collections.abc import Sequence

from mlbench.experiment import clock, config
from mlbench.launch import execute, signals
from mlbench.terminal import command, live_view


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    begun = clock.process_start()
    signals.exit_with_parent()
    if any(word in ("-h", "--help") for word in arguments):
        live_view.print_help()
        return 0

    def body() -> int:
        finished = execute.execute(config.compose(arguments), begun=begun, overrides=arguments)
        if finished.status == "interrupted":
            return command.INTERRUPTED
        return command.FAILED if finished.status in ("failed", "diverged") else 0

    return command.ended(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
