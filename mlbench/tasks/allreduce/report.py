"""The table of task 0 as charts, sentences and lines on a terminal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbench.analysis import published as references
from mlbench.record import format

if TYPE_CHECKING:  # Altair is for the charts alone
    import altair as alt
    from rich.console import Group

Row = dict[str, Any]
Curve = list[tuple[float, float]]  # sizes in bytes with a value each
Line = tuple[str, str, str, str, int]  # backend, device, collective, dtype, workers
SHOWN_BYTES = (1_000, 1_000_000)  # sizes in the terminal's table, in addition to the smallest and the largest
GIGABIT = 1e9 / 8  # bytes
PUBLISHED_DTYPE, PUBLISHED_BYTES = "float32", 4  # what all published studies measured, and its size
UNITS_S = {"ms": 1e-3, "us": 1e-6, "s": 1.0}  # seconds of the units in which times were published

_rate = partial(format.with_prefix, unit="B/s")
_size = partial(format.with_prefix, unit="B")


class MessageColumn(NamedTuple):
    """A column of the table that is drawn over the message size."""

    name: str
    column: str
    title: str
    axis: str
    text: Callable[[float], str]


QUANTITIES = (
    MessageColumn("time", "p50_s", "Median time", "median time of the slowest rank", format.duration),
    MessageColumn("bandwidth", "busbw_bytes_per_s", "Bus bandwidth", "bus bandwidth", _rate),
)


def lines(table: Iterable[Row], kind: str = "times") -> dict[Line, list[Row]]:
    """Return the rows of a kind by what they share, in the order of the table. Sizes ascend."""
    groups: dict[Line, list[Row]] = {}
    for row in table:
        if row["kind"] == kind and not row["wrong_elements"]:
            line = (row["backend"], row["device"], row["collective"], row["dtype"], row["workers"])
            groups.setdefault(line, []).append(row)
    return groups


def charts(
    tables: Mapping[str, Sequence[Row]], *, about: str, network_gbit_per_s: float | None = None
) -> "list[alt.LayerChart]":
    """Return median time and bus bandwidth over the message size for each collective that was measured.

    - tables: by label the rows of one or more runs. If several measured the same size, it shows their median.
    - network_gbit_per_s: the line rate, drawn across the bandwidths if it is known.
    """
    by_label = {label: lines(table) for label, table in tables.items()}
    collectives = dict.fromkeys(line[2] for groups in by_label.values() for line in groups)
    drawn = [
        _over_size(by_label, collective, quantity, about=about, network_gbit_per_s=network_gbit_per_s)
        for collective in collectives
        for quantity in QUANTITIES
    ]
    return [*drawn, *_beside_published(by_label, about=about)]


def _beside_published(
    by_label: Mapping[str, dict[Line, list[Row]]], *, about: str
) -> "Iterator[alt.LayerChart]":
    """Yield our all-reduce times of PUBLISHED_DTYPE with published ones of as many workers, if any.

    Ours are medians, the published ones are as in their study. Hardware and network are not the same.
    """
    ours = [
        (label, line, rows)
        for label, groups in by_label.items()
        for line, rows in groups.items()
        if (line[2], line[3]) == ("all_reduce", PUBLISHED_DTYPE)
    ]
    published: dict[str, list[tuple[float, float]]] = {}
    for reference in references.load("allreduce"):
        statistic = reference.metric.removesuffix("_time")
        if reference.dtype != PUBLISHED_DTYPE or reference.workers not in {line[4] for _, line, _ in ours}:
            continue
        if reference.elements is None or reference.unit not in UNITS_S or statistic not in ("mean", "median"):
            continue
        setting = f"{reference.backend} {reference.device} x{reference.workers}"
        where = f"{reference.publisher} {reference.date}, {setting}, {statistic}"
        size = reference.elements * PUBLISHED_BYTES
        published.setdefault(where, []).append((size, reference.value * UNITS_S[reference.unit]))
    if not published:
        return
    curves = [
        (f"{label or f'{line[0]} x{line[4]}'}, here, median", _curve(rows, "p50_s"), False)
        for label, line, rows in ours
    ]
    curves += [(name, sorted(points), True) for name, points in published.items()]
    yield _over_messages(
        "all_reduce_published",
        f"All-reduce here and as published: {PUBLISHED_DTYPE}",
        curves,
        y="time",
        text=format.duration,
        about=f"{about} (the published times are from other machines and networks)",
    )


def _over_size(
    by_label: Mapping[str, dict[Line, list[Row]]],
    collective: str,
    quantity: MessageColumn,
    *,
    about: str,
    network_gbit_per_s: float | None,
) -> "alt.LayerChart":
    curves = []
    for label, groups in by_label.items():
        for (backend, _, name, dtype, workers), rows in groups.items():
            if name == collective:
                name = ", ".join(filter(None, (label or f"{backend} x{workers}", dtype)))
                curves.append((name, _curve(rows, quantity.column), False))
    rate = network_gbit_per_s if quantity.column == "busbw_bytes_per_s" else None
    return _over_messages(
        f"{collective}_{quantity.name}",
        f"{quantity.title}: {collective}",
        curves,
        y=quantity.axis,
        text=quantity.text,
        about=about,
        line_rate_gbit_per_s=rate,
    )


def _over_messages(
    name: str,
    title: str,
    curves: Sequence[tuple[str, Curve, bool]],
    *,
    y: str,
    text: Callable[[float], str],
    about: str,
    line_rate_gbit_per_s: float | None = None,
) -> "alt.LayerChart":
    """Return curves over the message size, each with its name and whether others published it."""
    from mlbench.analysis import marks

    looks: dict[str, marks.Look] = {}
    rows: list[marks.Row] = []
    for style, (series, curve, published) in enumerate(curves):
        looks.setdefault(series, marks.look(style, hollow=published))
        rows += [
            {"series": series, "trace": style, "x": size, "y": value, "text": f"{_size(size)}: {text(value)}"}
            for size, value in curve
        ]
    sizes = _powers_of_ten((row["x"] for row in rows), _size)
    line_rate = []
    if line_rate_gbit_per_s is not None:
        looks[series := f"line rate {line_rate_gbit_per_s:g} Gbit/s"] = marks.REFERENCE
        rate = line_rate_gbit_per_s * GIGABIT
        line_rate = [{"series": series, "x": x, "y": rate} for x in (sizes[0][0], sizes[-1][0])]
    values = _powers_of_ten((row["y"] for row in [*rows, *line_rate]), text)
    return marks.chart(
        name,
        title,
        [*marks.line(rows, small=True), *marks.plain_line(line_rate)],
        looks=looks,
        x=marks.axis("message", ticks=sizes, log=True),
        y=marks.axis(y, ticks=values, log=True),
        about=about,
    )


def summary(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return two sentences on all-reduce: the shortest time and the best bandwidth of each table."""
    times, rates = [], []
    for label, table in tables.items():
        rows = [row for line, some in lines(table).items() if line[2] == "all_reduce" for row in some]
        if not rows:
            continue
        by_size: dict[tuple[int, str], list[Row]] = {}
        for row in rows:
            by_size.setdefault((row["bytes"], row["dtype"]), []).append(row)
        (size, dtype), fastest = min(by_size.items(), key=lambda item: item[0][0])
        seconds = median(row["p50_s"] for row in fastest)
        times.append(f"{format.duration(seconds)} with {label} ({_size(size)}, {dtype})")
        best = {key: median(row["busbw_bytes_per_s"] for row in some) for key, some in by_size.items()}
        size, dtype = max(best, key=lambda key: best[key])
        rates.append(f"{_rate(best[size, dtype])} with {label} ({_size(size)}, {dtype})")
    if not times:
        return ["No run measured all_reduce."]
    return [
        f"The smallest all-reduce takes {', '.join(times)}.",
        f"The best bus bandwidth is {', '.join(rates)}.",
    ]


def terminal(table: Sequence[Row], *, network_gbit_per_s: float | None = None) -> "Group":
    """Return nccl-tests' columns for some sizes of each collective, the fits, and what is missing and why.

    As in nccl-tests, the size is that of the larger buffer, and `redop` is none if nothing is reduced.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    groups, fits = lines(table), lines(table, "fit")
    sizes = _shown(groups)
    origins = dict.fromkeys(f"{backend} {device} x{workers}" for backend, device, _, _, workers in groups)
    title = "Median times of the slowest rank, " + "; ".join(origins)
    drawn = Table(box=box.SIMPLE, title=title, title_justify="left")
    for heading in ("collective", "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"):
        right = heading in ("size", "count", "time", "algbw", "busbw", "#wrong")
        drawn.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for (backend, device, collective, dtype, workers), rows in groups.items():
        name = collective if len(origins) == 1 else f"{backend} {device} x{workers} {collective}"
        nearest = [min(range(len(rows)), key=lambda row: abs(rows[row]["bytes"] - size)) for size in sizes]
        for row in dict.fromkeys(nearest):
            drawn.add_row(name, *_nccl_tests(rows[row], dtype))
    notes = [Text(_fit_note(line, row, groups, network_gbit_per_s)) for line, (row, *_) in fits.items()]
    missing = dict.fromkeys(
        f"{'skipped' if row['kind'] == 'skipped' else 'wrong'}: {row['backend']} {row['device']} "
        f"{row['collective']} {row['dtype']}: {row['reason']}"
        for row in table
        if row.get("reason")
    )
    return Group(drawn, *notes, *(Text(format.printable(note), style="yellow") for note in missing))


def _nccl_tests(row: Row, dtype: str) -> list[str]:
    """Return a row's cells in the order of nccl-tests."""
    operation = "sum" if row["collective"] in ("all_reduce", "reduce_scatter") else "none"
    rates = (_rate(row[name]) for name in ("algbw_bytes_per_s", "busbw_bytes_per_s"))
    count = f"{row['elements']:,}"
    wrong = str(row["wrong_elements"])
    return [_size(row["bytes"]), count, dtype, operation, format.duration(row["p50_s"]), *rates, wrong]


def _fit_note(line: Line, row: Row, groups: dict[Line, list[Row]], network_gbit_per_s: float | None) -> str:
    """Return latency, bandwidth and residual of t = alpha + beta * bytes, and the best bus bandwidth."""
    beta = row["beta_s_per_byte"]
    latency, residual = format.duration(row["alpha_s"]), format.percent(row["residual"])
    bandwidth = _rate(1 / beta) if beta > 0 else "-"
    best = max(point["busbw_bytes_per_s"] for point in groups[line])
    note = f"{line[2]} {line[3]}: latency {latency}, bandwidth {bandwidth}, residual {residual}; best busbw "
    note += _rate(best)
    if network_gbit_per_s:
        note += f", {format.percent(best / (network_gbit_per_s * GIGABIT))} of the line rate"
    return note


def _curve(rows: list[Row], field: str) -> Curve:
    """Return the sizes in bytes, ascending, with the median of a field over the runs that measured each."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        by_size.setdefault(row["bytes"], []).append(row[field])
    return [(size, median(by_size[size])) for size in sorted(by_size)]


def _powers_of_ten(values: Iterable[float], text: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    """Return ticks that cover the values."""
    drawn = list(values)
    if not drawn:
        return ()
    powers = [10.0**power for power in range(-9, 15)]
    return tuple((power, text(power)) for power in powers if min(drawn) / 10 < power < max(drawn) * 10)


def _shown(groups: dict[Line, list[Row]]) -> list[int]:
    """Return the sizes of the terminal's columns, in bytes: those that every line comes close to."""
    if not groups:
        return []
    smallest = max(rows[0]["bytes"] for rows in groups.values())
    largest = min(rows[-1]["bytes"] for rows in groups.values())
    return sorted({smallest, *(size for size in SHOWN_BYTES if smallest < size < largest), largest})
