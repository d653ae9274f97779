"""What the goal costs over the time that it takes, on machines beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.analysis.chart import GREYED, Axis, Chart, Trace, drawable, time_axis
from mlbench.analysis.points import Estimate
from mlbench.record.format import counted, duration, usd

# s; what people count in
TICKS_S = (1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
DECADES = 20.0  # least quotient of the ends of an axis that becomes logarithmic
ROOM = 1.15  # of a linear axis: what stands beside a mark has room


@dataclass(frozen=True)
class Offer:
    """A number of workers on a machine: time to the goal in s and its cost in USD."""

    machine: str
    workers: int
    time: Estimate
    usd: Estimate

    @property
    def words(self) -> str:
        return f"{self.machine}, {counted(self.workers, 'worker')}"


def undominated(offers: Sequence[Offer]) -> list[Offer]:
    """Return the frontier, fastest first: nothing is both cheaper and faster than one of them."""
    ordered = sorted(offers, key=lambda one: (one.time.value, one.usd.value))
    frontier: list[Offer] = []
    for one in ordered:
        if not frontier or one.usd.value < frontier[-1].usd.value:
            frontier.append(one)
    return frontier


def frontier(offers: Sequence[Offer], *, title: str, about: str) -> Chart:
    """Return cost over time: the frontier joined and with its 95 % intervals, what it dominates in grey."""
    best = undominated(offers)
    # Behind the joined ones, as their names stand above and below in turn.
    names = [(best[0::2], 0), (best[1::2], GREYED)]
    traces = []
    for some, style in names:
        xs, ys = [one.time.value for one in some], [one.usd.value for one in some]
        words = [one.words for one in some]
        traces.append(Trace("", xs, ys, "marks", style, small=True, annotations=words))
    for label, dominated in (("on the frontier", False), ("dominated", True)):
        some = [one for one in offers if one not in best] if dominated else best
        times, bills = [one.time for one in some], [one.usd for one in some]
        traces.append(
            Trace(
                label,
                [one.value for one in times],
                [one.value for one in bills],
                "marks" if dominated else "line",
                GREYED if dominated else 0,
                small=dominated,
                x_low=[] if dominated else [_end(one.low) for one in times],
                x_high=[] if dominated else [_end(one.high) for one in times],
                low=[] if dominated else [_end(one.low) for one in bills],
                high=[] if dominated else [_end(one.high) for one in bills],
                texts=[f"{one.words}: {duration(one.time.value)}, {usd(one.usd.value)}" for one in some],
            )
        )
    xs, ys = (
        [value for trace in traces for name in names for value in getattr(trace, name) if drawable(value)]
        for names in (("x", "x_low", "x_high"), ("y", "low", "high"))
    )
    x = time_axis("time to accuracy", max(xs, default=1.0), (0, ROOM * max(xs, default=1.0)))
    if xs and max(xs) > DECADES * min(xs):
        ticks = [(float(s), duration(s)) for s in TICKS_S if min(xs) < s < max(xs)]
        x = Axis("time to accuracy", "log", tuple(ticks), (min(xs) / ROOM, max(xs) * ROOM))
    logarithmic = bool(ys) and max(ys) > DECADES * min(ys)
    y = (
        Axis("cost to the goal / USD", "log")
        if logarithmic
        else Axis("cost to the goal / USD", limits=(0, None))
    )
    return Chart.of("frontier", title, about=about, x=x, y=y, traces=traces)


def _end(value: float | None) -> float | None:
    return value if drawable(value) else None
