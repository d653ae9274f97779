"""What may make a duel unfair: other work, time outside of the clock, a machine that changed meanwhile.

No note changes a verdict: each is a sentence for the reader.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlbench.record import fields, format
from mlbench.studies.duel import STEPS, Contest, Run, digest

LEVEL = 0.001  # of the separate test of each note: many are looked at
METRIC_SHARE = 0.01  # by which the last values of a printed metric may differ
BUSY_SHARE = 0.1  # by which the use of the CPUs may differ
OUTSIDE_SHARE = 0.01  # of a command's time, which one side may spend more outside the clock
FINEST_S = 1e-9  # s, what a clock can resolve
DRIFT_SHARE = 0.02  # by which both sides may become slower or faster meanwhile


def _of_ranks(name: str, text: Callable[[Any], Any]) -> Callable[[Run], Any]:
    return lambda run: ", ".join(str(text(rank[name])) for rank in run.ended.ranks) or None


def _busy(run: Run) -> float | None:
    return run.cpu_s and run.cpu_s / (run.record.wall * run.record.nodes[0].usable_cpus)


# What both must have alike: how it is found in a run, by how much it may differ, and what follows if it does.
ALIKE: dict[str, tuple[Callable[[Run], Any], float, str]] = {
    "steps": (lambda run: run.record.steps, 0.0, "they did not do the same work"),
    "rows": (lambda run: run.record.samples, 0.0, "they did not do the same work"),
    "workers": (lambda run: run.record.workers, 0.0, "they had other means"),
    "threads of each rank": (_of_ranks("threads", int), 0.0, "they had other means"),
    "CPUs that each rank may use": (_of_ranks("cpus", len), 0.0, "they had other means"),
    "share of the CPUs in use": (_busy, BUSY_SHARE, "one waits (sleep, disk, network) or computes on more"),
}


def notes(contest: Contest) -> list[str]:
    """Return all notes on a duel."""
    runs = [[run for run in contest.runs if run.side == side and run.pair] for side in "AB"]
    return [*_changed(contest), *_unlike(*runs), *_machine(contest, runs), *_outside(contest)]


def _changed(contest: Contest) -> Iterator[str]:
    """Yield what was changed or left by a command."""
    if (why := contest.spoiled()) is not None:
        yield f"{why}, so the duel is not decided"
    for run in contest.runs:
        if digest(contest.output_root / run.record.run_id) != run.digest:
            yield f"the record or log of {run.record.run_id} was changed after the run, the verdict was not"
    for side in contest.sides:
        if written := sorted(contest.files.get(side.name, ())):
            more = f" and {len(written) - 1} more" if written[1:] else ""
            yield f"{side.name} writes {written[0]}{more}, which its next run may read"
        if left := [name for run in contest.runs if run.side == side.name for name in run.left]:
            yield f"{side.name} left {left[0]} running, which was ended"


def _unlike(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    """Yield what the two did not have alike."""
    for what, (find, share, follows) in ALIKE.items():
        x, y = _middle(map(find, a)), _middle(map(find, b))
        if x != y and not (share and x and y and abs(x - y) <= share):
            x, y = (format.percent(value) if share and value else value for value in (x, y))
            yield f"{what}: A {x}, B {y}: {follows}"
    for name in sorted({name for run in (*a, *b) for name in _metrics(run)}):
        x, y = (_middle(_metrics(run).get(name) for run in runs) for runs in (a, b))
        if x is None or y is None or abs(x - y) > METRIC_SHARE * max(abs(x), abs(y)):
            yield f"{name} at the end: A {x}, B {y}: they did not learn the same"


def _metrics(run: Run) -> dict[str, float | None]:
    return run.record.validations[-1].metrics if run.record.validations else {}


def _middle(values: Any) -> Any:
    known = [value for value in values if value is not None]
    return statistics.median_low(known) if known else None


def _machine(contest: Contest, runs: Sequence[Sequence[Run]]) -> Iterator[str]:
    """Yield how the machine disturbed the pairs, and how it drifted."""
    out, pairs = contest.left_out(), format.counted(len(contest.pairs()), "pair")
    if out:
        a, b = (sum(bool(run.record.disturbances) for run in side) for side in runs)
        why = f"other processes disturbed A in {a} runs and B in {b} (--with-disturbed counts them)"
        yield f"{len(out)} of {pairs} left out: {why}"
    logs = [math.log(a * b) / 2 for a, b, *_ in contest.counted()]
    if len(logs) > 4:
        from scipy import stats

        trend: Any = stats.linregress(range(len(logs)), logs)
        change = math.expm1(trend.slope * (len(logs) - 1))
        if trend.pvalue < LEVEL and abs(change) > DRIFT_SHARE:
            yield f"both drifted by {format.percent(change)} meanwhile, which the pairs cancel"


def _outside(contest: Contest) -> Iterator[str]:
    """Yield whether one side spends more time while the clock of the comparison does not run."""
    name, counted = contest.quantity.name, [(a, b) for _, _, a, b in contest.counted()]
    if name == "wall" or len(counted) < 4:
        return
    from scipy.special import stdtr

    more = [_seconds_outside(b, name) - _seconds_outside(a, name) for a, b in counted]
    mean, whole = statistics.mean(more), statistics.median(a.record.wall for a, _ in counted)
    error = max(statistics.stdev(more) / math.sqrt(len(more)), FINEST_S)
    if 2 * stdtr(len(more) - 1, -abs(mean) / error) < LEVEL and abs(mean) > OUTSIDE_SHARE * whole:
        who, counts = "AB"[mean > 0], "the clock" if contest.quantity.pattern else name
        yield (
            f"{who} spends {format.duration(abs(mean))} more outside of what {counts} counts "
            "(compare=wall has the whole command)"
        )
    rates = [(a.record.samples_per_s, b.record.samples_per_s) for a, b in counted]
    if contest.quantity.pattern is not None and all(a and b for a, b in rates):
        ratio = statistics.median(b / a for a, b in rates if a and b)
        yield f"the commands print {name}. By the clock B makes {ratio:.3g} times the rows/s of A"


def _seconds_outside(run: Run, name: str) -> float:
    """Return the seconds of a command that the compared quantity leaves out."""
    if name in STEPS and run.value is not None:
        return run.record.wall - run.record.steps * run.value
    if name == "time_to_accuracy" and run.value is not None:
        return run.record.wall - run.value
    return run.record.wall - (fields.batches(run.record) or 0.0)
