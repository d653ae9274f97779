"""The table of task 0 as a figure and as lines on a terminal; tables of several runs may be joined."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from mlbench.experiment import format

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

Row = dict[str, Any]
Line = tuple[str, str, str, str, int]  # backend, device, collective, dtype, workers
SHOWN_BYTES = (1_000, 1_000_000)  # sizes in the terminal's table, beside the smallest and the largest
# Okabe and Ito 2008: eight colours that people who see few can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
STYLES = {"float32": "-", "float16": "--", "bfloat16": ":"}
MARKERS = ("o", "s", "^", "v", "D", "P")
GIGABIT = 1e9 / 8  # bytes


def lines(table: Iterable[Row], kind: str = "times") -> dict[Line, list[Row]]:
    """Return the rows of a kind by what they share, in the order of the table; sizes ascend."""
    found: dict[Line, list[Row]] = {}
    for row in table:
        if row["kind"] == kind and not row["wrong_elements"]:
            place = (row["backend"], row["device"], row["collective"], row["dtype"], row["workers"])
            found.setdefault(place, []).append(row)
    return found


def figure(table: Sequence[Row], *, network_gbit_per_s: float | None = None) -> "Figure":
    """Return median time and bus bandwidth over the message size, a row of two charts for each collective.

    Where several runs measured the same size, their median is drawn. Colours and markers tell backends and
    numbers of workers, strokes dtypes. The line rate, where it is known, is drawn across the bandwidths.
    """
    from matplotlib.figure import Figure

    groups = lines(table)
    collectives = list(dict.fromkeys(line[2] for line in groups)) or [""]
    origins = list(dict.fromkeys((line[0], line[1], line[4]) for line in groups))
    drawn = Figure(figsize=(12, 0.8 + 2.4 * len(collectives)), layout="constrained")
    charts = drawn.subplots(len(collectives), 2, sharex=True, sharey="col", squeeze=False)
    labelled: dict[str, Any] = {}
    for (backend, device, collective, dtype, workers), rows in groups.items():
        origin = origins.index((backend, device, workers))
        label = f"{backend} {device} x{workers} {dtype}"
        style = {
            "color": COLOURS[origin % len(COLOURS)],
            "linestyle": STYLES[dtype],
            "marker": MARKERS[origin % len(MARKERS)],
            "markersize": 2.5,
            "linewidth": 1.2,
            "label": label,
        }
        times, rates = charts[collectives.index(collective)]
        (labelled[label],) = times.plot(*_curve(rows, "p50_s"), **style)
        rates.plot(*_curve(rows, "busbw_bytes_per_s"), **style)
    for collective, (times, rates) in zip(collectives, charts, strict=True):
        times.set(ylabel=collective)
        for axes in (times, rates):
            axes.set(xscale="log", yscale="log")
            axes.grid(which="major", color="0.9")
        if network_gbit_per_s is not None:
            rate = network_gbit_per_s * GIGABIT
            rates.axhline(rate, color="0.4", linewidth=0.8)
            said = f"line rate {network_gbit_per_s:g} Gbit/s"
            rates.annotate(said, (0.01, rate), xycoords=("axes fraction", "data"), va="bottom", color="0.4")
    for axes, title in zip(charts[0], ("median time, s", "bus bandwidth, bytes/s"), strict=True):
        axes.set(title=title)
    for axes in charts[-1]:
        axes.set(xlabel="message, bytes")
    drawn.suptitle("; ".join(f"{backend} on {device}, {count} workers" for backend, device, count in origins))
    if labelled:
        drawn.legend(labelled.values(), labelled, loc="outside lower center", ncols=5, fontsize=7)
    return drawn


def terminal(table: Sequence[Row], *, network_gbit_per_s: float | None = None) -> "Group":
    """Return a table with one line a collective and dtype, and what was skipped or wrong and why."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    groups, fits = lines(table), lines(table, "fit")
    shown = _shown(groups)
    origins = dict.fromkeys(f"{backend} {device} x{workers}" for backend, device, _, _, workers in groups)
    title = "Median times by message size" + (f", {next(iter(origins))}" if len(origins) == 1 else "")
    drawn = Table(box=box.SIMPLE, title=title, title_justify="left")
    for heading in ("collective", "dtype") if len(origins) == 1 else ("backend", "collective", "dtype"):
        drawn.add_column(heading, no_wrap=True)
    headings = [f"~{format.with_prefix(size, 'B')}" for size in shown]
    headings += ["latency", "bandwidth", "residual", "best bus"]
    headings += ["of line"] if network_gbit_per_s else []
    for heading in headings:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for line, rows in groups.items():
        backend, device, collective, dtype, workers = line
        cells = [format.duration(_nearest(rows, size)["p50_s"]) for size in shown]
        cells += _fitted(fits[line][0]) if line in fits else ["-"] * 3
        best = max(row["busbw_bytes_per_s"] for row in rows)
        cells.append(format.with_prefix(best, "B/s"))
        if network_gbit_per_s:
            cells.append(format.percent(best / (network_gbit_per_s * GIGABIT)))
        named = (collective, dtype)
        drawn.add_row(*named if len(origins) == 1 else (f"{backend} {device} x{workers}", *named), *cells)
    notes = dict.fromkeys(
        f"{'skipped' if row['kind'] == 'skipped' else 'wrong'}: {row['backend']} {row['device']} "
        f"{row['collective']} {row['dtype']}: {row['reason']}"
        for row in table
        if row["reason"]
    )
    return Group(drawn, *(Text(format.printable(note), style="yellow") for note in notes))


def _curve(rows: list[Row], field: str) -> tuple[list[int], list[float]]:
    """Return the sizes in bytes, ascending, and the median of a field over the runs that measured each."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["bytes"], []).append(row[field])
    sizes = sorted(found)
    return sizes, [median(found[size]) for size in sizes]


def _shown(groups: dict[Line, list[Row]]) -> list[int]:
    """Return the sizes of the terminal's columns, in bytes: those that every line comes close to."""
    if not groups:
        return []
    smallest = max(rows[0]["bytes"] for rows in groups.values())
    largest = min(rows[-1]["bytes"] for rows in groups.values())
    return sorted({smallest, *(size for size in SHOWN_BYTES if smallest < size < largest), largest})


def _nearest(rows: list[Row], size: int) -> Row:
    return min(rows, key=lambda row: abs(row["bytes"] - size))


def _fitted(row: Row) -> list[str]:
    """Return alpha, 1/beta and the residual as cells."""
    beta = row["beta_s_per_byte"]
    bandwidth = format.with_prefix(1 / beta, "B/s") if beta > 0 else "-"
    return [format.duration(row["alpha_s"]), bandwidth, format.percent(row["residual"])]
