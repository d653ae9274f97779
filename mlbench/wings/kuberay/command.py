"""What `python -m mlbench.cluster` does with Kubernetes on gke, aws, kind or existing (docs/clusters.md)."""

from functools import partial

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.terminal.args import OK, Args, Command, Verb
from mlbench.wings.kuberay import dataset
from mlbench.wings.kuberay.config import Config
from mlbench.wings.kuberay.provisioning import plan

SIZE = {
    "hardware": ("", "a profile of conf/hardware; default: T4 nodes in a cloud, local elsewhere"),
    "workers": ("4", "the most workers that run at once"),
    "spot": ("", "true or false; default: true where the profile states a spot price. Of the workers alone"),
    "hours": ("", "h until the cluster expires (plan: 4); reap deletes it then, node limits end its workers"),
    "max_usd": ("", "USD; up refuses a cluster that could cost more until it expires"),
    "name": ("", "of the cluster; default: the hardware's"),
    "project": ("", "gke: the project that pays; default: CLOUDSDK_CORE_PROJECT"),
    "place": ("", "zone (gke) or region (aws); default: where the profile's price was read"),
    "disk_gb": ("", "GB, boot disk of a node; default: 100"),
    "allow": ("", "aws: who reaches the cluster's API, e.g. 203.0.113.7/32"),
    "context": ("", "existing: the kubeconfig's context"),
}
_report = partial(print, flush=True)
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
    from mlbench.wings.kuberay.provisioning import lifecycle

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


@COMMAND.verb("down", "NAME")
def _down(args: Args) -> int:
    """Delete a cluster and show that nothing is left."""
    from mlbench.wings.kuberay.provisioning import lifecycle

    lifecycle.down(args.argument, _report)
    return OK


@COMMAND.verb("reap")
def _reap(args: Args) -> int:
    """Delete clusters that have expired or are half made, and what killed commands
    left here.
    """
    from mlbench.wings.kuberay.provisioning import lifecycle

    OWN["reap"].run(args)
    names = lifecycle.reap(_report, now=clock.wall())
    print(f"deleted: {', '.join(names)}" if names else "no cluster of this machine is expired or half made")
    return OK


@COMMAND.verb("data", "prepare [name=value ...]")
def _data(args: Args) -> int:
    r"""Prepare a task's official data set in a claim or bucket, by a cluster's Job.

    examples:
      python -m mlbench.cluster data prepare task=resnet20 scale=official \
          cluster=kuberay cluster.image=IMAGE cluster.data_claim=datasets
    """
    if args.arguments[:1] != ["prepare"]:
        raise UserError("cluster data can do one thing", hint=f"{COMMAND.program} data prepare task=NAME ...")
    experiment = compose(args.arguments[1:])
    if not isinstance(experiment.cluster, Config):
        raise UserError(
            f"cluster={experiment.cluster.name} has no Jobs",
            hint="say cluster=kuberay; python -m mlbench.data prepare prepares data on this machine",
        )
    dataset.prepare(experiment, args.arguments[1:], _report)
    return OK
