"""Everything that one run measured, as lines for people."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from mlbench.record import format
from mlbench.record.cost import Bill
from mlbench.record.record import Record
from mlbench.tasks import rcp, registry
from mlbench.terminal import time_breakdown
from mlbench.terminal.result_card import (
    LABEL,
    NO_RESULT,
    UNFINISHED,
    WIDTH,
    advice,
    heading,
    verdict,
    wrapped,
)

SERIES = 10  # rows of a kind; of more the last is shown
MARKED = ("next", "worker failures", "deviation", "caveat", "implausible", "warning")  # labels in yellow

Rows = list[tuple[str, str]]


def full(record: Record, width: int = WIDTH) -> list[Text]:
    """Return everything that was measured, in lines of at most `width` columns."""
    lines = heading(record, wrapped(verdict(record), width))
    for label, text in rows(record):
        style = "yellow" if label in MARKED else ""
        for number, line in enumerate(wrapped(text, width - LABEL - 2)):
            lines.append(Text.assemble((f"  {'' if number else label:{LABEL}}", "dim"), (line, style)))
    return lines


def rows(record: Record) -> Rows:
    """Return label and text of every line of the full card that has something to say."""
    lines: list[tuple[str, str | None]] = [
        ("next", advice(record)),
        ("what", _what(record)),
        *time_breakdown.lines(record),
        ("best in budget", _best_in_budget(record)),
        *_facts(record),
        *profile(record),
        *network(record),
        ("data", _data(record)),
        ("cost", _cost(record)),
        ("transport", _transport(record)),
        ("energy", _energy(record)),
        ("worker failures", _failures(record)),
        *(("deviation", str(deviation)) for deviation in record.deviations),
        *(("caveat", caveat) for caveat in record.caveats),
        ("implausible", rcp.warning([record])),
        *(("warning", warning) for warning in record.warnings),
    ]
    if record.eligible:
        lines.append(("eligible", "yes: one of the runs that an official point needs"))
    elif record.status not in NO_RESULT:
        lines += [("not official", reason) for reason in record.official_reasons]
    return [(label, format.printable(text)) for label, text in lines if text]


def profile(record: Record) -> Rows:
    """Return where the profiler's traces are, and the dearest operators, one a row."""
    found = record.profile
    if found is None:
        return []
    device = "device" if record.experiment.backend.device == "cuda" else "CPU"
    where = (
        f"{format.counted(found.steps, 'step')} of each rank, in the run's folder: {', '.join(found.files)}"
    )
    rows = [("profile", f"{where}; https://ui.perfetto.dev opens rank0.trace.json")]
    for number, one in enumerate(found.operators, start=1):
        calls, seconds = format.counted(one.calls, "call"), format.duration(one.seconds)
        share = f"{format.percent(one.share)} of {device} time"
        rows.append((f"operator {number}", f"{one.name}: {share}, {calls}, {seconds}"))
    return rows


def network(record: Record) -> Rows:
    """Return how hosts were emulated, and what was measured of each link before the run."""
    links = record.links
    if links is None:
        return []
    rows = [("network", f"{format.counted(links.hosts, 'emulated host')}, links by {links.kind}")]
    for one in links.measured:
        text = (
            f"round trip {one.round_trip_ms:.3g} ms (profile {one.expected_round_trip_ms:g}), "
            f"{one.bandwidth_mbit_s:.4g} Mbit/s there ({one.expected_bandwidth_mbit_s:g}), "
            f"{one.bandwidth_back_mbit_s:.4g} Mbit/s back ({one.expected_bandwidth_back_mbit_s:g})"
        )
        lost = "" if one.lost_percent is None else f", {one.lost_percent:.2g} % of packets lost"
        rows.append((f"hosts {one.source} and {one.target}", text + lost))
    return rows


def _what(record: Record) -> str:
    experiment = record.experiment
    threads = {node.threads_per_worker for node in record.nodes if node.threads_per_worker is not None}
    each = f" x {format.counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    return (
        f"{experiment.task.name}, scale={experiment.scale}, dataset={experiment.task.dataset}, "
        f"recipe={experiment.task.recipe}, "
        f"division={experiment.division.name}, {format.counted(record.workers, 'worker')}{each}, "
        f"{experiment.backend.name}, hardware={experiment.hardware.name}, network={experiment.network}, "
        f"cluster={experiment.cluster.name}, seed={record.seed}"
    )


def _transport(record: Record) -> str:
    """Return what the backend's module says of itself, once for all nodes that say the same."""
    said = (", ".join(f"{name} {text}" for name, text in node.transport.items()) for node in record.nodes)
    return "; ".join(dict.fromkeys(filter(None, said)))


def _best_in_budget(record: Record) -> str | None:
    if record.accuracy_after_time is None:
        return None
    task = record.experiment.task
    value = format.measured(record.accuracy_after_time, task.metric_unit, record.goal)
    return f"{task.metric} {value} within {format.duration(task.time_budget_s)}"


def _cost(record: Record) -> str | None:
    name, cost = record.experiment.hardware.name, record.cost
    if cost is None:
        if record.status in UNFINISHED:
            return None
        if record.experiment.hardware.price is not None:
            return f"not priced: the machine is not what hardware={name} states, see the caveats"
        why = "this machine has no list price" if name == "local" else "its profile states none"
        return (
            f"not priced: hardware={name} has no price, {why}; choose a hardware profile that has one "
            "(--help lists them) or write conf/hardware/NAME.yaml"
        )
    text = f"{format.usd(cost.wall_usd)} on demand for the whole command on "
    text += format.counted(cost.nodes, "node")
    if cost.goal_usd is not None:
        text += f", {format.usd(cost.goal_usd)} from the first data to the goal"
    if cost.wall_usd_spot is None:
        text += "; no spot price stated"
    else:
        text += f"; spot {format.usd(cost.wall_usd_spot)}"
        if cost.goal_usd_spot is not None:
            text += f", {format.usd(cost.goal_usd_spot)} to the goal"
    text += f"; prices of {cost.date}: {cost.source}"
    return f"{text}. {_whole_bill(cost.whole)}" if cost.whole else text


def _whole_bill(bill: Bill) -> str:
    """Return what the cluster is billed for, by part, and what is not in it."""
    parts = ", ".join(f"{part} {format.usd(usd)}" for part, usd in bill.parts.items())
    waited = "without provisioning, which was not measured"
    if bill.provisioning_s is not None:
        waited = f"{format.duration(bill.provisioning_s)} of provisioning among them"
    spot = "" if bill.usd_spot is None else f"; with spot workers {format.usd(bill.usd_spot)}"
    return (
        f"The whole cluster: {format.usd(bill.usd)} on demand for {format.duration(bill.billed_s)}, {waited} "
        f"({parts}){spot}; prices from {bill.date} on; not in it: {bill.lacking}"
    )


def _failures(record: Record) -> str | None:
    if record.status == "failed" and len(record.restarts) == 1:
        return None  # it is in the verdict
    reasons = [reason for restart in record.restarts for reason in format.failures(restart.failures)]
    return f"{len(record.restarts)}; {'; '.join(reasons)}" if reasons else None


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the rows of the task's table, unless a report of the task's own presents them.

    Of a kind with many rows, a series, the last; the record has all.
    """
    table = [] if registry.report(record.experiment.task.name) else record.table
    count = Counter(row["kind"] for row in table)
    last = {row["kind"]: row for row in table}
    for row in table:
        if count[row["kind"]] > SERIES and row is not last[row["kind"]]:
            continue
        values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
        texts = (
            f"{name.replace('_', ' ')} {format.number(value) if isinstance(value, float) else value}"
            for name, value in values.items()
        )
        yield row["kind"].replace("_", " "), ", ".join(texts)


def _data(record: Record) -> str | None:
    """Return how warm the start was, and what part of the training rows an epoch takes."""
    cached = [node.data_cached for node in record.nodes if node.data_cached is not None]
    parts = [f"{format.percent(min(cached))} were in memory when the clock started"] if cached else []
    rows = record.data_rows.get("train")
    if rows and record.epochs and record.sample_unit in ("images", "rows"):
        parts.append(
            f"an epoch takes {format.percent(record.samples / record.epochs / rows)} of {rows:,} rows"
        )
    return "; ".join(parts) or None


def _energy(record: Record) -> str | None:
    """Return what was read; nothing where nothing could be."""
    found = record.energy
    if found is None:
        return None
    parts = " + ".join(f"{name.replace('_', ' ')} {format.energy(j)}" for name, j in found.parts.items())
    text = (
        f"{format.energy(found.joules)} {'to the goal' if found.goal_joules else 'while training'} ({parts})"
    )
    if found.joules_per_sample is not None:
        text += f", {format.energy(found.joules_per_sample)} a sample"
    if found.carbon_g is not None:
        text += f"; {format.number(found.carbon_g)} g CO2e ({found.carbon_source})"
    return text
