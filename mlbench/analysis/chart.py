"""What a chart shows, apart from how it is drawn; mlbench.report.render draws it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeGuard

from mlbench.analysis.bootstrap import Ratio
from mlbench.analysis.points import MedianEstimate, Point

UNITS = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))  # s
STEPS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)
MOST_TICKS = 7
EDGE = 1.35  # factor from the ends of an axis of workers to the least and the largest number
MARK_STEP = 1.06  # factor between neighbouring marks of one number of workers, where there is room
LABEL_SHARE = 0.035  # of an axis of workers, for a number below it
GREYED = -1  # the style of what stands back behind the rest
SPREAD = 0.4  # of the way to the nearest other number, on the logarithmic axis, for the marks of one


@dataclass(frozen=True)
class Axis:
    """A scale of a chart; `ticks` are (position, text) pairs, empty for the drawing's own choice."""

    label: str  # with its unit
    kind: Literal["linear", "log"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float | None] | None = None


def time_axis(label: str, most: float, limits: tuple[float, float | None]) -> Axis:
    """Return a linear axis of durations up to `most` s, with ticks in seconds, minutes, hours or days."""
    if not math.isfinite(most) or most <= 2 * 60:
        return Axis(f"{label} / s", limits=limits)
    unit, name = next((size, name) for size, name in UNITS if most > 2 * size)
    step = next(nice * unit for nice in STEPS if nice * unit * MOST_TICKS >= most)
    ticks = [(step * number, f"{step * number / unit:g}") for number in range(int(most / step) + 1)]
    return Axis(f"{label} / {name}", ticks=tuple(ticks), limits=limits)


@dataclass(frozen=True)
class Trace:
    """One entry of a chart's legend; an empty label has none.

    - kind: `line` joins its marks, `marks` does not, `bars` stand on `base`, `band` lies between `low` and
      `high`, `reference_line` has no marks, `highlight` is a ring around another mark, `labels` are words.
    - style: number of the curve, point or phase; it decides colour, mark and dash together;
      GREYED is grey.
    - secondary: hollow marks on a dotted line. excluded: crosses.
    - low, high, x_low, x_high: ends of the intervals; None where there is none.
    - texts: what a mark says when one points at it. annotations: what stands beside it in the picture.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "marks", "bars", "band", "reference_line", "highlight", "labels"] = "line"
    style: int = 0
    secondary: bool = False
    excluded: bool = False
    small: bool = False
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    x_low: Sequence[float | None] = ()
    x_high: Sequence[float | None] = ()
    base: Sequence[float] = ()
    width: float = 0.0
    texts: Sequence[str] = ()
    annotations: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A picture or, where there is nothing to draw, the reason in words.

    - name: stem of its file.
    - about: task, scale, hardware and n, below the title.
    - notes: sentences below the picture, or in its place.
    """

    name: str
    title: str
    about: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        *,
        about: str = "",
        x: Axis,
        y: Axis,
        traces: Sequence[Trace],
        notes: Sequence[str] = (),
    ) -> "Chart":
        """Return a chart without empty traces and repeated notes."""
        drawn = tuple(trace for trace in traces if len(trace.x))
        notes = tuple(dict.fromkeys(notes))
        if not drawn and not notes:
            notes = ("Nothing of this was measured.",)
        return cls(name, title, about, x, y, drawn, notes)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw but notes."""
        return all(trace.kind == "reference_line" for trace in self.traces)


def drawable(value: float | None, *, log: bool = True) -> TypeGuard[float]:
    """Return whether a value can be drawn on an axis, for `log` also on a logarithmic one."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def drawn(traces: Sequence[Trace], *names: str) -> list[float]:
    """Return the values along an axis, e.g. of y, low and high, that can be drawn."""
    values = (value for trace in traces for name in names for value in getattr(trace, name))
    return [value for value in values if drawable(value)]


def ends(estimates: Sequence[MedianEstimate | Ratio], *, log: bool = False) -> dict[str, Any]:
    """Return the intervals of y as arguments of a Trace; an end that the axis cannot show is left out."""
    return {
        "low": [each.low if drawable(each.low, log=log) else None for each in estimates],
        "high": [each.high if drawable(each.high, log=log) else None for each in estimates],
    }


def over_workers(
    label: str,
    measured: Iterable[tuple[Point, MedianEstimate | Ratio | None]],
    text: Callable[[Point, Any], str] | None = None,
    *,
    shift: float,
    log: bool = False,
    **look: Any,
) -> Trace:
    """Return medians or ratios over workers with their intervals; what the axis cannot show is left out.

    - text: what a mark says. look: style and more, as Trace takes them.
    - shift: where the marks stand, as a factor of the number of workers (`side_by_side`).
    """
    some = [(point, each) for point, each in measured if each and drawable(each.value, log=log)]
    return Trace(
        label,
        [point.workers * shift for point, _ in some],
        [each.value or 0.0 for _, each in some],
        texts=[text(point, each) for point, each in some] if text else (),
        **ends([each for _, each in some], log=log),
        **look,
    )


def worker_axis(counts: Sequence[int]) -> Axis:
    """Return the axis of the number of workers: doubling is one step."""
    present = sorted(set(counts)) or [1]
    powers = [count for count in present if count & (count - 1) == 0]
    room = LABEL_SHARE * math.log(EDGE**2 * present[-1] / present[0])
    named: list[int] = []  # of neighbours that would overlap the ends and powers of two come first
    for count in [present[0], present[-1], *powers, *present]:
        if all(count == other or abs(math.log(count / other)) > room for other in named):
            named.append(count)
    ticks = tuple((float(count), str(count) if count in named else "") for count in present)
    return Axis("workers k", "log", ticks, (present[0] / EDGE, present[-1] * EDGE))


def side_by_side(counts: Sequence[int], marks: int) -> list[float]:
    """Return the factors that put so many marks of one number of workers beside one another.

    However many they are, all stay nearer to their own number than to any other of `counts`.
    """
    closest = min((more / fewer for fewer, more in pairwise(sorted(set(counts)))), default=math.inf)
    reach = min(EDGE**0.75, closest**SPREAD)  # inside the axis where there is one number alone, too
    step = min(MARK_STEP, reach ** (2 / max(1, marks - 1)))
    return [step ** (index - (marks - 1) / 2) for index in range(marks)]
