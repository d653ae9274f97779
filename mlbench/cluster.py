"""Keep a Ray running on this machine between runs: `python -m mlbench.cluster start | status | stop`."""

import argparse
import sys
from collections.abc import Sequence

from mlbench.terminal import command


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mlbench.cluster",
        description="Runs with cluster=local use the Ray that this command keeps, one after the other. "
        "Without it every run starts a Ray of its own and stops it at the end. On two cores that takes as "
        "long (docs/performance.md); on many the servers' start is saved.",
    )
    parser.add_argument(
        "verb",
        choices=("start", "status", "stop"),
        help="start one, unless one is running; say where one runs; stop it with all its processes",
    )
    verb = parser.parse_args(arguments).verb
    from mlbench.clusters import persistent

    def body() -> int:
        if verb == "start":
            print(f"Ray runs at {persistent.start()}; `python -m mlbench.cluster stop` ends it")
        elif verb == "stop":
            print("Ray has stopped" if persistent.stop() else "no Ray of ours was running")
        else:
            address = persistent.address()
            print(f"Ray runs at {address}" if address else "no Ray of ours is running")
        return 0

    return command.ended(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
