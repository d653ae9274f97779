"""Plan `up`: every command, and the price an hour."""

import math
import secrets
import shlex
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from mlbench import clock
from mlbench.config import compose
from mlbench.config.errors import ClusterError, suggest
from mlbench.config.experiment import Hardware
from mlbench.plugins.kuberay.config import require_fabric, require_kernels
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, owner, require_name
from mlbench.record import format
from mlbench.record.overhead import overhead

BLOCK = "block/"  # begins the name of a Capacity Block
DEFAULT_HARDWARE = {
    "gke": "gcp_n1_t4", "aws": "aws_g4dn_xlarge", "kind": "local", "existing": "local"
}  # fmt: skip


def provider(spec: ClusterSpec) -> ModuleType:
    """Return the module of a cluster's provider."""
    return import_module(f"mlbench.plugins.kuberay.provisioning.{spec.provider}")


def parse(name: str, settings: Mapping[str, str], *, creating: bool) -> ClusterSpec:
    """Return the specification of a command line. Raises UserError for every mistake in it."""
    if name not in DEFAULT_HARDWARE:
        raise ClusterError(f"{name!r} is not a provider{suggest(name, [*DEFAULT_HARDWARE])}")
    chosen = settings["hardware"] or DEFAULT_HARDWARE[name]
    hardware = compose.hardware(chosen)
    if name in ("gke", "aws") and (hardware.machine is None or hardware.machine.provider != name):
        raise ClusterError(
            f"hardware={chosen} is not a machine of {name}", hint=f"e.g. hardware={DEFAULT_HARDWARE[name]}"
        )
    spec = ClusterSpec(
        name=require_name(settings["name"] or chosen.replace("_", "-")),
        id=secrets.token_hex(6),
        provider=name,  # type: ignore[arg-type]  (checked above)
        hardware=hardware,
        workers=int(_number(settings, "workers", 1)),
        spot=_spot(settings, hardware),
        hours=_number(settings, "hours", 0.1) if settings["hours"] else 4.0,
        max_usd=_number(settings, "max_usd", 0.01) if settings["max_usd"] else None,
        owner=owner(),
        created=math.floor(clock.wall()),
        project=settings["project"] or None,
        place=settings["place"] or None,
        disk_gb=int(_number(settings, "disk_gb", 50)) if settings.get("disk_gb") else None,
        allow=settings["allow"] or None,
        context=settings["context"] or None,
        reservation=settings.get("reservation", "").removeprefix(BLOCK) or None,
        capacity_block=settings.get("reservation", "").startswith(BLOCK),
        flex_start=settings.get("flex_start") == "true",
        service_account=settings.get("service_account") or None,
    )
    _require_capacity(spec)
    if spec.billed:
        require_kernels(hardware)
        require_fabric(hardware, spec.nodes, {})
    spec = provider(spec).complete(spec, creating=creating)
    if creating:
        _require_cap(spec, settings)
    return spec


def text(spec: ClusterSpec) -> str:
    """Return the commands in order, then the price an hour and what it buys."""
    steps = provider(spec).create(spec)
    size = (
        f"{format.counted(spec.workers, 'worker')} on {format.counted(spec.nodes, 'node')} of "
        f"{spec.hardware.name}" + (f" in {spec.place}" if spec.place else "")
    )
    lines = [f"# {spec.provider}: {size} (this command changes nothing)"]
    for number, step in enumerate(steps, 1):
        condition = f", unless `{shlex.join(step.unless)}` succeeds" if step.unless else ""
        lines += [f"# {number}. {step.purpose}{condition}", shlex.join(step.argv)]
        if step.input:
            lines.append(f"#    reads: {step.input}")
    return "\n".join([*lines, "", *price_lines(spec)])


def price_lines(spec: ClusterSpec) -> list[str]:
    """Return the price an hour by part, with dates and sources, and what remains when no run uses it."""
    if not spec.billed:
        return ["price: unknown (no cloud resources are requested)"]
    parts, price, beside = spec.usd_per_hour(), spec.hardware.price, overhead(spec.provider)
    assert price is not None  # `usd_per_hour` has refused it
    kind = "spot" if spec.spot else "on demand"
    idle = sum(spec.usd_per_hour(workers=False).values())
    lines = [
        f"price an hour: {format.usd(sum(parts.values()))} with {format.counted(spec.nodes, 'worker node')}"
    ]
    lines += [f"  {part:14} {value:8.4f} USD" + (f"  ({kind})" if part == "workers" else "")
              for part, value in parts.items()]  # fmt: skip
    lines.append(
        f"  until it expires after {spec.hours:g} h: {format.usd(spec.hours * sum(parts.values()))} at most"
    )
    if spec.provider == "gke":
        lines.append(f"  without a run its workers go, and {format.usd(idle)} an hour remain")
    lines.append(f"prices: {price.source}, {price.date}; {beside.source}, {beside.date}")
    lines.append(f"not in it: {beside.lacking}")
    if spec.spot:
        lines.append("spot prices change by the hour, and the bill is your provider's, not this")
    return lines


def run_command(spec: ClusterSpec) -> str:
    """Return the command of a run on the cluster, with all its workers and placeholders for `local`."""
    command = ["mlbench", "run", f"workers={spec.workers}", f"hardware={spec.hardware.name}"]
    if spec.hardware.cpus is None:
        command += ["hardware.cpus=CPUS", "hardware.memory_gib=GIB", "hardware.workers_per_node=1"]
    command += ["cluster=kuberay", f"cluster.context={provider(spec).context(spec)}"]
    command += ["backend=nccl"] if spec.hardware.gpus else []
    command += ["cluster.spot=true"] if spec.spot else []
    if spec.flex_start:  # pods have to request it (GKE, "About flex-start")
        labels = 'mlbench/role: worker, cloud.google.com/gke-flex-start: "true"'
        command += [
            f"cluster.worker_node_labels={{{labels}}}",
            "cluster.provision_s=86400",
            "cluster.limit_s=172800",
        ]
    command += ["cluster.autoscaling=true"] if spec.provider == "gke" else []  # its pool begins with no node
    return shlex.join([*command, "cluster.image=REPOSITORY@sha256:DIGEST"])


def _require_capacity(spec: ClusterSpec) -> None:
    """Raise UserError for ways to get nodes that exclude each other, or that a provider lacks."""
    ways = {"reservation=": spec.reservation, "flex_start=true": spec.flex_start, "spot=true": spec.spot}
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) > 1 or (spec.flex_start or spec.service_account) and spec.provider != "gke":
        name = " and ".join(chosen) if len(chosen) > 1 else "flex_start= or service_account="
        raise ClusterError(f"{name} cannot be used with {spec.provider}", hint="give spot=false")


def _require_cap(spec: ClusterSpec, settings: Mapping[str, str]) -> None:
    """Raise UserError without a spending cap and an expiry, or if the cluster could cost more."""
    if not spec.billed:
        return
    if not settings["hours"] or spec.max_usd is None:
        raise ClusterError(
            "up needs an expiry and a spending cap",
            hint="give hours=4 max_usd=20, `plan` with the same words prints the price",
        )
    most = spec.hours * sum(spec.usd_per_hour().values())
    if most > spec.max_usd:
        fitting = spec.max_usd / most * spec.hours
        raise ClusterError(
            f"{spec.hours:g} h could cost {format.usd(most)}, which is above max_usd={spec.max_usd:g}",
            hint=f"give hours={fitting:.1f}, fewer workers, or another cap",
        )


def _number(settings: Mapping[str, str], setting: str, least: float) -> float:
    try:
        value = float(settings[setting])
    except ValueError:
        raise ClusterError(f"{setting}={settings[setting]} is not a number") from None
    if not least <= value < float("inf") or (setting in ("workers", "disk_gb") and value != int(value)):
        raise ClusterError(f"{setting}={settings[setting]} must be a number of at least {least:g}")
    return value


def _spot(settings: Mapping[str, str], hardware: Hardware) -> bool:
    choices = {"true": True, "false": False, "": bool(hardware.price and hardware.price.usd_per_hour_spot)}
    if settings["spot"] not in choices:
        raise ClusterError(f"spot={settings['spot']} must be true or false")
    return choices[settings["spot"]]
