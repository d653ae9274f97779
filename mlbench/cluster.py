"""Clusters: a Ray that stays on this machine between runs with cluster=local, and those of installed
packages, e.g. Kubernetes on gke, aws, kind or existing (docs/clusters.md). Times:
docs/measurements/performance.md.
"""

import json
import sys
from datetime import date
from functools import partial

from mlbench.config import compose, plugins, price_file
from mlbench.config.errors import UserError
from mlbench.launch import check
from mlbench.terminal.args import FAILED, JSON, OK, Args, Command, run_command

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


@COMMAND.verb("check", settings=check.SETTINGS, options=JSON)
def _check(args: Args) -> int:
    """Say which of several machines, GPUs or links is slow or loses packets.

    Each machine runs the same command, e.g. by srun or ssh; no Kubernetes,
    MPI, container or Ray is needed. Exit code 0: healthy; 1: machine 0
    prints what is not.

    examples:
      srun --ntasks-per-node=1 python -m mlbench.cluster check address=node1
      python -m mlbench.cluster check rank=1 machines=4 address=node1
    """
    result = check.measured(args.settings)
    if result["rank"] == 0:
        print(json.dumps(result, indent=1) if args.json else check.text(result))
    return FAILED if result["faults"] else OK


PRICES = {
    "usd_per_hour": ("", "of a node on demand; default: as it is"),
    "usd_per_hour_spot": ("", "of a spot node; default: as it is, null where usd_per_hour is given"),
    "date": ("", "on which it was read, e.g. 2026-11-25; default: today"),
    "source": ("", "who says so, e.g. 'our contract'"),
}


@COMMAND.verb("prices", "HARDWARE ...", settings=PRICES)
def _prices(args: Args) -> int:
    """Date the prices of hardware profiles anew, in the price file.

    examples:
      python -m mlbench.cluster prices gcp_n1_t4 usd_per_hour=0.54 source=invoice
      python -m mlbench.cluster prices gcp_n1_t4 aws_p3_2xlarge source='AWS list'
          They still cost what they did. The file stands above the profiles.
    """
    given: dict[str, str | None] = {name: value for name, value in args.settings.items() if value}
    if not args.arguments or "source" not in given:
        raise UserError("prices takes names of hardware profiles and source=", hint="see --help")
    if len(args.arguments) > 1 and given.keys() & {"usd_per_hour", "usd_per_hour_spot"}:
        raise UserError("one price is not that of several profiles", hint="one command each")
    if "usd_per_hour" in given:
        given.setdefault("usd_per_hour_spot", None)
    prices = {}
    for name in args.arguments:
        before = compose.hardware(name).price
        prices[name] = (before.model_dump() if before else {}) | {"date": date.today().isoformat()} | given
    print(f"{', '.join(prices)}: written to {price_file.write(prices)}")
    return OK


plugins.extend(COMMAND)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
