"""Specify a cluster for commands and journal, and the commands of a plan."""

import getpass
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from subprocess import CompletedProcess
from typing import Annotated, Literal

from pydantic import Field

from mlbench.config.errors import ClusterError
from mlbench.config.experiment import FrozenModel, Hardware, Machine, PositiveFloat, PositiveInt
from mlbench.record.cost import nodes
from mlbench.record.overhead import hourly

NAME = r"^[a-z][a-z0-9-]{0,29}$"  # accepted by all providers, with room for suffixes
HOUR = 3600  # s


class ClusterSpec(FrozenModel):
    """A cluster: its provider, its size, its expiry and its spending cap."""

    name: Annotated[str, Field(pattern=NAME)]
    id: str  # drawn for every cluster; resources with another id are not ours
    provider: Literal["gke", "aws", "kind", "existing"]
    hardware: Hardware
    workers: PositiveInt  # the most that run at once
    spot: bool  # of the workers; the head is always on demand
    hours: PositiveFloat  # h from `created` until it expires
    max_usd: PositiveFloat | None  # None: nothing is created
    owner: str
    created: float  # s since 1970
    project: str | None = None  # gke
    place: str | None = None  # zone (gke) or region (aws)
    disk_gb: PositiveInt | None = None  # GB, boot disk of a node; None: as in mlbench/record/overhead.yaml
    allow: str | None = None  # aws: the addresses that reach the cluster's API, in CIDR notation
    context: str | None = None  # existing: of the kubeconfig
    # of the workers: gke's reservation, or aws's of capacity or Capacity Block
    reservation: str | None = None
    flex_start: bool = False  # gke: workers wait for capacity of the Dynamic Workload Scheduler
    capacity_block: bool = False  # aws: the reservation is a Capacity Block
    service_account: str | None = None  # gke: of the nodes; None: the project's default one

    @property
    def nodes(self) -> int:
        """Return the number of worker nodes."""
        return nodes(self.hardware, self.workers)

    @property
    def expires(self) -> float:
        """Return when any user may delete the cluster (s since 1970)."""
        return self.created + self.hours * HOUR

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels or tags of all created resources."""
        return {
            "mlbench-cluster": self.name,
            "mlbench-id": self.id,
            "mlbench-owner": self.owner,
            # of two such texts the later one is the greater
            "mlbench-expires": datetime.fromtimestamp(self.expires, UTC).strftime("%Y%m%dt%H%M%Sz"),
        }

    @property
    def machine(self) -> Machine:
        """Return the workers' machine. Only for a cluster of a cloud, for which `plan.parse` requires one."""
        assert self.hardware.machine is not None
        return self.hardware.machine

    @property
    def billed(self) -> bool:
        """Return whether a cloud bills the cluster."""
        return self.provider in ("gke", "aws")

    def usd_per_hour(self, *, workers: bool = True) -> dict[str, float]:
        """Return USD an hour by part, if a cloud bills it. Without workers, the cost of an idle cluster."""
        nodes = self.nodes if workers else 0
        return hourly(self.hardware, nodes, spot=self.spot, disk_gb=self.disk_gb)


@dataclass(frozen=True)
class ProvisioningStep:
    """One command.

    - argv: its words, run without a shell.
    - purpose: a few words on its effect.
    - unless: a command that succeeds if the step is not needed. Resources that it finds are not ours to
      delete.
    - input: the command's standard input.
    - patience: phrases of an error after which the step is tried again, as another operation is under way.
    """

    argv: tuple[str, ...]
    purpose: str
    unless: tuple[str, ...] | None = None
    input: str | None = None
    patience: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resource:
    """A resource under the cluster's name, whether it carries the cluster's id, and its deletion."""

    kind: str
    name: str
    ours: bool
    delete: ProvisioningStep


Run = Callable[[Sequence[str]], CompletedProcess[str]]


def require_name(name: str) -> str:
    """Return the name. Raises UserError for one that no cluster can have."""
    if not re.fullmatch(NAME, name):
        raise ClusterError(
            f"{name!r} cannot be the name of a cluster",
            hint="lower-case letters, digits and -, beginning with a letter, at most 30",
        )
    return name


def owner() -> str:
    """Return this user's name as clouds accept it in a label."""
    with suppress(OSError, KeyError):  # a user without a name, e.g. in a container
        return re.sub(r"[^a-z0-9-]", "-", getpass.getuser().lower())[:40]
    return "unknown"
