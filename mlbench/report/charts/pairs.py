"""The pairs of a duel in the order in which they ran, with the interval of their ratio."""

from collections.abc import Sequence

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.duel import Verdict
from mlbench.report import render

ROOM = 1.15  # factor from the farthest mark to the ends of the axis


def pairs(
    ratios: Sequence[float], verdict: Verdict | None, *, title: str, about: str, quantity: str
) -> bytes:
    """Return a PNG of B over A, one mark a pair; the band is the interval of the verdict.

    Args:
        ratios: Of the pairs that count, in their order.
        about: The answer, below the title.
        quantity: What was compared.
    """
    last = max(len(ratios), 2)
    rows = [
        {"series": "pairs", "x": number, "y": ratio, "text": f"pair {number}: {ratio:.4g}"}
        for number, ratio in enumerate(ratios, 1)
    ]
    band = [{"series": "interval", "x": x, "low": verdict.low, "high": verdict.high}
            for x in (1, last)] if verdict else []  # fmt: skip
    equal = [{"series": "equal", "x": x, "y": 1.0} for x in (1, last)]
    drawn = [*ratios, 1.0, *((verdict.low, verdict.high) if verdict else ())]
    span = max(drawn) - min(drawn)
    ends = (max(0.0, min(drawn) - (ROOM - 1) * span), max(drawn) + (ROOM - 1) * span)
    chart: alt.LayerChart = marks.chart(
        "pairs",
        title,
        [*marks.band(band), *marks.plain_line(equal), *marks.points(rows)],
        looks={"pairs": marks.look(0), "interval": marks.look(1), "equal": marks.REFERENCE},
        x=marks.axis("pair", limits=(0.5, last + 0.5)),
        y=marks.axis(f"{quantity}: B / A", limits=ends if span else (0.99, 1.01)),
        about=about,
    )
    return render.png([chart])
