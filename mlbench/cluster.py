"""A persistent Ray on this machine: `python -m mlbench.cluster start | status | stop`."""

import sys
from collections.abc import Sequence

from mlbench.terminal.args import OK, Args, Command, Verb, run_command


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return run_command(COMMAND, argv)


def _start(args: Args) -> int:
    from mlbench.clusters import persistent

    print(f"Ray is running at {persistent.start()}; `{COMMAND.program} stop` ends it")
    return OK


def _status(args: Args) -> int:
    from mlbench.clusters import persistent

    address = persistent.address()
    print(f"Ray is running at {address}" if address else "no Ray of mlbench is running")
    return OK


def _stop(args: Args) -> int:
    from mlbench.clusters import persistent

    print("Ray has stopped" if persistent.stop() else "no Ray of mlbench was running")
    return OK


COMMAND = Command(
    "cluster",
    "Keep a Ray running on this machine between runs. Runs with cluster=local use it one after the other; "
    "without it every run starts and stops a Ray of its own (docs/performance.md has the times).",
    {
        "start": Verb(_start, "start a persistent Ray, unless one is running"),
        "status": Verb(_status, "print the address of the one that is running"),
        "stop": Verb(_stop, "stop it with all its processes"),
    },
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
