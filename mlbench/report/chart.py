"""What a chart shows, apart from how it is drawn: the same traces become a PNG and an interactive figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from mlbench.analysis.speedup import Estimate, Ratio

DODGE = 1.03  # factor between marks on an axis of workers that would hide each other


@dataclass(frozen=True)
class Axis:
    """A scale of a chart; `ticks` are (place, text) pairs, empty for the drawing's own choice."""

    label: str  # with its unit
    kind: Literal["linear", "log"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float | None] | None = None


@dataclass(frozen=True)
class Trace:
    """One entry of a chart's legend; an empty label has none.

    - kind: `line` joins its marks, `marks` does not, `bars` stand on `base`, `rule` has no marks, `ring` is
      drawn around another mark, `texts` are words alone.
    - style: number of the family, point or phase; it decides colour, mark, dash and hatching together.
    - hollow, cross: drawn apart, as hollow marks on a broken line or as crosses.
    - low, high, x_low, x_high: ends of the intervals; None where there is none.
    - texts: what a mark says when one points at it; `written`: what stands beside it in the picture.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "marks", "bars", "rule", "ring", "texts"] = "line"
    style: int = 0
    hollow: bool = False
    cross: bool = False
    small: bool = False
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    x_low: Sequence[float | None] = ()
    x_high: Sequence[float | None] = ()
    base: Sequence[float] = ()
    width: float = 0.0
    texts: Sequence[str] = ()
    written: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A picture or, where there is nothing to draw, the reason in words.

    - name: stem of its file.
    - about: task, scale, hardware and n, for the title.
    - words: sentences that stand below the picture, or in its place.
    """

    name: str
    title: str
    about: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...]
    words: tuple[str, ...]

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        *,
        about: str,
        x: Axis,
        y: Axis,
        traces: Sequence[Trace],
        words: Sequence[str],
    ) -> "Chart":
        """Return a chart without traces that show nothing and sentences said twice."""
        drawn = tuple(trace for trace in traces if len(trace.x))
        said = tuple(dict.fromkeys(words))
        if not drawn and not said:
            said = ("Nothing of this was measured.",)
        return cls(name, title, about, x, y, drawn, said)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw but words."""
        return all(trace.kind == "rule" for trace in self.traces)


def drawable(value: float | None) -> TypeGuard[float]:
    """Return whether a value has a place on an axis, also on a logarithmic one."""
    return value is not None and math.isfinite(value) and value > 0


def ends(found: Sequence[Estimate | Ratio]) -> dict[str, Any]:
    """Return the intervals of y as arguments of a Trace; an end without a place is left out."""

    def placed(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return {"low": [placed(one.low) for one in found], "high": [placed(one.high) for one in found]}


def worker_axis(counts: Sequence[int]) -> Axis:
    """Return the axis of the number of workers: doubling is one step."""
    present = sorted(set(counts)) or [1]
    ticks = tuple((float(count), str(count)) for count in present)
    return Axis("workers k", "log", ticks, (present[0] / 1.35, present[-1] * 1.35))
