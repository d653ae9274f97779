"""What `python -m mlbench.cluster` does with Kubernetes on gke, aws, kind or existing (docs/clusters.md)."""

import subprocess

from mlbench.terminal.args import FAILED, OK, Args, Command, Verb

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
COMMAND = Command("cluster")  # its verbs become those of mlbench's own; `add` takes what that had
OWN: dict[str, Verb] = {}


def add(command: Command) -> None:
    """Add the verbs to the command; `status` and `reap` do what the command's own did, too."""
    OWN.update(command.verbs)
    command.verbs.update(COMMAND.verbs)


@COMMAND.verb("status", "[NAME]")
def _status(args: Args) -> int:
    """Print what exists of a cluster; without a name, the Ray of this machine."""
    from mlbench.wings.kuberay.provisioning import status

    if not args.arguments:
        return OWN["status"].run(args)
    print(status.text(args.argument))
    return OK


@COMMAND.verb("plan", "PROVIDER", settings=SIZE)
def _plan(args: Args) -> int:
    """Print every command of `up` and the price an hour; needs no credentials.

    examples:
      python -m mlbench.cluster plan gke workers=8 hardware=gcp_n1_t4
    """
    from mlbench.wings.kuberay.provisioning import plan

    print(plan.text(plan.parse(args.argument, args.settings, creating=False)))
    return OK


@COMMAND.verb("up", "PROVIDER", settings=SIZE)
def _up(args: Args) -> int:
    r"""Create a cluster, with a spending cap and an expiry.

    examples:
      python -m mlbench.cluster up gke project=my-lab workers=8 \
          hours=4 max_usd=20
      python -m mlbench.cluster up existing context=lab
          Installs the KubeRay operator, unless it is there.
    """
    from mlbench.wings.kuberay.provisioning import lifecycle, plan

    spec = plan.parse(args.argument, args.settings, creating=True)
    print("\n".join(plan.price_lines(spec)), flush=True)
    lifecycle.up(spec, _report)
    print(f"{spec.name} is up; its context is {plan.provider(spec).context(spec)}")
    print(f"run on it: {plan.run_command(spec)}")
    print(f"delete it: {COMMAND.program} down {spec.name}")
    return OK


@COMMAND.verb("list")
def _list(args: Args) -> int:
    """Print the clusters made here, with state, price and expiry."""
    from mlbench.terminal import tables
    from mlbench.wings.kuberay.provisioning import status

    rows = status.rows()
    print(tables.table(status.HEADINGS, rows) if rows else "no cluster was made here")
    return OK


@COMMAND.verb("use", "NAME")
def _use(args: Args) -> int:
    """Make a cluster the current context of kubectl."""
    from mlbench.wings.kuberay.provisioning import status

    print(status.use(args.argument))
    return OK


@COMMAND.verb("cost", "NAME")
def _cost(args: Args) -> int:
    """Print what a cluster has cost so far at list prices."""
    from mlbench.wings.kuberay.provisioning import status

    print(status.cost(args.argument))
    return OK


@COMMAND.verb("dashboard", "NAME", settings={"port": ("8265", "of this machine, on 127.0.0.1")})
def _dashboard(args: Args) -> int:
    """Open a tunnel to the Ray dashboard of a cluster's run."""
    from mlbench.wings.kuberay.provisioning import status

    argv, address = status.dashboard(args.argument, port=args.settings["port"])
    return _open_tunnel("Ray's dashboard", argv, address)


@COMMAND.verb("mlflow", "NAME", settings={"port": ("5000", "of this machine, on 127.0.0.1")})
def _mlflow(args: Args) -> int:
    """Open a tunnel to the MLflow server of a cluster's runs (cluster.mlflow=true)."""
    from mlbench.wings.kuberay.provisioning import status

    argv, address = status.mlflow(args.argument, port=args.settings["port"])
    return _open_tunnel("MLflow", argv, address)


def _open_tunnel(what: str, argv: list[str], address: str) -> int:
    print(f"{what}: {address} until Ctrl-C, by a tunnel that only this machine reaches", flush=True)
    return subprocess.run(argv).returncode


@COMMAND.verb("down", "NAME")
def _down(args: Args) -> int:
    """Delete a cluster and show that nothing is left."""
    from mlbench.wings.kuberay.provisioning import lifecycle

    lifecycle.down(args.argument, _report)
    return OK


@COMMAND.verb(
    "reap", settings={"project": ("", "also list the expired clusters of a GKE project, made elsewhere")}
)
def _reap(args: Args) -> int:
    """Delete clusters that have expired or are half made, and what killed commands
    left here.
    """
    from mlbench import clock
    from mlbench.wings.kuberay.provisioning import lifecycle, status

    OWN["reap"].run(args)
    names = lifecycle.reap(_report, now=clock.wall())
    print(f"deleted: {', '.join(names)}" if names else "no cluster of this machine is expired or half made")
    if args.settings["project"]:
        print(status.elsewhere(args.settings["project"], now=clock.wall()))
    return OK


@COMMAND.verb(
    "prices",
    "[import FILE]",
    settings={
        "provider": ("", "import: gke or aws, whose catalogue it is"),
    },
)
def _prices(args: Args) -> int:
    """Print the prices in use; `prices import FILE` reads a public catalogue.

    examples:
      python -m mlbench.cluster prices import vms.csv provider=aws
          SkyPilot's catalogue of AWS.
    """
    from pathlib import Path

    from mlbench.config import price_file
    from mlbench.config.errors import UserError
    from mlbench.terminal import tables
    from mlbench.wings.kuberay.provisioning import catalog

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


def _report(line: str) -> None:
    print(line, flush=True)
