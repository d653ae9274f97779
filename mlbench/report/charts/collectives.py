"""Task 0 in a study: how long a collective takes and what bandwidth it reaches, over the message size."""

from collections.abc import Callable, Iterable
from typing import Any

from mlbench.analysis.speedup import Point, median
from mlbench.experiment.format import duration, with_prefix
from mlbench.report.chart import Axis, Chart, Trace, drawable
from mlbench.report.grouping import Family, Group, workers

SHOWN = "all_reduce"  # the collective of the charts; all others are in the records' tables


def measured(group: Group) -> bool:
    """Return whether these are runs of task 0; others have tables of their own kinds, e.g. of decoding."""
    return any(row.get("collective") for record in group.records for row in record.table)


def message_times(group: Group) -> Chart:
    """Return the median time of an all-reduce over the message size, one line a point and dtype."""
    return _over_size(
        group,
        "message_times",
        "Time of an all-reduce",
        y="median time of the slowest rank",
        column="p50_s",
        told=duration,
    )


def message_bandwidth(group: Group) -> Chart:
    """Return the bus bandwidth of an all-reduce over the message size, one line a point and dtype."""
    return _over_size(
        group,
        "message_bandwidth",
        "Bus bandwidth of an all-reduce",
        y="bus bandwidth",
        column="busbw_bytes_per_s",
        told=_rate,
    )


def said(group: Group) -> list[str]:
    """Return two sentences about task 0: the shortest time and the best bandwidth of each point."""
    times, rates = [], []
    for family in group.families:
        for point in family.points:
            name = f"{family.prefix}{workers(point)}"
            found = [(min(sizes), dtype, sizes) for dtype, sizes in _by_dtype(point, "p50_s").items()]
            if found:
                size, dtype, sizes = min(found, key=lambda one: one[0])
                times.append(f"{duration(median(sizes[size]))} with {name} ({_size(size)}, {dtype})")
            best = [
                (median(values), size, dtype)
                for dtype, sizes in _by_dtype(point, "busbw_bytes_per_s").items()
                for size, values in sizes.items()
            ]
            if best:
                rate, size, dtype = max(best)
                rates.append(f"{_rate(rate)} with {name} ({_size(size)}, {dtype})")
    if not times or not rates:
        return [f"No run measured {SHOWN}."]
    return [
        f"The smallest all-reduce takes {', '.join(times)}.",
        f"The best bus bandwidth is {', '.join(rates)}.",
    ]


def _size(size: float) -> str:
    return with_prefix(size, "B")


def _rate(value: float) -> str:
    return with_prefix(value, "B/s")


def _over_size(
    group: Group, name: str, title: str, *, y: str, column: str, told: Callable[[float], str]
) -> Chart:
    traces: list[Trace] = []
    for family in group.families:
        for point in family.points:
            for dtype, sizes in _by_dtype(point, column).items():
                traces.append(_line(family, point, dtype, sizes, style=len(traces), told=told))
    return Chart.of(
        name,
        title,
        about=group.about,
        x=Axis("message", "log", _powers_of_ten((x for t in traces for x in t.x), _size)),
        y=Axis(y, "log", _powers_of_ten((y for t in traces for y in t.y), told)),
        traces=traces,
        words=["Medians over the runs of a point; other collectives are in the records' tables."]
        if traces
        else [f"No run measured {SHOWN}."],
    )


def _by_dtype(point: Point, column: str) -> dict[str, dict[int, list[float]]]:
    """Return what the runs measured by dtype and bytes; rows with wrong elements tell nothing."""
    found: dict[str, dict[int, list[float]]] = {}
    for record in point.records:
        for row in record.table:
            if _counts(row) and drawable(row.get(column)):
                found.setdefault(row["dtype"], {}).setdefault(row["bytes"], []).append(row[column])
    return found


def _counts(row: dict[str, Any]) -> bool:
    return row.get("kind") == "times" and row.get("collective") == SHOWN and not row.get("wrong_elements")


def _line(
    family: Family,
    point: Point,
    dtype: str,
    sizes: dict[int, list[float]],
    *,
    style: int,
    told: Callable[[float], str],
) -> Trace:
    xs = sorted(sizes)
    ys = [median(sizes[size]) for size in xs]
    texts = [f"{_size(size)}: {told(y)}" for size, y in zip(xs, ys, strict=True)]
    label = f"{family.prefix}{workers(point)}, {dtype}"
    return Trace(label, xs, ys, "line", style, small=True, texts=texts)


def _powers_of_ten(values: Iterable[float], told: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    drawn = list(values)
    if not drawn:
        return ()
    powers = [10.0**power for power in range(-7, 13)]
    return tuple((power, told(power)) for power in powers if min(drawn) / 10 < power < max(drawn) * 10)
