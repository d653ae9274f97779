"""Answer a study's question in three sentences, from the data alone: time, price, certainty."""

import math
from collections.abc import Sequence

from mlbench.analysis.bootstrap import FEWEST_SHOWN, LEVEL, Ratio, max_coverage, ratio
from mlbench.analysis.compare import slower_points
from mlbench.analysis.points import SOURCE, Point
from mlbench.analysis.pooling import calibration
from mlbench.analysis.speedup import Speedup
from mlbench.analysis.tradeoff import optimum
from mlbench.record import attempts
from mlbench.record.format import counted, duration, factor, number, percent, usd
from mlbench.report.grouping import Group, ScalingCurve, of, tables
from mlbench.tasks import registry, script

MOST_NAMED = 5  # other curves named in a sentence; of more it names the fastest and counts the rest
SAME_BATCH = 0.1  # of a batch, by which an epoch's last one may shift the mean
NEAR = 0.93  # a coverage below this is stated: five runs reach 94 %, four 88 %


def answer(group: Group) -> list[str]:
    """Return three sentences about the measured points of one task, scale, goal and data set."""
    ours = group.own
    certainty = _certainty([point for curve in ours for point in curve.points])
    report = registry.report(group.task)
    if report and tables(group):
        return [*report.summary(tables(group)), certainty]
    return [_time(group, ours), _price(group), certainty]


def headline(group: Group) -> list[str]:
    """Return the answer of a task in a row: best point, time, speed-up, cost, runs, trust."""
    ours = group.own
    some = [point for curve in ours for point in curve.points]
    runs = sum(point.n for point in some)
    trust = "too few runs" if min(point.n for point in some) < FEWEST_SHOWN else "intervals"
    if busy := _busy(some):
        trust = f"{of(busy, runs)} on a busy machine"
    allowed = _ranked(ours)
    if group.goal is None or not allowed:
        why = "not comparable" if any(point.median_s < math.inf for point in some) else "goal not reached"
        return ["-", why if group.goal else "no goal", "-", "-", str(runs), trust]
    curve, best = min(allowed, key=lambda pair: pair[1].point.median_s)
    time, total, bill = best.point.time_to_accuracy, best.total, best.point.usd
    assert time is not None
    return [
        f"{curve.prefix}{counted(best.point.workers, 'worker')}",
        duration(time.value),
        number(total.value) if total and total.value is not None and not best.why else "-",
        usd(bill.value) if bill and bill.value < math.inf else "-",
        str(runs),
        trust,
    ]


HEADLINE = ("fastest", "time to accuracy", "speed-up", "cost", "runs", "trust")


def _busy(some: Sequence[Point]) -> int:
    """Return how many runs were measured under other load. A load before a run may be the last run's."""
    return sum(bool(run.disturbances) for point in some for run in point.records)


def _time(group: Group, ours: Sequence[ScalingCurve]) -> str:
    scaling = _scaling(ours)
    if group.goal is None:
        return f"The runs had no goal, so they have no time to accuracy and no speed-up{scaling}."
    allowed = _ranked(ours)
    if not allowed:
        return _unanswered(group)
    curve, best = min(allowed, key=lambda pair: pair[1].point.median_s)
    time = best.point.time_to_accuracy
    assert time is not None
    within = ""
    if time.low is not None and time.high is not None:
        end = duration(time.high) if math.isfinite(time.high) else "no upper end"
        within = f", {100 * max_coverage(time.n):.0f} % interval {duration(time.low)} to {end}"
    which = f"{curve.prefix}{counted(best.point.workers, 'worker')}"
    repeats = f"median of {counted(time.n, 'run')}" if time.n > 1 else "a single run"
    sentence = f"Fastest to {group.target} is {which} in {duration(time.value)} ({repeats}{within})"
    slower = _slower_points(group.compared)
    clause = _against_one(best, curve.speedups, slower)
    return f"{sentence}{clause}{_against_others(curve, best, allowed, slower)}{scaling}."


def _ranked(ours: Sequence[ScalingCurve]) -> list[tuple[ScalingCurve, Speedup]]:
    """Return the points that may be called the fastest: none if all rivals of the only one were disturbed."""
    allowed = [(curve, speedup) for curve in ours for speedup in curve.compared]
    rivals = [point for curve in ours for point in curve.points if point.median_s < math.inf]
    return [] if len(allowed) == 1 and any(map(_is_only_disturbed, rivals)) else allowed


def _is_only_disturbed(point: Point) -> bool:
    """Return whether other load is all that speaks against a point's runs."""
    noise = {sentence for run in point.records for sentence in run.disturbances}
    return bool(point.caveats) and not point.oversubscribed and not set(point.caveats) - noise


def _unanswered(group: Group) -> str:
    """Return why no point is called the fastest and, if other load is the reason, what to do."""
    without = f"No point reached {group.target} in more than half of its runs"
    reached = [(curve, point) for curve in group.own for point in curve.points if point.median_s < math.inf]
    if not reached:
        return f"{without}."
    curve, least = min(reached, key=lambda pair: pair[1].median_s)
    runs = sum(point.n - len(point.missed) + len(point.left_out) for point in group.points)
    disturbed = sum(len(point.disturbed) for point in group.points)
    if not any(_is_only_disturbed(point) for _, point in reached):  # no quiet run would help
        return f"{without} without sharing CPUs or another caveat."
    study = least.records[0].experiment.study
    these = f"results show study:{study}" if study else "results plot"
    return (
        f"No point is called the fastest to {group.target}, as {of(disturbed, runs)} that reached it were "
        f"disturbed. The lowest median is that of {curve.prefix}{counted(least.workers, 'worker')}, "
        f"{duration(least.median_s)}. "
        "Measure more repeats on a quiet machine, which then count alone, or compare these: "
        f"mlbench {these} --with-disturbed."
    )


def _scaling(ours: Sequence[ScalingCurve]) -> str:
    """Return whether workers share a step's samples or have as many each, if no task states its batch."""
    kinds: dict[str, None] = {}
    for curve in ours:
        runs = [run for point in curve.points for run in point.records if run.steps and run.samples]
        batches = {run.workers: run.samples / run.steps for run in runs}
        if len(batches) < 2 or any(hasattr(run.experiment.task, "batch_size") for run in runs):
            continue
        fewest, unit = min(batches), runs[0].sample_unit
        first, rest = batches[fewest], [(k / fewest, batches[k]) for k in batches if k > fewest]
        if all(math.isclose(batch, first * more, rel_tol=SAME_BATCH) for more, batch in rest):
            kinds[f"Weak scaling: each worker has {number(first / fewest)} {unit} of a step"] = None
        elif all(math.isclose(batch, first, rel_tol=SAME_BATCH) for _, batch in rest):
            kinds[f"Strong scaling: the workers share the {number(first)} {unit} of a step"] = None
        else:
            steps = ", ".join(f"{number(batches[k])} with {counted(k, 'worker')}" for k in sorted(batches))
            kinds[f"Neither weak nor strong scaling: a step has {steps} ({unit})"] = None
    return "".join(f". {kind}" for kind in kinds)


def _slower_points(points: Sequence[Point]) -> set[tuple[int, int]]:
    """Return the pairs of points (ids) of which the first is shown to be slower, among all pairs together."""
    shown = slower_points(points, [point.times for point in points])
    return {(id(points[i]), id(points[j])) for i, j in shown}


def _times(quotient: Ratio, what: str) -> str:
    """Return a ratio in a sentence, its interval behind it."""
    if quotient.low is None or quotient.high is None:
        return f"{factor(quotient.value or math.nan)} times {what}"
    ends = f"{factor(quotient.low)} to {factor(quotient.high)}"
    return f"{factor(quotient.value or math.nan)} times {what} ({100 * LEVEL:.0f} % interval {ends})"


def _against_one(best: Speedup, compared: Sequence[Speedup], slower: set[tuple[int, int]]) -> str:
    if best.why or best.total is None or best.total.value is None or best.efficiency is None:
        faster = best.base and (id(best.base), id(best.point)) in slower
        shown = ", shown to be faster than one worker, but" if faster else ","
        return f"{shown} without a speed-up: {best.why}"
    if best.point is best.base:
        rivals = [speedup for speedup in compared if speedup.point is not best.point]
        others = [rival.point for rival in rivals if rival.why is None]
        if not others:
            if not rivals:
                return ", without a comparison: no other point was measured"
            rival = min(rivals, key=lambda rival: rival.point.median_s)
            if (id(rival.point), id(best.point)) not in slower:
                return f", without a comparison: {rival.why}"
            many = counted(rival.point.workers, "worker")
            return f": {many} are shown to be slower, though not by how much: {rival.why}"
        return f": {_slower(min(others, key=lambda point: point.median_s), best.point, slower)}"
    doubt = _doubt(best.base or best.point, best.point, "it is faster at all", slower)
    parts = f"a parallel efficiency of {percent(best.efficiency.value or 0)}"
    if best.total.value > best.point.workers:
        parts = _parts(best.base or best.point, best.point) or parts
    return f", {_times(best.total, 'as fast as one worker')}{doubt}, {parts}"


def _parts(base: Point, point: Point) -> str:
    """Return a speed-up in its two parts, throughput and epochs to the goal, or "" if one is unknown."""
    before, after = base.seconds_per_epoch, point.seconds_per_epoch
    if not (before and after and after.value and base.epochs and point.epochs):
        return ""
    pace = before.value / after.value
    return (
        f"in two parts: an epoch is {factor(pace)} times as fast (a parallel efficiency of "
        f"{percent(pace / point.workers)}), and the goal took {number(point.epochs.value)} epochs "
        f"instead of {number(base.epochs.value)}"
    )


def _slower(other: Point, best: Point, slower: set[tuple[int, int]]) -> str:
    """Return by how much the next fastest point is slower, and whether that is shown."""
    longer = ratio(other.times, best.times)
    if longer.value is None or not math.isfinite(longer.value):
        return f"with {counted(other.workers, 'worker')} half of the runs or more missed the goal"
    doubt = _doubt(other, best, "more workers are slower", slower)
    return f"{counted(other.workers, 'worker')} need {_times(longer, 'as long')}{doubt}"


def _against_others(
    curve: ScalingCurve,
    best: Speedup,
    allowed: Sequence[tuple[ScalingCurve, Speedup]],
    slower: set[tuple[int, int]],
) -> str:
    """Return how the fastest points of the other curves compare with the fastest of all."""
    rivals: dict[str, Point] = {}
    for other, speedup in sorted(allowed, key=lambda pair: pair[1].point.median_s):
        if other is not curve:
            rivals.setdefault(other.label, speedup.point)
    certain = {label: (id(rival), id(best.point)) in slower for label, rival in rivals.items()}
    named = ""
    for label in list(rivals)[:MOST_NAMED]:
        longer = ratio(rivals[label].times, best.point.times)
        what = f"takes {_times(longer, 'as long')}" if certain[label] else "is not shown to be slower"
        if certain[label] and calibration(rivals[label].records, best.point.records).difference:
            what = "is shown to be slower, though not by how much, as the machines were not equally fast"
        named += f". At its fastest {label} {what}"
    others = list(certain.values())[MOST_NAMED:]
    for many, what in ((others.count(True), "slower"), (others.count(False), "not shown to be slower")):
        if many:
            named += f". {many} more {'is' if many == 1 else 'are'} {what}"
    return named


def _doubt(slow: Point, fast: Point, claim: str, slower: set[tuple[int, int]]) -> str:
    """Return why a ratio is doubtful, or an empty result if it is not."""
    if (id(slow), id(fast)) in slower:
        return ""
    fewest = min(slow.n, fast.n)
    if fewest < FEWEST_SHOWN:
        few = "a single run is" if fewest == 1 else f"{fewest} runs are"
        return f", but {few} too few to show that {claim}"
    return f", which does not show that {claim}"


def _price(group: Group) -> str:
    ours = group.own
    parts = []
    optima = [(curve, best) for curve in ours if (best := optimum(curve.points, group.compared))]
    if len(optima) > MOST_NAMED:
        optima.sort(key=lambda pair: pair[0].fastest)
    for curve, best in optima[:MOST_NAMED]:
        bill = best.point.usd
        where = counted(best.point.workers, "worker")
        priced = (
            f", and with {where} the goal costs {usd(bill.value)}" if bill and bill.value < math.inf else ""
        )
        parts.append(f"{curve.prefix}{best.sentence.rstrip('.')}{priced}")
    unpriced = all(point.usd is None for curve in ours for point in curve.points)
    if not parts:
        return "No two numbers of workers can be compared in price-performance."
    if more := len(optima) - len(parts):
        parts.append(f"The table has {more} more")
    assumption = " (this hardware has no price, assuming that all nodes cost the same)"
    return f"{'. '.join(parts)}{assumption if unpriced else ''}."


def _certainty(some: Sequence[Point]) -> str:
    runs = sum(point.n for point in some)
    missed = sum(len(point.missed) for point in some)
    has_goal = any(point.goal for point in some)
    fewest = min(point.n for point in some)
    apart = sorted({point.workers for point in some if point.exclusion_reason and point.times})
    parts = [f"This rests on {counted(runs, 'run')} at {counted(len(some), 'point')}"]
    parts.append(
        f"{missed} missed the goal and {'counts' if missed == 1 else 'count'} as infinite time"
        if missed
        else ("none missed its goal" if has_goal else "the runs had no goal")
    )
    if fewest < FEWEST_SHOWN:
        several = f"{fewest} runs" if fewest > 1 else "a single run"
        parts.append(f"{several} per point cannot show a difference, run at least {FEWEST_SHOWN}")
    if fewest > 1 and max_coverage(fewest) < NEAR:
        parts.append(
            f"with n = {fewest} an interval is the full range of the runs and covers the median in "
            f"{100 * max_coverage(fewest):.0f} % of studies, not {100 * LEVEL:.0f} %"
        )
    deleted = sum(point.deleted for point in some)
    if excluded := attempts.excluded_summary(
        [run for point in some for run in point.attempts], deleted=deleted
    ):
        parts.append(f"of {excluded}")
    censored = sum(run.status in ("interrupted", "preempted") for point in some for run in point.records)
    if censored:
        parts.append(f"{censored} of the missed were stopped after the median time")
    left_out = sum(len(point.left_out) for point in some)
    if left_out:
        parts.append(f"{counted(left_out, 'run')} left out as disturbed")
    if busy := _busy(some):
        parts.append(f"{of(busy, runs)} measured on a busy machine: do not trust these times")
    mixed = sorted({what for point in some for what in point.mixture})
    if mixed:
        parts.append(f"the runs of a point mix {' and '.join(mixed)}")
    if any(map(_without_seeds, some)):
        parts.append(
            f"the script had none of the runs' seeds (task.args has no {script.SEED}): if it sets one seed, "
            "the intervals have the noise of the machine alone"
        )
    own = [point for point in some if point.source == SOURCE and point.n >= FEWEST_SHOWN]
    starts = [sorted(run.started_at for run in point.records) for point in own]
    if starts and max(first for first, *_ in starts) > min(last for *_, last in starts):
        why = "a change of the machine would look the same"
        parts.append(f"some points were measured after others, not in turns: {why}")
    if official := sorted({point.workers for point in some if not point.unofficial}):
        parts.append(f"official: the runs of {_workers(official)}")
    if apart:
        parts.append(f"excluded from speed-ups: the runs of {_workers(apart)}")
    return "".join(f"{part[0].upper()}{part[1:]}. " for part in parts).rstrip()


def _without_seeds(point: Point) -> bool:
    """Return whether a point has runs of several seeds that its script was not given."""
    tasks = [run.experiment.task for run in point.records if run.experiment.task.name == "script"]
    unseeded = any(script.SEED not in getattr(task, "args", "") for task in tasks)
    return unseeded and len({run.seed for run in point.records}) > 1


def _workers(counts: Sequence[int]) -> str:
    """Return 1 worker, or 1, 2 and 4 workers."""
    *rest, last = counts
    return f"{', '.join(map(str, rest))} and {last} workers" if rest else counted(last, "worker")
