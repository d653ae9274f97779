"""What clusters there are, what exists of them, and what they have cost so far."""

import json

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.record import format
from mlbench.record.overhead import overhead
from mlbench.wings.kuberay.provisioning import gke, journal, kubernetes
from mlbench.wings.kuberay.provisioning.journal import Journal
from mlbench.wings.kuberay.provisioning.lifecycle import run
from mlbench.wings.kuberay.provisioning.plan import provider
from mlbench.wings.kuberay.provisioning.spec import HOUR, label_time

HEADINGS = ("name", "provider", "state", "hardware", "workers", "USD/h", "expires", "so far")


def rows() -> list[list[str]]:
    """Return a row for every cluster that is not gone, under HEADINGS."""
    now = clock.wall()
    return [
        [
            one.spec.name,
            one.spec.provider,
            one.state if one.spec.expires > now else f"{one.state}, expired",
            one.spec.hardware.name,
            str(one.spec.workers),
            format.number(sum(one.spec.usd_per_hour().values())) if one.spec.billed else "-",
            clock.iso(one.spec.expires)[:16] if one.spec.billed else "-",
            format.usd(usd_at_most(one, now)) if one.spec.billed else "-",
        ]
        for one in journal.journals()
        if one.state != "gone"
    ]


def usd_at_most(log: Journal, now: float) -> float:
    """Return what a cluster has cost by `now` with all its workers all the time, in USD at list prices."""
    return _hours(log, now) * sum(log.spec.usd_per_hour().values())


def _hours(log: Journal, now: float) -> float:
    """Return the hours that a cloud has billed of a cluster by `now`."""
    return max((log.ended or now) - log.spec.created, overhead(log.spec.provider).minimum_s) / HOUR


def text(name: str) -> str:
    """Return what exists under the cluster's name, by asking its provider."""
    log = journal.load(name)
    lines = [f"{name}: {log.spec.provider}, {log.state}"]
    if log.state != "gone":
        resources = provider(log.spec).inventory(log.spec, run)
        lines += [f"  {one.kind} {one.name}" + ("" if one.ours else ": not ours") for one in resources]
        lines += [] if resources else ["  nothing exists"]
        if log.spec.billed:
            left = log.spec.expires - clock.wall()
            ago = f"{format.duration(-left)} ago: reap deletes it"
            lines.append(f"  expires {f'in {format.duration(left)}' if left > 0 else ago}")
    return "\n".join(lines)


def cost(name: str) -> str:
    """Return the cluster's bill so far: an upper bound, by part, and how far its cap is."""
    log = journal.load(name)
    spec = log.spec
    if not spec.billed:
        return f"{name}: {spec.provider} is billed by nobody that mlbench knows"
    hours = _hours(log, clock.wall())
    parts, idle = spec.usd_per_hour(), spec.usd_per_hour(workers=False)
    lines = [f"{name}: {log.state}, {format.duration(hours * HOUR)} since it was asked for"]
    lines += [f"  {part:14} {hours * usd:8.4f} USD" for part, usd in parts.items()]
    lines.append(f"  at most {format.usd(hours * sum(parts.values()))}: all workers all the time")
    if spec.provider == "gke":
        lines.append(f"  at least {format.usd(hours * sum(idle.values()))}: no worker ever")
    whole = format.usd(spec.hours * sum(parts.values()))
    lines.append(f"  until it expires at most {whole}, cap {format.usd(spec.max_usd or 0)}")
    lines.append(f"list prices, not your bill; not in it: {overhead(spec.provider).lacking}")
    return "\n".join(lines)


def dashboard(name: str, *, port: str) -> tuple[list[str], str]:
    """Return the command of a tunnel to Ray's dashboard of the cluster's run, and its address here."""
    find = ("get", "services", "--selector", "ray.io/node-type=head", "--output=json")
    services = [one["metadata"]["name"] for one in json.loads(_kubectl_answer(name, *find))["items"]]
    if not services:
        raise UserError(f"no run of mlbench is on {name} now", hint="Ray's dashboard lives as long as a run")
    return _tunnel(name, services[-1], f"{port}:8265")


def _kubectl_answer(name: str, *words: str) -> str:
    return kubernetes.answer(run, (*_kubectl(name), *words))


def _tunnel(name: str, service: str, ports: str) -> tuple[list[str], str]:
    words = ("port-forward", "--address", "127.0.0.1", f"service/{service}", ports)
    return [*_kubectl(name), *words], f"http://127.0.0.1:{ports.partition(':')[0]}"


def _kubectl(name: str) -> tuple[str, ...]:
    log = journal.load(name)
    context = provider(log.spec).context(log.spec)
    return ("kubectl", "--context", context, "--namespace", kubernetes.NAMESPACE)


def elsewhere(project: str, *, now: float) -> str:
    """Return the expired clusters of a GKE project that other machines made, each with what deletes it."""
    here, today = {one.spec.id for one in journal.journals()}, label_time(now)
    lines = [
        f"{labels['mlbench-cluster']} of {labels.get('mlbench-owner')} has expired "
        f"({labels.get('mlbench-expires')}): gcloud container clusters delete "
        f"mlbench-{labels['mlbench-cluster']} --zone={labels['zone']} --project={project}"
        for labels in gke.expired(project, run)
        if labels["mlbench-id"] not in here and labels.get("mlbench-expires", today) < today
    ]
    return "\n".join(lines) or f"{project} has no expired cluster of mlbench"
