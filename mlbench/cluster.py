"""Clusters: a persistent Ray on this machine, and Kubernetes on GKE, AWS, kind or your own."""

import subprocess
import sys
from collections.abc import Sequence

from mlbench.terminal.args import FAILED, OK, Args, Command, Verb, run_command


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return run_command(COMMAND, argv)


def _start(args: Args) -> int:
    from mlbench.clusters import persistent

    print(f"Ray is running at {persistent.start()}; `{COMMAND.program} stop` ends it")
    return OK


def _stop(args: Args) -> int:
    from mlbench.clusters import persistent

    print("Ray has stopped" if persistent.stop() else "no Ray of mlbench was running")
    return OK


def _status(args: Args) -> int:
    from mlbench.clusters import persistent
    from mlbench.clusters.provisioning import status

    if args.arguments:
        print(status.text(_only(args)))
        return OK
    address = persistent.address()
    print(f"Ray is running at {address}" if address else "no Ray of mlbench is running")
    return OK


def _plan(args: Args) -> int:
    from mlbench.clusters.provisioning import plan

    print(plan.text(plan.parse(_only(args, "PROVIDER"), args.settings, creating=False)))
    return OK


def _up(args: Args) -> int:
    from mlbench.clusters.provisioning import lifecycle, plan

    spec = plan.parse(_only(args, "PROVIDER"), args.settings, creating=True)
    print("\n".join(plan.price_lines(spec)), flush=True)
    lifecycle.up(spec, _report)
    print(f"{spec.name} is up; its context is {plan.provider(spec).context(spec)}")
    print(f"run on it: {plan.run_command(spec)}")
    print(f"delete it: {COMMAND.program} down {spec.name}")
    return OK


def _list(args: Args) -> int:
    from mlbench.clusters.provisioning import status
    from mlbench.terminal import tables

    rows = status.rows()
    print(tables.table(status.HEADINGS, rows) if rows else "no cluster was made here")
    return OK


def _use(args: Args) -> int:
    from mlbench.clusters.provisioning import status

    print(status.use(_only(args)))
    return OK


def _cost(args: Args) -> int:
    from mlbench.clusters.provisioning import status

    print(status.cost(_only(args)))
    return OK


def _dashboard(args: Args) -> int:
    from mlbench.clusters.provisioning import status

    argv, address = status.dashboard(_only(args), port=args.settings["port"])
    return _open_tunnel("Ray's dashboard", argv, address)


def _mlflow(args: Args) -> int:
    from mlbench.clusters.provisioning import status

    argv, address = status.mlflow(_only(args), port=args.settings["port"])
    return _open_tunnel("MLflow", argv, address)


def _open_tunnel(what: str, argv: list[str], address: str) -> int:
    print(f"{what}: {address} until Ctrl-C, by a tunnel that only this machine reaches", flush=True)
    return subprocess.run(argv).returncode


def _down(args: Args) -> int:
    from mlbench.clusters.provisioning import lifecycle

    lifecycle.down(_only(args), _report)
    return OK


def _reap(args: Args) -> int:
    from mlbench import clock
    from mlbench.clusters import reaper
    from mlbench.clusters.provisioning import lifecycle, status

    for name in reaper.reap():
        print(f"ended and removed what a killed command had left: {name}")
    names = lifecycle.reap(_report, now=clock.wall())
    print(f"deleted: {', '.join(names)}" if names else "no cluster of this machine is expired or half made")
    if args.settings["project"]:
        print(status.elsewhere(args.settings["project"], now=clock.wall()))
    return OK


def _prices(args: Args) -> int:
    from pathlib import Path

    from mlbench.clusters.provisioning import catalog
    from mlbench.config import price_file
    from mlbench.config.errors import UserError
    from mlbench.terminal import tables

    if not args.arguments:
        headings = ("hardware", "USD/h", "spot", "date", "from", "source")
        print(tables.table(headings, catalog.rows(), right=(False, True, True)))
        print(f"your own prices go into {price_file.path()} (docs/clusters.md)")
        return OK
    provider = args.settings["provider"]
    if len(args.arguments) != 2 or args.arguments[0] != "import" or provider not in ("gke", "aws"):
        raise UserError(
            "cluster prices takes nothing, or a catalogue and whose it is",
            hint=f"{COMMAND.program} prices import FILE provider=aws (or gke)",
        )
    catalogue = catalog.read(Path(args.arguments[1]), provider)
    if catalogue.prices:
        print(f"{len(catalogue.prices)} prices are in {price_file.write(catalogue.prices)}")
    for sentence in catalogue.refused:
        print(f"refused: {sentence}")
    return FAILED if catalogue.refused else OK


def _only(args: Args, what: str = "NAME") -> str:
    """Return the one word of a verb; UserError for none or several."""
    from mlbench.config.errors import UserError

    if len(args.arguments) != 1:
        raise UserError(f"cluster {args.verb} takes one {what}", hint=f"{COMMAND.program} {args.verb} --help")
    return args.arguments[0]


def _report(line: str) -> None:
    print(line, flush=True)


SIZE = {
    "hardware": ("", "a profile of conf/hardware; default: T4 nodes in a cloud, local elsewhere"),
    "workers": ("4", "the most workers that run at once"),
    "spot": ("", "true or false; default: true where the profile states a spot price. Of the workers alone"),
    "hours": ("", "h until the cluster expires (plan: 4); reap deletes it then, node limits end its workers"),
    "max_usd": ("", "USD; up refuses a cluster that could cost more until it expires"),
    "name": ("", "of the cluster; default: the hardware's"),
    "project": ("", "gke: the project that pays; default: CLOUDSDK_CORE_PROJECT"),
    "place": ("", "zone (gke) or region (aws); default: where the profile's price was read"),
    "allow": ("", "aws: who reaches the cluster's API, e.g. 203.0.113.7/32"),
    "context": ("", "existing: the kubeconfig's context"),
}
PROGRAM = "python -m mlbench.cluster"
COMMAND = Command(
    "cluster",
    "Make, watch and delete clusters: Kubernetes on gke, aws, kind or existing (docs/clusters.md), and a Ray "
    "that stays on this machine between runs with cluster=local (docs/performance.md has the times).",
    {
        "plan": Verb(
            _plan,
            "print every command of `up` and the price an hour; needs no credentials",
            arguments="PROVIDER",
            settings=SIZE,
            examples=((f"{PROGRAM} plan gke workers=8 hardware=gcp_n1_t4", ""),),
        ),
        "up": Verb(
            _up,
            "create a cluster, with a spending cap and an expiry",
            arguments="PROVIDER",
            settings=SIZE,
            examples=(
                (f"{PROGRAM} up gke project=my-lab workers=8 \\\n      hours=4 max_usd=20", ""),
                (f"{PROGRAM} up existing context=lab", "Installs the KubeRay operator, unless it is there."),
            ),
        ),
        "list": Verb(_list, "the clusters made here, with state, price and expiry"),
        "use": Verb(_use, "make a cluster the current context of kubectl", arguments="NAME"),
        "start": Verb(_start, "start a persistent Ray on this machine, unless one is running"),
        "status": Verb(
            _status,
            "what exists of a cluster; without a name, the Ray of this machine",
            arguments="[NAME]",
        ),
        "cost": Verb(_cost, "what a cluster has cost so far at list prices", arguments="NAME"),
        "dashboard": Verb(
            _dashboard,
            "open a tunnel to the Ray dashboard of a cluster's run",
            arguments="NAME",
            settings={"port": ("8265", "of this machine, on 127.0.0.1")},
        ),
        "mlflow": Verb(
            _mlflow,
            "open a tunnel to the MLflow server of a cluster's runs (cluster.mlflow=true)",
            arguments="NAME",
            settings={"port": ("5000", "of this machine, on 127.0.0.1")},
        ),
        "down": Verb(_down, "delete a cluster and show that nothing is left", arguments="NAME"),
        "reap": Verb(
            _reap,
            "delete clusters that have expired or are half made, and what killed commands left here",
            settings={"project": ("", "also list the expired clusters of a GKE project, made elsewhere")},
        ),
        "prices": Verb(
            _prices,
            "the prices in use; `prices import FILE` reads a public catalogue",
            arguments="[import FILE]",
            settings={
                "provider": ("", "import: gke or aws, whose catalogue it is"),
            },
            examples=((f"{PROGRAM} prices import vms.csv provider=aws", "SkyPilot's catalogue of AWS."),),
        ),
        "stop": Verb(_stop, "stop the persistent Ray with all its processes"),
    },
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
