"""Clusters: a Ray that stays on this machine between runs with cluster=local, and those of installed
packages, e.g. Kubernetes on gke, aws, kind or existing (docs/clusters.md). Times:
docs/measurements/performance.md.
"""

import sys
from functools import partial

from mlbench.config import plugins
from mlbench.terminal.args import OK, Args, Command, run_command

COMMAND = Command("cluster", __doc__)
main = partial(run_command, COMMAND)


@COMMAND.verb("start")
def _start(args: Args) -> int:
    """Start a persistent Ray on this machine, unless one is running."""
    from mlbench.clusters import persistent

    print(f"Ray is running at {persistent.start()}; `{COMMAND.program} stop` ends it")
    return OK


@COMMAND.verb("stop")
def _stop(args: Args) -> int:
    """Stop the persistent Ray with all its processes."""
    from mlbench.clusters import persistent

    print("Ray has stopped" if persistent.stop() else "no Ray of mlbench was running")
    return OK


@COMMAND.verb("status")
def _status(args: Args) -> int:
    """Print whether the Ray of this machine is running."""
    from mlbench.clusters import persistent

    address = persistent.address()
    print(f"Ray is running at {address}" if address else "no Ray of mlbench is running")
    return OK


@COMMAND.verb("reap")
def _reap(args: Args) -> int:
    """Remove what killed commands left here."""
    from mlbench.clusters import reaper

    for name in reaper.reap():
        print(f"ended and removed what a killed command had left: {name}")
    return OK


plugins.extend(COMMAND)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
