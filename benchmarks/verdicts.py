"""How often the verdict of `results compare` is wrong, and how often it finds a difference, simulated.

    python benchmarks/verdicts.py

Prints the tables of docs/results-command.md and docs/statistics.md. Times are log-normal with the spread
(standard deviation of the logarithms) that a table names; resnet20's are drawn from its ten published seeds.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mlbench.analysis import bootstrap, compare
from mlbench.record.noise import SPEED_SHARE
from mlbench.studies import sequential

PAIRS = 1000  # simulated comparisons a cell; a share of 5 % is then known to 0.7 points (one standard error)
SPREADS = (
    0.03,
    0.10,
    0.27,
)  # gnmt's seeds have 4 %, awdlstm's 13 %, resnet20's 27 % (measurements/results.md)
MORE = {0.03: (0.1,), 0.10: (0.1, 0.2), 0.27: (0.2, 0.5)}  # time that B needs more, a share
COUNTS = (2, 3, 4, 5, 10, 20)  # runs a side
RESULTS = Path(__file__).parents[1] / "docs" / "measurements" / "results.md"

Array = np.ndarray
Samples = Callable[[np.random.Generator, int], tuple[Array, Array]]  # logarithms of A's and of B's times


def main() -> int:
    """Print all tables as Markdown."""
    print(
        "\n".join(
            [
                *power(COUNTS, pairs=PAIRS),
                "",
                *errors((3, 5, 10), pairs=PAIRS),
                "",
                *pages((3, 5, 10), pages=PAIRS),
                "",
                *sentences((3, 5, 10), pages=PAIRS),
                "",
                *adaptive(pages=PAIRS),
            ]
        )
    )
    return 0


def power(counts: Sequence[int], *, pairs: int) -> list[str]:
    """Return how often equal and different samples get a verdict, by spread and n."""
    cases = [(spread, more) for spread in SPREADS for more in MORE[spread]]
    header = [f"{100 * more:.0f} % at {100 * spread:.0f} %" for spread, more in cases]
    least = [f"80 % at {100 * spread:.0f} %" for spread in SPREADS]
    lines = table(["runs a side", "wrong, interval alone", "wrong, verdict", *header, *least])
    for n in counts:
        cells = []
        for paired in (False, True):
            shares = [
                share(independent(0.27), n, pairs, shown, paired=paired) for shown in (interval, verdict)
            ]
            cells.append([f"{100 * value:.1f} %" for value in shares])
        row = [f"{plain} (in pairs {paired})" for plain, paired in zip(*cells, strict=True)]
        for spread, more in cases:
            row.append(f"{100 * share(shifted(spread, more), n, pairs, slower):.0f} %")
        for spread in SPREADS:
            x, y = np.random.default_rng(1).normal(0, spread, size=(2, pairs, n))
            needed = compare._needed(x, y, paired=False)
            row.append(f"{100 * math.expm1(np.quantile(needed, compare.POWER)):.0f} %")
        lines.append(f"| {n} | {' | '.join(row)} |")
    return lines


def errors(counts: Sequence[int], *, pairs: int) -> list[str]:
    """Return how often points that do not differ get a verdict, by how their runs were made."""
    lines = table(["nothing differs", *(f"n = {n}" for n in counts)])
    for name, samples in NULLS.items():
        row = [f"{100 * share(samples, n, pairs, verdict):.1f} %" for n in counts]
        lines.append(f"| {name} | {' | '.join(row)} |")
    return lines


def pages(counts: Sequence[int], *, pages: int) -> list[str]:
    """Return how often a page of equal curves calls any slower than its fastest, and `compare` any pair."""
    lines = table(["equal curves", *(f"{what}, n = {n}" for n in counts for what in ("alone", "page"))])
    for curves in (2, 4, 8):
        row = []
        for n in counts:
            random, alone, page = np.random.default_rng(100 * n + curves), 0, 0
            for _ in range(pages):
                samples = np.exp(random.normal(0, 0.2, size=(curves, n)))
                best = int(np.argmin(np.median(samples, axis=1)))
                others = [i for i in range(curves) if i != best]
                lows = [bootstrap.ratio(samples[i], samples[best]).low or 0.0 for i in others]
                alone += max(lows) > 1
                page += any(fast == best for _, fast in compare.slower_of_all(samples.tolist()))
            row += [f"{100 * alone / pages:.1f} %", f"{100 * page / pages:.1f} %"]
        lines.append(f"| {curves} | {' | '.join(row)} |")
    return lines


def sentences(counts: Sequence[int], *, pages: int) -> list[str]:
    """Return how often each sentence of a page is said of points between which it is not true.

    Points differ in their workers: 1, 2, 4 and 8. Their times are equal for time, their prices for cost, and
    price x time^2 for price-performance.
    """
    lines = table(["sentence", "what is equal", *(f"n = {n}" for n in counts)])
    nodes = np.array([1.0, 2.0, 4.0, 8.0])
    for power, (claim, equal) in CLAIMS.items():
        row = []
        for n in counts:
            random, wrong = np.random.default_rng(n), 0
            for _ in range(pages):
                times = np.exp(random.normal(0, 0.2, size=(4, n))) * nodes[:, None] ** -power
                wrong += bool(compare.slower_of_all((nodes[:, None] ** power * times).tolist()))
            row.append(f"{100 * wrong / pages:.1f} %")
        lines.append(f"| {claim} | {equal} | {' | '.join(row)} |")
    return lines


def adaptive(*, pages: int) -> list[str]:
    """Return how often studies of `repeats=auto` end with a wrong sentence, and what they spend.

    One point needs `more` time than the others, which are equal: that any of them is slower than the fastest
    is wrong. Prices are equal, spreads 10 %.
    """
    lines = table(["curves", "one is slower by", "wrong", "it is called slower", "runs", "of"])
    for curves in (2, 4, 8):
        for more in (0.0, 0.1, 0.5):
            random, wrong, right, runs = np.random.default_rng(curves), 0, 0, 0
            for _ in range(pages):
                drawn = random.normal(0, 0.1, size=(curves, sequential.MOST))
                drawn[0] += math.log1p(more)
                samples = study(np.exp(drawn))
                best = int(np.argmin([np.median(sample) for sample in samples]))
                slow = {slow for slow, fast in compare.slower_of_all(samples) if fast == best}
                wrong += bool(slow - {0} if more else slow)
                right += 0 in slow
                runs += sum(map(len, samples))
            cells = [f"{100 * more:.0f} %", f"{100 * wrong / pages:.1f} %"]
            cells += [f"{100 * right / pages:.0f} %" if more else "", f"{runs / pages:.1f}"]
            lines.append(f"| {curves} | {' | '.join(cells)} | {curves * sequential.MOST} |")
    return lines


def study(times: Array) -> list[list[float]]:
    """Return what `repeats=auto` measures of these times, (curves, MOST), at equal prices."""
    counts = [sequential.FIRST] * len(times)
    while True:
        samples = [row[:count].tolist() for row, count in zip(times, counts, strict=True)]
        again = [i for i in sequential.survivors(samples, [1.0] * len(times)) if counts[i] < sequential.MOST]
        if not again:
            return samples
        for i in again:
            counts[i] += 1


def table(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'--:|' * len(columns)}"]


def share(samples: Samples, n: int, pairs: int, shown: Callable[..., bool], *, paired: bool = False) -> float:
    """Return the share of simulated comparisons of n runs a side in which something is shown."""
    random = np.random.default_rng(n)
    drawn = (samples(random, n) for _ in range(pairs))
    return sum(shown(np.exp(x), np.exp(y), paired=paired) for x, y in drawn) / pairs


def slower(a: Array, b: Array, *, paired: bool) -> bool:
    return compare._significantly_above(a.tolist(), b.tolist(), 1.0, paired=paired)


def verdict(a: Array, b: Array, *, paired: bool) -> bool:
    return slower(a, b, paired=paired) or slower(b, a, paired=paired)


def interval(a: Array, b: Array, *, paired: bool) -> bool:
    ratio = bootstrap.ratio(b, a, paired=paired)
    return bool(ratio.low and ratio.high and not ratio.low <= 1 <= ratio.high)


def independent(spread: float) -> Samples:
    return lambda random, n: tuple(random.normal(0, spread, size=(2, n)))


def shifted(spread: float, more: float) -> Samples:
    def samples(random: np.random.Generator, n: int) -> tuple[Array, Array]:
        x, y = random.normal(0, spread, size=(2, n))
        return x, y + math.log1p(more)

    return samples


def seeds() -> Array:
    """Return the times of resnet20's ten published seeds, s."""
    section = next(part for part in RESULTS.read_text().split("\n### ") if part.startswith("resnet20, mini"))
    cells = [line.split("|") for line in section.splitlines() if re.match(r"\| \d", line)]
    return np.array([float(row[4]) for row in cells])


def published(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    x, y = random.choice(np.log(seeds()), size=(2, n))
    return x, y


def drifting(*, interleaved: bool) -> Samples:
    """A machine whose speed follows an AR(1) process: 0.9 of the last run's, standard deviation 10 %."""

    def samples(random: np.random.Generator, n: int) -> tuple[Array, Array]:
        steps, series = random.normal(0, 0.1, size=2 * n), np.empty(2 * n)
        series[0] = steps[0]
        for i in range(1, 2 * n):
            series[i] = 0.9 * series[i - 1] + math.sqrt(1 - 0.9**2) * steps[i]
        return (series[::2], series[1::2]) if interleaved else (series[:n], series[n:])

    return samples


def days(between: float, within: float, *, calibrated: bool = False) -> Samples:
    """A on one day, B on another: standard deviations between days and within one.

    `calibrated`: each run was, with an error of 3 %; where medians are apart, times have to be more so.
    """

    def samples(random: np.random.Generator, n: int) -> tuple[Array, Array]:
        day = random.normal(0, between, size=(2, 1))
        x, y = day + random.normal(0, within, size=(2, n))
        if calibrated:
            rates = np.median(day + random.normal(0, 0.03, size=(2, n)), axis=1)
            apart, by = abs(rates[0] - rates[1]), y.mean() - x.mean()
            if apart > math.log1p(SPEED_SHARE):
                least = apart + math.log1p(SPEED_SHARE)
                return (x, y - math.copysign(least, by)) if abs(by) > least else (np.zeros(n), np.zeros(n))
        return x, y

    return samples


CLAIMS = {  # by the power of the price that a point's time is multiplied with
    0.0: ("faster, slower, fastest", "time"),
    0.5: ("significantly better price-performance, best", "price x time^2"),
    1.0: ("cheaper, cheapest", "price x time"),
}
NULLS: dict[str, Samples] = {
    "independent runs, spread 20 %": independent(0.2),
    "drawn from resnet20's ten seeds": published,
    "speed drifts (AR(1) 0.9, 10 %), A before B": drifting(interleaved=False),
    "the same, interleaved": drifting(interleaved=True),
    "two days that differ by 5 %, 2 % within a day": days(0.05, 0.02),
    "two days that differ by 5 %, calibrated": days(0.05, 0.02, calibrated=True),
    "two days that differ by 10 %, 3 % within a day": days(0.10, 0.03),
    "two days that differ by 10 %, calibrated": days(0.10, 0.03, calibrated=True),
}

if __name__ == "__main__":
    sys.exit(main())
