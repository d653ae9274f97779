"""MLBench's cost chart of task 1a, computed again from its own times and prices: it is 60 times too high."""

from dataclasses import dataclass

from mlbench.analysis.published import Reference, load
from mlbench.experiment import cost

STUDY = "mlbench-2020-resnet20"
MINUTES_AN_HOUR = 60  # the chart's factor: minutes were taken for hours
PRECISION = 0.06  # relative; a bar and a time, each read off a chart to 3 %


@dataclass(frozen=True)
class Bar:
    """One bar of the chart beside what its time and price come to."""

    label: str  # e.g. "PyTorch cpu"
    workers: int
    seconds: float
    usd_per_hour: float  # of one node, pre-emptible, as MLBench paid in 2020
    charted_usd: float
    usd: float

    @property
    def factor(self) -> float:
        """How many times too high the bar is drawn."""
        return self.charted_usd / self.usd


def bars() -> list[Bar]:
    """Return every bar of the chart: workers x hours x price of a node, beside what the chart shows."""
    rows = load(study=STUDY)
    times = {_place(row): row.value for row in rows if row.metric == "train_time"}
    charted = [row for row in rows if row.metric == "charted_cost"]
    return [_bar(row, seconds=times[_place(row)]) for row in charted]


def verdict(found: list[Bar]) -> str:
    """Return in a sentence by what factor the chart is off."""
    low, high = min(bar.factor for bar in found), max(bar.factor for bar in found)
    assert MINUTES_AN_HOUR * (1 - PRECISION) < low <= high < MINUTES_AN_HOUR * (1 + PRECISION)
    return (
        f"All {len(found)} bars of MLBench's cost chart are {MINUTES_AN_HOUR} times what time and price "
        f"come to ({low:.0f} to {high:.0f}, read off the chart to 3 %): it took minutes for hours."
    )


def _place(row: Reference) -> tuple[str | None, str | None, int | None]:
    return row.label, row.device, row.workers


def _bar(row: Reference, *, seconds: float) -> Bar:
    assert row.workers is not None
    price = _node_usd_per_hour(gpu=row.device == "cuda")
    return Bar(
        label=f"{row.label} {row.device}",
        workers=row.workers,
        seconds=seconds,
        usd_per_hour=price,
        charted_usd=row.value,
        usd=cost.usd(seconds, row.workers, price),
    )


def _node_usd_per_hour(*, gpu: bool) -> float:
    """Return the pre-emptible price of the chart's nodes: the machine, and its K80 if it has one."""
    prices = {
        row.label: row.value
        for row in load(study="mlbench-prices")
        if row.metric == "spot_price" and row.date == "2020"
    }
    return prices["n1-standard-4"] + (prices["K80"] if gpu else 0.0)
