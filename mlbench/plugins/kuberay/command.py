"""Add Kubernetes on gke, aws, kind or existing to `mlbench cluster` (docs/clusters.md)."""

from functools import partial

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay import dataset
from mlbench.plugins.kuberay.config import Config
from mlbench.plugins.kuberay.provisioning import plan
from mlbench.terminal.args import OK, Args, Command, Verb

SIZE = {
    "hardware": ("", "a profile of conf/hardware (default: T4 nodes in a cloud, otherwise local)"),
    "workers": ("4", "the most workers that run at once"),
    "spot": ("", "true or false, for workers only (default: true if the profile has a spot price)"),
    "hours": (
        "",
        "h until the cluster expires (plan: 4): then reap deletes it and node limits end its workers",
    ),
    "max_usd": ("", "USD: up refuses a cluster that could cost more until it expires"),
    "name": ("", "of the cluster (default: the hardware's)"),
    "project": ("", "gke: the project that pays (default: CLOUDSDK_CORE_PROJECT)"),
    "place": ("", "zone (gke) or region (aws) (default: that of the profile's price)"),
    "disk_gb": ("", "GB, boot disk of a node (default: 100)"),
    "allow": ("", "aws: who reaches the cluster's API, e.g. 203.0.113.7/32"),
    "context": ("", "existing: the kubeconfig's context"),
    "reservation": ("", "gke, aws: the workers' reservation (aws: block/cr-... is a Capacity Block)"),
    "flex_start": ("false", "gke: true waits for H100 and newer GPUs in Google's queue, up to 7 days"),
    "service_account": ("", "gke: of the nodes, which needs roles/container.defaultNodeServiceAccount"),
}
_report = partial(print, flush=True)
COMMAND = Command("cluster")  # its verbs become those of mlbench's command; `add` takes the verbs that it had
OWN: dict[str, Verb] = {}


def add(command: Command) -> None:
    """Add the verbs to the command. `status` and `reap` include the work of the command's previous ones."""
    OWN.update(command.verbs)
    command.verbs.update(COMMAND.verbs)


@COMMAND.verb("status", "[NAME]")
def _status(args: Args) -> int:
    """Print a cluster's resources or, without a name, the Ray of this machine."""
    from mlbench.plugins.kuberay.provisioning import status

    if not args.arguments:
        return OWN["status"].run(args)
    print(status.text(args.argument))
    return OK


@COMMAND.verb("plan", "PROVIDER", settings=SIZE)
def _plan(args: Args) -> int:
    """Print every command of `up` and the price an hour, without credentials.

    examples:
      mlbench cluster plan gke workers=8 hardware=gcp_n1_t4
    """
    print(plan.text(plan.parse(args.argument, args.settings, creating=False)))
    return OK


@COMMAND.verb("up", "PROVIDER", settings=SIZE)
def _up(args: Args) -> int:
    r"""Create a cluster, with a spending cap and an expiry.

    examples:
      mlbench cluster up gke project=my-lab workers=8 \
          hours=4 max_usd=20
      mlbench cluster up existing context=lab
          Installs the KubeRay operator, unless it is installed.
    """
    from mlbench.plugins.kuberay.provisioning import lifecycle

    spec = plan.parse(args.argument, args.settings, creating=True)
    print("\n".join(plan.price_lines(spec)), flush=True)
    lifecycle.up(spec, _report)
    print(f"{spec.name} is up, its context is {plan.provider(spec).context(spec)}")
    print(f"run on it: {plan.run_command(spec)}")
    print(f"delete it: {COMMAND.program} down {spec.name}")
    return OK


@COMMAND.verb("list")
def _list(args: Args) -> int:
    """Print the clusters made here, with state, price and expiry."""
    from mlbench.plugins.kuberay.provisioning import status
    from mlbench.terminal import tables

    rows = status.rows()
    print(tables.table(status.HEADINGS, rows) if rows else "no cluster was made here")
    return OK


@COMMAND.verb("down", "NAME")
def _down(args: Args) -> int:
    """Delete a cluster and show that nothing is left."""
    from mlbench.plugins.kuberay.provisioning import lifecycle

    lifecycle.down(args.argument, _report)
    return OK


@COMMAND.verb("reap")
def _reap(args: Args) -> int:
    """Delete expired and half-made clusters, and the remains of killed commands."""
    from mlbench.plugins.kuberay.provisioning import lifecycle

    OWN["reap"].run(args)
    names = lifecycle.reap(_report, now=clock.wall())
    print(f"deleted: {', '.join(names)}" if names else "no cluster of this machine is expired or half made")
    return OK


@COMMAND.verb("data", "prepare [name=value ...]")
def _data(args: Args) -> int:
    r"""Prepare a task's official data set in a claim or bucket, by a cluster's Job.

    examples:
      mlbench cluster data prepare task=resnet20 scale=official \
          cluster=kuberay cluster.image=IMAGE cluster.data_claim=datasets
    """
    if args.arguments[:1] != ["prepare"]:
        raise ClusterError("cluster data has one verb", hint=f"{COMMAND.program} data prepare task=NAME ...")
    experiment = compose(args.arguments[1:])
    if not isinstance(experiment.cluster, Config):
        raise ClusterError(
            f"cluster={experiment.cluster.name} has no Jobs",
            hint="give cluster=kuberay, or use mlbench data prepare for this machine",
        )
    dataset.prepare(experiment, args.arguments[1:], _report)
    return OK
