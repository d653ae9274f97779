"""What the goal costs over the time that it takes, on several machines."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.points import MedianEstimate
from mlbench.record.format import counted, duration, usd

# s; what people count in
TICKS_S = (1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
DECADES = 20.0  # least quotient of the ends of an axis that becomes logarithmic
ROOM = 1.15  # of a linear axis: what stands beside a mark has room


@dataclass(frozen=True)
class FrontierPoint:
    """A number of workers on a machine: time to the goal in s and its cost in USD."""

    machine: str
    workers: int
    time: MedianEstimate
    usd: MedianEstimate

    @property
    def label(self) -> str:
        return f"{self.machine}, {counted(self.workers, 'worker')}"


def undominated(offers: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Return the frontier, fastest first: nothing is both cheaper and faster than one of them."""
    ordered = sorted(offers, key=lambda offer: (offer.time.value, offer.usd.value))
    frontier: list[FrontierPoint] = []
    for offer in ordered:
        if not frontier or offer.usd.value < frontier[-1].usd.value:
            frontier.append(offer)
    return frontier


def frontier(offers: Sequence[FrontierPoint], *, title: str, about: str) -> alt.LayerChart:
    """Return cost over time: the frontier joined and with its 95 % intervals, what it dominates in grey."""
    best = undominated(offers)
    joined = [
        _row(offer, "on the frontier")
        | {"annotation": offer.label}
        | marks.ends(offer.usd, log=True)
        | marks.ends(offer.time, "x_low", "x_high", log=True)
        for offer in best
    ]
    dominated = [_row(offer, "dominated") for offer in offers if offer not in best]
    xs = marks.drawn([*joined, *dominated], "x", "x_low", "x_high")
    ys = marks.drawn([*joined, *dominated], "y", "low", "high")
    x = marks.time_axis("time to accuracy", max(xs, default=1.0), (0, ROOM * max(xs, default=1.0)))
    if xs and max(xs) > DECADES * min(xs):
        ticks = [(float(s), duration(s)) for s in TICKS_S if min(xs) < s < max(xs)]
        x = marks.axis("time to accuracy", ticks=ticks, log=True, limits=(min(xs) / ROOM, max(xs) * ROOM))
    log = bool(ys) and max(ys) > DECADES * min(ys)
    return marks.chart(
        "frontier",
        title,
        [
            *marks.line(joined),
            *marks.points(dominated, size=28),
            *marks.texts(joined[0::2]),  # names above and below in turn
            *marks.texts(joined[1::2], below=True),
        ],
        looks={"on the frontier": marks.look(0), "dominated": marks.look(-1, grey=True)},
        x=x,
        y=marks.axis("cost to the goal / USD", log=log, limits=None if log else (0, None)),
        about=about,
    )


def _row(offer: FrontierPoint, series: str) -> marks.Row:
    text = f"{offer.label}: {duration(offer.time.value)}, {usd(offer.usd.value)}"
    return {"series": series, "x": offer.time.value, "y": offer.usd.value, "text": text}
