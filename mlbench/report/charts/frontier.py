"""What the goal costs over the time that it takes, on machines beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.analysis.chart import GREYED, Axis, Chart, Trace, drawn, ends, time_axis
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


def frontier(offers: Sequence[FrontierPoint], *, title: str, about: str) -> Chart:
    """Return cost over time: the frontier joined and with its 95 % intervals, what it dominates in grey."""
    best = undominated(offers)
    # Behind the joined ones, as their names stand above and below in turn.
    names = [(best[0::2], 0), (best[1::2], GREYED)]
    traces = []
    for some, style in names:
        xs, ys = [offer.time.value for offer in some], [offer.usd.value for offer in some]
        annotations = [offer.label for offer in some]
        traces.append(Trace("", xs, ys, "marks", style, small=True, annotations=annotations))
    for label, dominated in (("on the frontier", False), ("dominated", True)):
        some = [offer for offer in offers if offer not in best] if dominated else best
        times, bills = [offer.time for offer in some], [offer.usd for offer in some]
        across, along = ends(times, log=True), ends(bills, log=True)
        intervals = along | {"x_low": across["low"], "x_high": across["high"]}
        traces.append(
            Trace(
                label,
                [time.value for time in times],
                [bill.value for bill in bills],
                "marks" if dominated else "line",
                GREYED if dominated else 0,
                small=dominated,
                texts=[
                    f"{offer.label}: {duration(offer.time.value)}, {usd(offer.usd.value)}" for offer in some
                ],
                **({} if dominated else intervals),
            )
        )
    xs, ys = drawn(traces, "x", "x_low", "x_high"), drawn(traces, "y", "low", "high")
    x = time_axis("time to accuracy", max(xs, default=1.0), (0, ROOM * max(xs, default=1.0)))
    if xs and max(xs) > DECADES * min(xs):
        ticks = [(float(s), duration(s)) for s in TICKS_S if min(xs) < s < max(xs)]
        x = Axis("time to accuracy", "log", tuple(ticks), (min(xs) / ROOM, max(xs) * ROOM))
    y = Axis("cost to the goal / USD", limits=(0, None))
    if ys and max(ys) > DECADES * min(ys):
        y = Axis("cost to the goal / USD", "log")
    return Chart.of("frontier", title, about=about, x=x, y=y, traces=traces)
