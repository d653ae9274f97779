"""Which points of a study need another seed: `repeats=auto` of a sweep.

After every block of seeds all points of one page are compared in time, in cost and in price-performance. A
point that is worse than another in all three gets no more seeds. If each of the three has one point left,
none does.
"""

from collections.abc import Iterable, Sequence

from mlbench.analysis.bootstrap import FEWEST_SHOWN
from mlbench.analysis.compare import slower_of_all
from mlbench.analysis.points import Point, points
from mlbench.record import cost
from mlbench.record.record import Record
from mlbench.report import grouping

# Of every look before the last, so that the last may test at its nominal level, as every page does. Sources:
# Haybittle 1971, Repeated Assessment of Results, and Peto et al. 1976, Design and Analysis of Clinical
# Trials.
LEVEL = 0.999
FIRST = FEWEST_SHOWN  # seeds of each point before the first look
MOST = 20  # seeds of a point, so that points which do not differ come to an end
# Of price in price ** power * time: the fastest, the best price-performance (price x time^2), the cheapest.
POWERS = (0.0, 0.5, 1.0)


def undecided(records: Iterable[Record], *, level: float = LEVEL) -> list[str]:
    """Return the keys of the points that another seed may still make the fastest or the cheapest."""
    pages: dict[tuple[str, ...], list[Point]] = {}
    for point in points(records):
        if point.exclusion_reason is None and point.reached:
            pages.setdefault(grouping.page(point), []).append(point)
    keys = []
    for page in pages.values():
        hourly = [cost.usd_per_hour(point.records[0].experiment) for point in page]
        priced = [price for price in hourly if price is not None]
        prices = priced if len(priced) == len(page) else [float(point.nodes) for point in page]
        contenders = survivors([point.times for point in page], prices, level=level)
        keys += [point.key for i, point in enumerate(page) if i in contenders]
    return keys


def survivors(times: Sequence[Sequence[float]], prices: Sequence[float], *, level: float = LEVEL) -> set[int]:
    """Return which samples of times (s, at a price each) may still be the best. Empty if all is decided."""
    left: set[int] = set()
    for power in POWERS:
        samples = [
            [price**power * seconds for seconds in some] for some, price in zip(times, prices, strict=True)
        ]
        worse = {slow for slow, _ in slower_of_all(samples, level=level)}
        best = set(range(len(samples))) - worse
        left |= best if len(best) > 1 else set()
    return left
