"""Clusters: a Ray that stays on this machine between runs with cluster=local, and those of installed
packages, e.g. Kubernetes on gke, aws, kind or existing (docs/clusters.md). Times:
docs/measurements/performance.md.
"""

import json
import sys
from contextlib import redirect_stdout
from datetime import date
from functools import partial
from typing import Any

from mlbench import clock
from mlbench.config import compose, plugins, price_file
from mlbench.config.errors import ClusterError, UserError
from mlbench.launch import check
from mlbench.terminal.args import CONFIG_DIR, FAILED, JSON, OK, Args, Command, run_command

COMMAND = Command("cluster", __doc__, options=CONFIG_DIR)
main = partial(run_command, COMMAND)


@COMMAND.verb("start")
def _start(args: Args) -> int:
    """Start a persistent Ray on this machine, unless one is running."""
    from mlbench.clusters import persistent

    print(f"Ray is running at {persistent.start()} (`{COMMAND.program} stop` ends it)")
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


@COMMAND.verb("check", "[name=value ...]", settings=check.SETTINGS, options=JSON | CONFIG_DIR)
def _check(args: Args) -> int:
    r"""Find the machine, GPU or link that is slow or loses packets.

    With cluster= it is a run of task 0 on that cluster. Else run the same
    command on each machine, e.g. by srun or ssh. You need no Kubernetes, MPI,
    container or Ray then. Exit code 0: healthy. Exit code 1: machine 0 prints
    what is not.

    examples:
      srun --ntasks-per-node=1 mlbench cluster check address=node1
      mlbench cluster check rank=1 machines=4 address=node1
      mlbench cluster check cluster=kuberay cluster.image=IMAGE \
          workers=16 hardware=gcp_a3_highgpu_8g backend=nccl
    """
    result = _checked_run(args) if args.arguments else check.measured(args.settings)
    if result["rank"] == 0:
        print(json.dumps(result, indent=1) if args.json else check.text(result))
    return FAILED if result["faults"] else OK


def _checked_run(args: Args) -> dict[str, Any]:
    """Return what a run of task 0 on a cluster shows about its machines."""
    from mlbench.api import runs  # imported here: a plan shows no run
    from mlbench.terminal import show

    words, begun = check.words(args.arguments, args.settings), clock.process_start()
    with redirect_stdout(sys.stderr):  # the verdict alone is the command's answer
        record = runs.measure(compose.compose(words), words, begun=begun, output=show.Terminal())
    if record is None or record.status != "completed":
        raise ClusterError("the run that checks the machines has no result", hint="its card has the cause")
    return check.of_record(record)


PRICES = {
    "usd_per_hour": ("", "of an on-demand node (default: unchanged)"),
    "usd_per_hour_spot": ("", "of a spot node (default: unchanged, null if usd_per_hour is given)"),
    "date": ("", "of the price, e.g. 2026-11-25 (default: today)"),
    "source": ("", "origin of the price, e.g. 'our contract'"),
}


@COMMAND.verb("prices", "HARDWARE ...", settings=PRICES)
def _prices(args: Args) -> int:
    """Update the prices of hardware profiles and their date, in the price file.

    examples:
      mlbench cluster prices gcp_n1_t4 usd_per_hour=0.54 source=invoice
      mlbench cluster prices gcp_n1_t4 aws_p3_2xlarge source='AWS list'
          The prices did not change. The file overrides the profiles.
    """
    given: dict[str, str | None] = {name: value for name, value in args.settings.items() if value}
    if not args.arguments or "source" not in given:
        raise UserError(
            "prices takes names of hardware profiles and source=",
            hint="e.g. prices gcp_n1_t4 usd_per_hour=0.54 source=invoice",
        )
    if len(args.arguments) > 1 and given.keys() & {"usd_per_hour", "usd_per_hour_spot"}:
        raise UserError("one price is not that of several profiles", hint="one command each")
    if "usd_per_hour" in given:
        given.setdefault("usd_per_hour_spot", None)
    prices = {}
    price_file.create()
    for name in args.arguments:
        before = compose.hardware(name).price
        prices[name] = (before.model_dump() if before else {}) | {"date": date.today().isoformat()} | given
    print(f"{', '.join(prices)}: written to {price_file.write(prices)}")
    return OK


plugins.extend(COMMAND)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
