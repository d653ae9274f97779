"""Compare the points of two selections side by side, with ratios, intervals and a verdict: is B faster?

Two points are compared if they differ only in what the two selections differ in as a whole. For `workers=1`
and `workers=2` every other field must agree. For two studies the number of workers must agree, too. A ratio
is B's median over A's, so below 1 B needs less. Runs are taken in pairs if both sides have the same seeds.
docs/results-command.md has the definitions and how often a verdict is wrong.
"""

import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Literal

import numpy as np

from mlbench.analysis import bootstrap, pooling
from mlbench.analysis.bootstrap import LEVEL, Array, Ratio
from mlbench.analysis.points import SOURCE, TIMED, Point, differences, points, required_fields, to_goal
from mlbench.config.compose import data_fields
from mlbench.config.errors import ResultError
from mlbench.record import format, provenance
from mlbench.record.record import Record

# Without these a ratio of times means nothing. `data` is the hash of what was prepared. The fields by which a
# task names and reads its data must agree, too (`data_fields`).
MUST_AGREE = ("task.name", "scale", "goal", "task.metric", "data")
# If one of these differs, or the hardware's name, the comparison is with another machine.
MACHINE = ("hardware.cpus", "hardware.gpus", "hardware.gpu_model")
EQUAL = 1e-9  # relative; runs that differ by less have no spread
SIMULATED = 400  # comparisons; a share of 80 % is then known to 2 points (one standard error)
SIMULATED_RESAMPLES = 1000  # of each
POWER = 0.8  # the usual share of comparisons that shall find a difference (Cohen 1988)
Verdict = Literal["faster", "slower", "no difference shown", "inconclusive", "no verdict"]


@dataclass(frozen=True)
class QuantityComparison:
    """One quantity on both sides. `ratio` is B's median over A's, None if a side has no value."""

    name: str
    a: float | None  # median
    b: float | None
    ratio: Ratio | None
    paired: bool


@dataclass(frozen=True)
class PointPair:
    """Two points side by side.

    - differs: what the configurations do not share, as (field, A's value, B's value).
    - primary_metric: the measure that the verdict is about.
    - goal_regression: that B no longer reaches the goal that A reached, or None if it does.
    - regression: whether B's median is shown to be more than a share above A's, 0.05 for `5%`, or there is a
      goal_regression. None unless requested, and if there is no verdict.
    - calibration: the speeds of their machines.
    - order: how A's and B's runs followed each other, or None if that is not recorded.
    """

    a: Point
    b: Point
    differs: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]
    measures: tuple[QuantityComparison, ...]
    primary_metric: str
    verdict: Verdict
    why: str
    goal_regression: str | None
    regression: bool | None
    calibration: pooling.Calibration
    order: "Order | None"


@dataclass(frozen=True)
class Order:
    """How the runs of A and B followed each other in time.

    - first: the side of the first run, "A" or "B".
    - blocks: series of runs of one side. With 2, all of one side ran before all of the other.
    - interleaved: there are as many blocks as a random order has on average (Wald and Wolfowitz 1940).
    """

    first: str
    blocks: int
    interleaved: bool


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the points that have no partner on the other side."""

    pairs: tuple[PointPair, ...]
    only_a: tuple[Point, ...]
    only_b: tuple[Point, ...]


def compare(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    limit: float | None = None,
    with_disturbed: bool = False,
) -> Comparison:
    """Return two selections of runs side by side. Runs that a person interrupted do not count.

    `limit`: a share, e.g. 0.05. The pairs then show whether B is slower by more than that, or lost its goal.
    `with_disturbed`: count also runs with other load on their machine. Raises UserError for an empty side,
    for a run on both sides, and for tasks, data, scales or goals that differ.
    """
    of_a, of_b = (points(side, with_disturbed=with_disturbed) for side in (a, b))
    for name, side in (("A", of_a), ("B", of_b)):
        if not side:
            raise ResultError(f"{name} matches no finished run", hint="mlbench results list")
    both = {run.run_id for run in a} & {run.run_id for run in b}
    if both:
        raise ResultError(
            f"{min(both)} is on both sides", hint="narrow A and B until they exclude each other"
        )
    constant = _constant_fields(of_a, of_b)
    fields = (name for point in (*of_a, *of_b) for name in data_fields(point.task))
    wrong = [name for name in dict.fromkeys((*MUST_AGREE, *fields)) if name in constant]
    if wrong:
        name = wrong[0]
        raise ResultError(
            f"A and B cannot be compared: {name} is {_fields(of_a[0]).get(name)} in A and "
            f"{_fields(of_b[0]).get(name)} in B",
            hint="give both sides the same task, data, scale and goal",
        )
    single = len(of_a) == len(of_b) == 1
    matched = [(of_a[0], of_b[0])] if single else _partners(of_a, of_b, constant)
    if not matched:
        raise ResultError(
            f"none of A's {len(of_a)} points has a partner among B's {len(of_b)}",
            hint="narrow both with name=value words, e.g. task=resnet20",
        )
    paired = {id(point) for pair in matched for point in pair}
    pairs = [_pair(x, y, limit, with_disturbed=with_disturbed) for x, y in matched]
    return Comparison(
        _corrected(pairs, limit),
        tuple(x for x in of_a if id(x) not in paired),
        tuple(y for y in of_b if id(y) not in paired),
    )


def _corrected(pairs: Sequence[PointPair], limit: float | None) -> tuple[PointPair, ...]:
    """Return the pairs with the verdicts that hold for all of them together (`holm`)."""
    tested = [pair for pair in pairs if pair.verdict != "no verdict"]
    two_sided, above = [], []
    for pair in tested:
        x, y, paired = times(pair.a, pair.b)
        factor = pair.calibration.factor
        two_sided.append(2 * min(p_slower(*sides, factor, paired=paired) for sides in ((x, y), (y, x))))
        above.append(2 * p_slower(x, y, (1 + (limit or 0.0)) * factor, paired=paired))
    corrected = {}
    for pair, differs, worse in zip(tested, holm(two_sided), holm(above), strict=True):
        changes: dict[str, Any] = {}
        if pair.verdict in ("faster", "slower") and not differs:
            why = (
                f"alone the test would show that {pair.why}, as one of {len(tested)} comparisons it does not"
            )
            changes = {"verdict": "inconclusive", "why": why}
        if pair.regression and not pair.goal_regression and not worse:
            changes["regression"] = False
        corrected[id(pair)] = replace(pair, **changes)
    return tuple(corrected.get(id(pair), pair) for pair in pairs)


def data(point: Point) -> dict[str, Any]:
    """Return the fields that are set and name the data on which a point's runs were trained and judged."""
    names = data_fields(point.task)
    return {name: value for name, value in _fields(point).items() if name in names and value is not None}


def _fields(point: Point) -> dict[str, Any]:
    return {name: parsed(value) for name, value in point.series} | {"workers": point.workers}


def parsed(value: str) -> Any:
    """Return the value of a field of a series. If the runs of a point have several, they stay as text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _partners(of_a: Sequence[Point], of_b: Sequence[Point], constant: set[str]) -> list[tuple[Point, Point]]:
    """Return the points that differ in `constant` fields alone."""
    by_fields: dict[Any, list[Point]] = {}  # so that not every point is held against every other

    def shared(point: Point) -> Any:
        fields = frozenset(field for field in required_fields(point) if field[0] not in constant)
        return fields, None if "workers" in constant else point.workers

    for y in of_b:
        by_fields.setdefault(shared(y), []).append(y)
    return [(x, y) for x in of_a for y in by_fields.get(shared(x), ()) if _differing(x, y) <= constant]


def _differing(point: Point, other: Point) -> set[str]:
    names = set(differences(point, other))
    return names | {"workers"} if point.workers != other.workers else names


def _constant_fields(of_a: Sequence[Point], of_b: Sequence[Point]) -> set[str]:
    """Return the fields that have one value all over A and another all over B."""
    sides = [[_fields(point) for point in side] for side in (of_a, of_b)]
    names = _differing(of_a[0], of_b[0])
    constant = {n for n in names if all(len({repr(point.get(n)) for point in side}) == 1 for side in sides)}
    return {n for n in constant if sides[0][0].get(n) != sides[1][0].get(n)}  # null and absent are alike


def _pair(a: Point, b: Point, limit: float | None, *, with_disturbed: bool) -> PointPair:
    fields_a, fields_b = _fields(a), _fields(b)
    differs = tuple(
        (name, fields_a.get(name), fields_b.get(name))
        for name in sorted(_differing(a, b), key=lambda name: ("." in name, name))
    )
    measures = tuple(_measure(name, *_values(a, b, of)) for name, of in MEASURES.items())
    x, y, paired = times(a, b)
    calibration = pooling.calibration(a.records, b.records)
    why = None if with_disturbed else _only_disturbed(a, b)
    if {a.source, b.source} != {SOURCE}:
        why = "results that others published were not measured on one machine with ours"
    if _other_machine(a, b):  # whose speed is a part of the question
        calibration = replace(calibration, factor=1.0)
    factor = calibration.factor
    verdict, why = ("no verdict", why) if why else _verdict(a, b, x, y, factor, paired=paired)
    goal_regression = _goal_regression(a, b)
    unshown = verdict in ("no difference shown", "inconclusive")
    if unshown and factor > 1 and not goal_regression:
        verdict = "no verdict"
        why = f"the calibration differs between A and B and may be the reason: {calibration.difference}"
    if goal_regression and unshown:
        why = f"{goal_regression}: so few runs do not show that this is more than chance"
    regression = None
    if limit is not None and (goal_regression or verdict != "no verdict"):
        slower = _significantly_above(x, y, (1 + limit) * factor, paired=paired)
        regression = goal_regression is not None or slower
    return PointPair(
        a,
        b,
        differs,
        tuple(_notes(a, b)),
        measures,
        "time_to_accuracy" if a.goal is not None else "samples_per_s",
        verdict,
        why,
        goal_regression,
        regression,
        calibration,
        _order(a, b),
    )


def times(a: Point, b: Point) -> tuple[list[float], list[float], bool]:
    """Return the seconds to the goal (without one: per sample) of both sides, and whether they make pairs."""
    if a.goal is not None:
        return _values(a, b, MEASURES["time_to_accuracy"])
    x, y, paired = _values(a, b, MEASURES["samples_per_s"])
    return [1 / value for value in x], [1 / value for value in y], paired


def _only_disturbed(a: Point, b: Point) -> str | None:
    """Return that a side has no time of a quiet machine, or None if both have one."""
    sides = [
        (name, point)
        for name, point in (("A", a), ("B", b))
        if point.disturbed and all(run.run_id in {*point.disturbed, *point.missed} for run in point.records)
    ]
    if not sides:
        return None
    runs = format.counted(sum(len(point.disturbed) for _, point in sides), "run")
    whose = f" of {sides[0][0]}" if len(sides) == 1 else ""
    some = " that did not miss the goal" if any(point.missed for _, point in sides) else ""
    return f"all {runs}{whose}{some} disturbed (--with-disturbed counts them)"


def _other_machine(a: Point, b: Point) -> bool:
    """Return whether the two were to be measured on other hardware, so that its speed is compared, too."""
    series, other = dict(a.series), dict(b.series)
    return a.hardware != b.hardware or any(series.get(name) != other.get(name) for name in MACHINE)


def _order(a: Point, b: Point) -> Order | None:
    if {a.source, b.source} != {SOURCE}:
        return None
    starts = [(run.started_at, side) for side, point in (("A", a), ("B", b)) for run in point.records]
    blocks = [side for side, _ in groupby(side for _, side in sorted(starts))]
    return Order(blocks[0], len(blocks), len(blocks) >= 1 + 2 * a.n * b.n / (a.n + b.n))


def _goal_regression(a: Point, b: Point) -> str | None:
    """Return that half of B's runs or more missed the goal, and fewer of A's, or None if not.

    B's median time is then infinite and A's is not. This needs no test: with three runs per side the rank
    test never gives less than 1/20, not even for always against never. A run that is left out reached its
    goal.
    """
    of_a, of_b = (point.n + len(point.left_out) for point in (a, b))
    if 2 * len(b.missed) < of_b or 2 * len(a.missed) >= of_a:
        return None
    missed = "missed the goal" if a.goal is not None else "did not complete"
    return f"{len(b.missed)} of B's {format.counted(of_b, 'run')} {missed}, of A's {len(a.missed)} of {of_a}"


def _values(
    a: Point, b: Point, of: Callable[[Record], float | None]
) -> tuple[list[float], list[float], bool]:
    """Return the values of both sides, ordered by seed, and whether the runs make pairs."""
    sides = []
    for point in (a, b):
        runs = sorted(point.records, key=lambda run: run.seed)
        sides.append([(run.seed, value) for run in runs if (value := of(run)) is not None])
    (seeds_a, seeds_b) = ([seed for seed, _ in side] for side in sides)
    paired = seeds_a == seeds_b and len(set(seeds_a)) == len(seeds_a) > 1
    return [value for _, value in sides[0]], [value for _, value in sides[1]], paired


MEASURES: dict[str, Callable[[Record], float | None]] = {
    "time_to_accuracy": lambda run: to_goal(run, run.time_to_accuracy) if run.goal else None,
    "epochs": lambda run: to_goal(run, run.epochs) or None if run.goal else None,
    "samples_per_s": lambda run: run.samples_per_s or None if run.status in TIMED else None,
}


def _measure(name: str, a: list[float], b: list[float], paired: bool) -> QuantityComparison:
    of_a, of_b = (bootstrap.median(side) if side else None for side in (a, b))
    ratio = bootstrap.ratio(b, a, paired=paired) if a and b else None
    return QuantityComparison(name, of_a, of_b, ratio, paired)


def _verdict(
    a: Point, b: Point, x: Sequence[float], y: Sequence[float], factor: float, *, paired: bool
) -> tuple[Verdict, str]:
    """Return whether B is shown to need less or more time than A by more than `factor`, and the reason."""
    if a.workers != b.workers and (a.oversubscribed or b.oversubscribed):
        return "no verdict", "oversubscribed: the workers shared fewer CPUs, so their numbers do not compare"
    if not x or not y:
        return "no verdict", "a side measured neither a time to accuracy nor samples per second"
    if 1 in (len(x), len(y)):
        where = "per side" if len(x) == len(y) else "in A" if len(x) == 1 else "in B"
        return "no verdict", f"one run {where}: a difference needs at least 3"
    if _significantly_above(x, y, factor, paired=paired):
        return "slower", "B needs more time than A"
    if _significantly_above(y, x, factor, paired=paired):
        return "faster", "B needs less time than A"
    ratio = bootstrap.ratio(y, x, paired=paired)
    if ratio.low is not None and ratio.high is not None and (ratio.low > 1 or ratio.high < 1):
        few = format.counted(min(len(x), len(y)), "run")
        why = f"too few runs: the interval excludes 1, but {few} per side are too few for the test"
        return "inconclusive", why
    return "no difference shown", "the difference is within run-to-run noise"


def _significantly_above(a: Sequence[float], b: Sequence[float], limit: float, *, paired: bool) -> bool:
    """Return whether median(b) / median(a) is shown to be above `limit` at LEVEL.

    There are two conditions. The bootstrap interval lies above `limit`. Student's t test of the logarithms
    (Welch's for independent runs) agrees, because bootstrap intervals of a few runs are too narrow. If a run
    missed its goal, the exact rank test of Mann and Whitney replaces Student's. Tests are one-sided at half
    of 1 - LEVEL, so that the two verdicts together are wrong in 1 - LEVEL.
    """
    low = bootstrap.ratio(b, a, paired=paired).low
    if low is None or low <= limit:
        return False
    return p_slower(a, b, limit, paired=paired) < (1 - LEVEL) / 2


def p_slower(a: Sequence[float], b: Sequence[float], limit: float = 1.0, *, paired: bool) -> float:
    """Return the p-value of the test that B needs more than `limit` times A's time, 1 for single runs."""
    from scipy.stats import mannwhitneyu

    if min(len(a), len(b)) < 2:
        return 1.0
    if math.inf in (*a, *b):
        of_b = [value / limit for value in b]
        return float(mannwhitneyu(of_b, a, alternative="greater", method="exact").pvalue)
    x, y = np.log(a), np.log(b) - math.log(limit)
    if _without_spread(x, y, paired=paired):
        return 0.0 if y.mean() > x.mean() else 1.0
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of one side without spread
        return float(_test(paired)(y, x, alternative="greater").pvalue)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Return which of several tests show something, such that any is wrong in at most 1 - level.

    Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure, which needs no independence.
    """
    shown = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[i] >= (1 - level) / (len(p_values) - rank):
            break
        shown[i] = True
    return shown


def slower_of_all(samples: Sequence[Sequence[float]], level: float = LEVEL) -> frozenset[tuple[int, int]]:
    """Return the pairs (i, j) of samples in which i is shown to need more time than j, of all pairs together.

    The best of several samples is partly chosen by luck. So all pairs count (Holm), and the bootstrap
    interval of the ratio must lie above 1, too. Samples of fewer than FEWEST_SHOWN runs show nothing.
    """
    return _slower_of_all(tuple(map(tuple, samples)), level)


def slower_points(points: Sequence[Point], samples: Sequence[Sequence[float]]) -> frozenset[tuple[int, int]]:
    """Return `slower_of_all` of the samples of points, without what their machines' speeds may explain.

    Where the calibrations of two points differ, the times must differ by more than `Calibration.factor`, at a
    level that holds for all pairs together (Bonferroni).
    """
    shown = slower_of_all(samples)
    level = (1 - LEVEL) / 2 / max(1, len(points) * (len(points) - 1) // 2)

    def explained(i: int, j: int) -> bool:
        factor = pooling.calibration(points[i].records, points[j].records).factor
        return factor > 1 and p_slower(samples[j], samples[i], factor, paired=False) >= level

    return frozenset((i, j) for i, j in shown if not explained(i, j))


@lru_cache(maxsize=16)  # a page computes its answer once, and once a curve
def _slower_of_all(samples: tuple[tuple[float, ...], ...], level: float) -> frozenset[tuple[int, int]]:
    places = [i for i, sample in enumerate(samples) if len(sample) >= bootstrap.FEWEST_SHOWN]
    pairs = [(i, j) for i in places for j in places if i < j]
    above = _p_above(samples, pairs)
    shown = set()
    two_sided = [2 * min(p, 1 - p) for p in above]
    for (i, j), p, differs in zip(pairs, above, holm(two_sided, level), strict=True):
        slow, fast = (i, j) if p < 0.5 else (j, i)
        # No run of the slow point below one of the fast: all resamples lie above 1 without being drawn.
        apart = differs and min(samples[slow]) > max(samples[fast])
        low = bootstrap.ratio(samples[slow], samples[fast]).low if differs and not apart else None
        if apart or (low is not None and low > 1):
            shown.add((slow, fast))
    return frozenset(shown)


def _p_above(samples: Sequence[Sequence[float]], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return `p_slower` of sample i over j, independent, for pairs (i, j), by Welch's test of all at once."""
    from scipy.special import stdtr

    if not pairs:
        return []
    with np.errstate(all="ignore"):  # what is no number here is tested by itself
        logs = [np.log(sample) for sample in samples]
        means = np.array([log.mean() for log in logs])
        errors = np.array([log.var(ddof=1) / len(log) if len(log) > 1 else math.nan for log in logs])
        dofs = np.array([len(log) - 1 for log in logs])
        i, j = np.array(pairs).T
        total = errors[i] + errors[j]
        dof = total**2 / (errors[i] ** 2 / dofs[i] + errors[j] ** 2 / dofs[j])
        p_values = stdtr(dof, (means[j] - means[i]) / np.sqrt(total))
    for index, (a, b) in enumerate(pairs):
        if not total[index] > EQUAL**2:  # infinite, or without spread
            p, q = (p_slower(samples[x], samples[y], paired=False) for x, y in ((b, a), (a, b)))
            p_values[index] = 0.5 if p == q else p if p < q else 1 - q  # 0.5: neither
    return p_values.tolist()


def _without_spread(x: Array, y: Array, *, paired: bool) -> bool:
    """Return whether there is nothing to test."""
    return bool(max(np.ptp(part) for part in ([y - x] if paired else [x, y])) < EQUAL)


def _test(paired: bool) -> Any:
    from scipy.stats import ttest_ind, ttest_rel

    return ttest_rel if paired else partial(ttest_ind, equal_var=False)


def _mean_low(x: Array, y: Array, *, paired: bool) -> Any:
    """Return the lower end of the interval of mean(y) - mean(x) over the last axis, by Student's t."""
    if _without_spread(x, y, paired=paired):
        return y.mean() - x.mean()
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of one side without spread
        return _test(paired)(y, x, axis=-1).confidence_interval(LEVEL).low


def smallest_difference(a: Sequence[float], b: Sequence[float], *, paired: bool) -> float | None:
    """Return how much more time B must need to be called slower in POWER of such comparisons, a share.

    Simulated with log-normal times, as many and with the spread that both sides have, and the verdict's two
    conditions. None if a side has one run, or one that missed its goal, because then there is no spread.
    """
    if min(len(a), len(b)) < 2 or math.inf in (*a, *b):
        return None
    x, y = np.log(a), np.log(b)
    shape, random = (SIMULATED, len(x)), np.random.default_rng(0)
    if paired:
        drawn = random.multivariate_normal([0, 0], np.cov(x, y), size=shape)
        x, y = drawn[..., 0], drawn[..., 1]
    else:
        x = random.normal(0, x.std(ddof=1), size=shape)
        y = random.normal(0, y.std(ddof=1), size=(SIMULATED, len(y)))
    return float(np.expm1(np.quantile(_needed(x, y, paired=paired), POWER)))


def _needed(x: Array, y: Array, *, paired: bool) -> Array:
    """Return by how much each row of y must grow to be called slower than that of x, all in logarithms."""
    lows = [
        bootstrap.ratio(np.exp(b), np.exp(a), paired=paired, resamples=SIMULATED_RESAMPLES).low or 0.0
        for a, b in zip(x, y, strict=True)
    ]
    return -np.minimum(np.log(lows), _mean_low(x, y, paired=paired))


def _notes(a: Point, b: Point) -> Iterator[str]:
    """Yield the caveats of the ratios."""
    if a.source != b.source:
        yield "A and B were measured by different suites, whose clocks include different things"
    kinds: dict[str, list[tuple[str, str]]] = {}  # caveats that differ in their numbers alone
    for side, point in (("A", a), ("B", b)):
        for caveat in point.caveats:
            kinds.setdefault(re.sub(r"\d[\d.,]*", "#", caveat), []).append((side, caveat))
    for _, some in sorted(kinds.items()):
        sides, sentences = dict.fromkeys(side for side, _ in some), {caveat for _, caveat in some}
        more = f" (and {len(sentences) - 1} like it)" if len(sentences) > 1 else ""
        yield f"{' and '.join(sides)}: {some[0][1]}{more}"
    for side, point in (("A", a), ("B", b)):
        if point.mixture:
            yield f"{side}: its runs mix {' and '.join(point.mixture)}"
        if left_out := list(point.left_out.values()):
            more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
            of = f"{len(left_out)} of {point.n + len(left_out)} runs"
            yield f"{side}: {of} are left out as disturbed: {left_out[0]}{more}"
        if point.missed:
            what = "missed the goal, counted as infinite" if point.goal else "did not complete, left out"
            yield f"{side}: {len(point.missed)} of {point.n} runs {what}"
    yield from _environment(a, b)


def _environment(a: Point, b: Point) -> Iterator[str]:
    """Yield the environment variables in which the runs of A and of B differ, with their values."""
    sides = [[provenance.settings(run.software) for run in point.records] for point in (a, b)]
    for name in sorted({name for side in sides for run in side for name in run}):
        of_a, of_b = ({run.get(name, "unset") for run in side} for side in sides)
        if of_a != of_b:
            values = (" or ".join(sorted(side)) for side in (of_a, of_b))
            yield "the environment variable {} is {} in A and {} in B".format(name, *values)


def strategy_labels(points: Sequence[Point], *, but: Collection[str] = ()) -> list[str]:
    """Return each point's sync strategy, with the fields in which points of one task and strategy differ.

    but: fields that are not named.
    """
    values: dict[tuple[str, str, str], set[str]] = {}
    for point in points:
        for name, value in point.series:
            values.setdefault((point.task, point.sync, name), set()).add(value)
    differing = {
        (sync, name) for (_, sync, name), several in values.items() if len(several) > 1 and name not in but
    }
    labels = []
    for point in points:
        fields = {name: parsed(value) for name, value in point.series if (point.sync, name) in differing}
        parts = [f"{name.removeprefix('sync.')}={value}" for name, value in fields.items()]
        labels.append(" ".join([point.sync, *parts]))
    return labels
