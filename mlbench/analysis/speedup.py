"""Compute speed-up, efficiency and price index against one worker, as docs/statistics.md defines them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlbench.analysis import pooling
from mlbench.analysis.bootstrap import Ratio, ratio
from mlbench.analysis.points import OPTIONAL_FIELDS, Point, differences, required_fields


@dataclass(frozen=True)
class Speedup:
    """One point against the one-worker point of its curve.

    - why: the reason that there is no speed-up, or None if there is one.
    - total, compute: time to the goal with one worker over that with k. Compute-only counts forward, loss,
      backward and optimizer.
    - efficiency: total over k.
    - price_index: price increase over performance increase. Below 1 the workers earn their price.
    - excluded_ratio: the quotient of the times of a point that may not have a speed-up, to be drawn apart.
    - note: a caveat of the number.
    """

    point: Point
    base: Point | None
    why: str | None = None
    total: Ratio | None = None
    compute: Ratio | None = None
    efficiency: Ratio | None = None
    price_index: Ratio | None = None
    excluded_ratio: float | None = None
    note: str | None = None


def scaling_curves(all_points: Sequence[Point]) -> list[list[Point]]:
    """Return the points that differ in their number of workers alone, one list each, few workers first."""
    groups: list[list[Point]] = []
    alike: dict[frozenset[tuple[str, str]], list[list[Point]]] = {}  # of groups, by their required fields
    # The points with the most fields come first, so that a run that failed early joins the right curve.
    for point in sorted(all_points, key=lambda point: -len(point.series)):
        curves = alike.setdefault(required_fields(point), [])
        home = next((curve for curve in curves if not differences(curve[0], point)), None)
        if home is None:
            home = []
            curves.append(home)
            groups.append(home)
        home.append(point)
    order = {id(point): index for index, point in enumerate(all_points)}
    ordered = [sorted(curve, key=lambda point: (point.workers, order[id(point)])) for curve in groups]
    return sorted(ordered, key=lambda curve: order[id(curve[0])])


def speedups(all_points: Sequence[Point]) -> list[Speedup]:
    """Return every point compared with one worker of its curve, or the reason that it cannot be."""
    single: dict[str, list[Point]] = {}
    for point in all_points:
        if point.workers == 1:
            single.setdefault(point.task, []).append(point)
    nearest = {task: _Nearest(some) for task, some in single.items()}
    curves = scaling_curves(all_points)
    return [_compare(point, curve, nearest.get(point.task)) for curve in curves for point in curve]


def price_index(speedup: Ratio, price: float) -> Ratio:
    """Return price increase over performance increase, with `price` that of an hour against the base's.

    The bill grows by price / speedup, performance by speedup: price / speedup^2, MLBench's k / S^2.
    """

    def index(value: float | None) -> float | None:
        if value is None:
            return None
        return price / value**2 if value else float("inf")

    return Ratio(index(speedup.value), index(speedup.high), index(speedup.low))


class _Nearest:
    """The one-worker points of a task, to find the one that differs least from another point.

    Only the fields in which they differ from each other decide which one that is.
    """

    def __init__(self, some: Sequence[Point]) -> None:
        fields = [dict(point.series) for point in some]
        names = sorted({name for series in fields for name in series})
        names = [name for name in names if len({series.get(name) for series in fields}) > 1]
        self._points = some
        # Of the values of each field (None: absent).
        self._codes: dict[str, dict[str | None, int]] = {name: {} for name in names}
        self._columns = {
            name: np.array([codes.setdefault(series.get(name), len(codes)) for series in fields])
            for name, codes in self._codes.items()
        }

    def differences(self, point: Point) -> list[str]:
        """Return the fields in which `point` differs from the point that is nearest to it."""
        own, count = dict(point.series), np.zeros(len(self._points), dtype=int)
        for name, column in self._columns.items():
            codes, value = self._codes[name], own.get(name)
            differs = column != codes.get(value, -1)
            if name in OPTIONAL_FIELDS:  # what one of both lacks is no difference
                differs &= (column != codes.get(None, -1)) & (value is not None)
            count += differs
        return differences(self._points[int(np.argmin(count))], point)


def _compare(point: Point, curve: Sequence[Point], nearest: _Nearest | None) -> Speedup:
    bases = [candidate for candidate in curve if candidate.workers == 1]
    base = bases[0] if len(bases) == 1 else None
    why = point.exclusion_reason or _without_base(point, bases, nearest) or _other_speed(bases[0], point)
    if base is None or why:
        excluded_ratio = (
            ratio(base.times, point.times, resamples=1).value if base and base.times and point.times else None
        )
        return Speedup(point, base, why, excluded_ratio=excluded_ratio)
    # By definition. The uncertainty of the base is in the others' intervals.
    unity = Ratio(1.0, 1.0, 1.0)
    total = unity if point is base else ratio(base.times, point.times)
    compute = None
    if base.compute_times and point.compute_times:
        compute = unity if point is base else ratio(base.compute_times, point.compute_times)
    share = 1 / point.workers
    return Speedup(
        point,
        base,
        total=total,
        compute=compute,
        efficiency=Ratio(*(value if value is None else value * share for value in vars(total).values())),
        price_index=price_index(total, point.nodes / base.nodes),
        note=_note(base, point, total),
    )


def _without_base(point: Point, bases: Sequence[Point], nearest: _Nearest | None) -> str | None:
    """Return why the point has no one-worker point to be compared with, or None if it has one."""
    if len(bases) > 1:
        return f"{len(bases)} one-worker points fit it"
    if not bases:
        if nearest is None:
            return "nothing was run with one worker"
        near = nearest.differences(point)
        more = f" and {len(near) - 3} more" if len(near) > 3 else ""
        return f"the run with one worker differs in {', '.join(near[:3])}{more}"
    base = bases[0]
    if base.exclusion_reason:
        return f"one worker cannot be the base: {base.exclusion_reason}"
    if base.time_to_accuracy is not None and base.time_to_accuracy.value == float("inf"):
        return "one worker missed the goal in half of its runs or more"
    return None


def _other_speed(base: Point, point: Point) -> str | None:
    """Return that the machines of the two were not equally fast, or None if equal or unknown."""
    difference = pooling.calibration(base.records, point.records).difference
    return difference and f"the runs with one worker and with {point.workers} were calibrated at {difference}"


def _note(base: Point, point: Point, total: Ratio) -> str | None:
    notes = [f"the runs with {point.workers} mix {' and '.join(point.mixture)}"] if point.mixture else []
    calibration = pooling.calibration(base.records, point.records)
    if bool(calibration.a) != bool(calibration.b):
        notes.append("the speed of the machine was measured on one side only")
    if base.threads != point.threads:
        notes.append(_threads(base, point))
    if total.value is not None and total.value > point.workers:
        notes.append(_superlinear(base, point))
    return "; ".join(notes) or None


def _superlinear(base: Point, point: Point) -> str:
    """Return why a speed-up is above the number of workers, or that nothing measured explains it."""
    above = f"more than {point.workers} times as fast with {point.workers} workers"
    epochs, paces = (
        [estimate.value if estimate else None for estimate in pair]
        for pair in ((base.epochs, point.epochs), (base.seconds_per_epoch, point.seconds_per_epoch))
    )
    faster = paces[0] / paces[1] if paces[0] and paces[1] else math.inf
    if epochs[0] and epochs[1] and epochs[1] < epochs[0] and faster <= point.workers:
        return f"{above}: {epochs[1]:.3g} epochs to the goal instead of {epochs[0]:.3g}"
    return (
        f"{above}, also per epoch: doubt it, unless a worker's part fits into caches that the whole "
        "does not fit into"
    )


def _threads(base: Point, point: Point) -> str:
    before, after = (" or ".join(map(str, side.threads)) or "unknown" for side in (base, point))
    return (
        f"one worker computes with {before} CPU threads, each of {point.workers} with {after}: "
        "the same processors divided otherwise, not more of them"
    )
