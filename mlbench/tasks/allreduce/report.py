"""The table of task 0 as a figure and as lines on a terminal; tables of several runs may be joined."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mlbench import units

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
    """Return median time and bus bandwidth over the message size, one line a collective and dtype.

    Colours tell collectives, strokes dtypes, markers backends and numbers of workers. The line rate,
    where it is known, is drawn across the bandwidths.
    """
    from matplotlib.figure import Figure

    groups = lines(table)
    collectives = list(dict.fromkeys(line[2] for line in groups))
    origins = list(dict.fromkeys((line[0], line[1], line[4]) for line in groups))
    drawn = Figure(figsize=(12, 5.5), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for (backend, device, collective, dtype, workers), rows in groups.items():
        origin = origins.index((backend, device, workers))
        name = f"{collective} {dtype}"
        style = {
            "color": COLOURS[collectives.index(collective) % len(COLOURS)],
            "linestyle": STYLES[dtype],
            "marker": MARKERS[origin % len(MARKERS)],
            "markersize": 2.5,
            "linewidth": 1.2,
            "label": name if len(origins) == 1 else f"{name}, {backend} {device} x{workers}",
        }
        size = [row["bytes"] for row in rows]
        left.plot(size, [row["p50_s"] for row in rows], **style)
        right.plot(size, [row["busbw_bytes_per_s"] for row in rows], **style)
    if network_gbit_per_s is not None:
        rate = network_gbit_per_s * GIGABIT
        right.axhline(rate, color="0.4", linewidth=0.8)
        label = f"line rate {network_gbit_per_s:g} Gbit/s"
        right.annotate(label, (0.01, rate), xycoords=("axes fraction", "data"), va="bottom", color="0.4")
    for axes, title in ((left, "median time, s"), (right, "bus bandwidth, bytes/s")):
        axes.set(xscale="log", yscale="log", xlabel="message, bytes", title=title)
        axes.grid(which="major", color="0.9")
    drawn.suptitle("; ".join(f"{backend} on {device}, {count} workers" for backend, device, count in origins))
    if groups:
        drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7)
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
    headings = [f"~{units.with_prefix(size, 'B')}" for size in shown]
    headings += ["latency", "bandwidth", "residual", "best bus"]
    headings += ["of line"] if network_gbit_per_s else []
    for heading in headings:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for line, rows in groups.items():
        backend, device, collective, dtype, workers = line
        cells = [units.duration(_nearest(rows, size)["p50_s"]) for size in shown]
        cells += _fitted(fits[line][0]) if line in fits else ["-"] * 3
        best = max(row["busbw_bytes_per_s"] for row in rows)
        cells.append(units.with_prefix(best, "B/s"))
        if network_gbit_per_s:
            cells.append(units.percent(best / (network_gbit_per_s * GIGABIT)))
        named = (collective, dtype)
        drawn.add_row(*named if len(origins) == 1 else (f"{backend} {device} x{workers}", *named), *cells)
    notes = dict.fromkeys(
        f"{'skipped' if row['kind'] == 'skipped' else 'wrong'}: {row['backend']} {row['device']} "
        f"{row['collective']} {row['dtype']}: {row['reason']}"
        for row in table
        if row["reason"]
    )
    return Group(drawn, *(Text(units.printable(note), style="yellow") for note in notes))


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
    bandwidth = units.with_prefix(1 / beta, "B/s") if beta > 0 else "-"
    return [units.duration(row["alpha_s"]), bandwidth, units.percent(row["residual"])]
