"""List the clusters, their existing resources, and their cost so far."""

from mlbench import clock
from mlbench.plugins.kuberay.provisioning import journal
from mlbench.plugins.kuberay.provisioning.journal import Journal
from mlbench.plugins.kuberay.provisioning.lifecycle import run
from mlbench.plugins.kuberay.provisioning.plan import provider
from mlbench.plugins.kuberay.provisioning.spec import HOUR
from mlbench.record import format
from mlbench.record.overhead import overhead

HEADINGS = ("name", "provider", "state", "hardware", "workers", "USD/h", "expires", "so far")


def rows() -> list[list[str]]:
    """Return a row for every cluster that is not gone, under HEADINGS."""
    now = clock.wall()
    logs, faults = journal.journals()
    return [
        [
            log.spec.name,
            log.spec.provider,
            log.state if log.spec.expires > now else f"{log.state}, expired",
            log.spec.hardware.name,
            str(log.spec.workers),
            format.number(sum(log.spec.usd_per_hour().values())) if log.spec.billed else "-",
            clock.iso(log.spec.expires)[:16] if log.spec.billed else "-",
            format.usd(usd_at_most(log, now)) if log.spec.billed else "-",
        ]
        for log in logs
        if log.state != "gone"
    ] + [[name, "-", "cannot be read", *"-----"] for name in faults]


def usd_at_most(log: Journal, now: float) -> float:
    """Return the cost of a cluster until `now` with all workers all the time, in USD at list prices."""
    billed_s = max((log.ended or now) - log.spec.created, overhead(log.spec.provider).minimum_s)
    return billed_s / HOUR * sum(log.spec.usd_per_hour().values())


def text(name: str) -> str:
    """Return the existing resources under the cluster's name, by a query to its provider."""
    log = journal.load(name)
    lines = [f"{name}: {log.spec.provider}, {log.state}"]
    if log.state != "gone":
        resources = provider(log.spec).inventory(log.spec, run)
        lines += [
            f"  {resource.kind} {resource.name}" + ("" if resource.ours else ": not ours")
            for resource in resources
        ]
        lines += [] if resources else ["  nothing exists"]
        if log.spec.billed:
            left = log.spec.expires - clock.wall()
            ago = f"{format.duration(-left)} ago: reap deletes it"
            lines.append(f"  expires {f'in {format.duration(left)}' if left > 0 else ago}")
            usd, cap = usd_at_most(log, clock.wall()), log.spec.max_usd or 0
            lines.append(f"  at most {format.usd(usd)} so far at list prices, cap {format.usd(cap)}")
    return "\n".join(lines)
