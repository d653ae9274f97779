"""Predict the time to the goal of a system from published results of other systems.

The logarithm of accelerator-minutes a sample is a Gaussian process over results. Its terms are data-sheet
figures, the part of a step that no smaller local batch makes shorter, and what results of one benchmark,
accelerator and submitter have in common. docs/prediction-model.md lists the terms.
benchmarks/published_predictions.py measures the errors.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlbench.analysis.published_results import FOLDER, PublishedResult
from mlbench.config.errors import UserError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ALIASES = {"ssd": "retinanet", "gnn": "rgat"}  # names in MLPerf v4.0 and v4.1, and later ones
FIGURES = {"peak": "bf16_tflops", "memory": "memory_gb_s", "link": "link_gb_s"}  # of results/accelerators.csv
EXPONENTS = {"peak": -0.6, "memory": -0.3, "link": -0.1}  # of these figures in the time, before any result
REFERENCE = {"peak": 989.0, "memory": 3350.0, "link": 900.0}  # an H100's, as any constants would do
FLOOR = -1.8  # ln of the local batch, over that of the smallest systems, that takes as long as the fixed part
GROWTH = 0.03  # of the accelerator time for each e-fold of accelerators, before any result
ISLAND = 8  # accelerators from which growth counts
UNKNOWN = 3.0  # standard deviation of what no data sheet states: the work of a benchmark
# Standard deviations of the terms, by maximum likelihood from the shipped results:
# python benchmarks/published_predictions.py --fit (2026-11-27).
SPREADS = {
    "peak": 0.347,
    "memory": 0.28,
    "accelerator": 0.186,
    "floor": 1.433,
    "nodes": 0.193,
    "system": 0.095,
    "growth": 0.03,
    "noise": 0.061,
}
KINDS = TWO_SIZES, ONE_SIZE, ACCELERATOR, OTHERS = "two sizes", "one size", "accelerator", "other submitters"
FAR = 4  # times the accelerators of the larger base, from which a prediction from two sizes goes far
LEVEL = 0.8  # of an interval
FEWEST, SHRINKAGE = (
    30,
    8,
)  # errors from which a round is calibrated alone; that the normal distribution counts for


@dataclass(frozen=True)
class Accelerator:
    """An accelerator. `figures` has ln of its dense data-sheet figures over an H100's, none if unknown."""

    name: str
    maker: str
    figures: Mapping[str, float]


@cache
def accelerator(text: str) -> Accelerator:
    """Return the accelerator that a text names, e.g. NVIDIA H200-SXM5-141GB."""
    for row in csv.DictReader((FOLDER / "accelerators.csv").read_text("utf-8").splitlines()):
        if re.search(row["pattern"], text, re.IGNORECASE):
            figures = {
                name: math.log(float(row[column]) / REFERENCE[name]) for name, column in FIGURES.items()
            }
            return Accelerator(row["name"], row["maker"], figures)
    return Accelerator(text, text.partition(" ")[0], {})


@cache
def convergence() -> Mapping[str, Mapping[float, float]]:
    """Return samples (or epochs) to the goal of MLPerf's reference runs, by benchmark and global batch."""
    curves: dict[str, dict[float, float]] = {}
    for row in csv.DictReader((FOLDER / "convergence.csv").read_text("utf-8").splitlines()):
        curves.setdefault(row["benchmark"], {})[float(row["global_batch"])] = float(row["samples_or_epochs"])
    return curves


class Basis(NamedTuple):
    """What a prediction rests on. Both arrays have the shape (rows,)."""

    kind: str
    base: Mask  # the submitter's results that may be used
    known: Mask  # the base and other submitters' results


@dataclass(frozen=True)
class SystemForecast:
    """The time to the goal of a system. Spread and half width are of its logarithm."""

    kind: str
    base: tuple[PublishedResult, ...]
    log_minutes: float
    spread: float  # standard deviation
    half_width: float = math.nan  # of the interval that holds LEVEL

    @property
    def minutes(self) -> float:
        return math.exp(self.log_minutes)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval, minutes."""
        return math.exp(self.log_minutes - self.half_width), math.exp(self.log_minutes + self.half_width)

    def times(self, row: PublishedResult) -> float:
        """Return how many times the accelerators of the largest base a system has."""
        return row.accelerators / max(result.accelerators for result in self.base)


class SystemsModel:
    """The process over these results. A prediction names those that it may use.

    Targets are systems without results. Their rows follow the others, and their times are unknown.
    """

    def __init__(
        self,
        rows: Sequence[PublishedResult],
        spreads: Mapping[str, float] = SPREADS,
        targets: Sequence[PublishedResult] = (),
    ) -> None:
        self.rows = rows = (*rows, *targets)
        self.benchmarks = np.array([ALIASES.get(row.benchmark, row.benchmark) for row in rows])
        self.accelerators = [accelerator(row.accelerator) for row in rows]
        self.submitters = [{part.strip().casefold() for part in row.submitter.split("+")} for row in rows]
        self.count = np.array([row.accelerators or 1 for row in rows], np.float64)
        self.usable = np.array([not _unusable(row) for row in rows])
        self.usable[len(rows) - len(targets) :] = False
        self.terms, self.prior = self._terms()
        self.covariance = UNKNOWN**2 * self.terms["unknown"]
        for name, term in self.terms.items():
            self.covariance = self.covariance + spreads.get(name, 0.0) ** 2 * term
        self.noise = spreads["noise"] ** 2
        self._cache: dict[tuple[int, str], list[float | None]] = {}  # errors by row and kind

    def _terms(self) -> tuple[dict[str, Array], Array]:
        """Return each term's (rows, rows) covariance for a spread of 1, and (rows,) means before any result.

        Results of different benchmarks have nothing in common but SPREADS.
        """
        names = np.array([part.name for part in self.accelerators])
        figures = {
            name: np.array([part.figures.get(name, 0.0) for part in self.accelerators]) for name in FIGURES
        }
        unlisted = np.array([float(not values) for values in (part.figures for part in self.accelerators)])
        batch = np.array([row.global_batch or 1.0 for row in self.rows]) / self.count
        smallest = self._smallest(batch)
        local = np.log(batch / [smallest[name] for name in self.benchmarks])
        fixed = 1 / (1 + np.exp(local - FLOOR))  # share of a step that no smaller local batch makes shorter
        nodes = np.array([float((row.nodes or 1) > 1 and row.accelerators > ISLAND) for row in self.rows])
        growth = np.log(self.count / ISLAND)
        systems = [f"{row.submitter}|{row.round}|{name}" for row, name in zip(self.rows, names, strict=True)]
        task, accelerators, system = map(_equal, (self.benchmarks, names, np.array(systems)))
        terms = {
            "unknown": 1 + accelerators * np.outer(unlisted, unlisted),
            "peak": np.outer(figures["peak"], figures["peak"]),
            "memory": np.outer(figures["memory"], figures["memory"]),
            "accelerator": accelerators,
            "floor": np.outer(fixed, fixed),
            "nodes": np.outer(nodes, nodes),
            "system": system,
            "growth": system * np.outer(growth, growth),
        }
        prior = np.logaddexp(0.0, FLOOR - local) + GROWTH * growth
        for name, values in figures.items():
            prior = prior + EXPONENTS[name] * values
        return {name: task * term for name, term in terms.items()}, prior

    def _smallest(self, batch: Array) -> dict[str, float]:
        """Return the median local batch of the smallest systems of each benchmark."""
        smallest = {}
        for name in set(self.benchmarks):
            of = self.benchmarks == name
            smallest[name] = float(np.median(batch[of & (self.count <= max(ISLAND, self.count[of].min()))]))
        return smallest

    def bases(self, i: int) -> Iterator[Basis]:
        """Yield what row i can be predicted from. Of its submitter only the results of the base are used.

        A prediction from other accelerators of the maker uses no result of any submitter on the row's
        accelerator.
        """
        row, mine = self.rows[i], self.accelerators[i]
        others = self.usable & np.array([not names & self.submitters[i] for names in self.submitters])
        task = self.usable & (self.benchmarks == self.benchmarks[i])
        task &= np.array([other.round == row.round for other in self.rows])
        alike = np.array([part.name == mine.name for part in self.accelerators])
        maker = np.array([part.maker == mine.maker and bool(part.figures) for part in self.accelerators])
        smaller = task & ~others & alike & (self.count < self.count[i])
        sizes = sorted(set(self.count[smaller]))
        far = [size for size in sizes if FAR * size <= self.count[i]]
        if sizes:
            base = smaller & np.isin(self.count, far[-2:] if len(far) > 1 else sizes[:2])
            yield Basis(TWO_SIZES if len(sizes) > 1 else ONE_SIZE, base, others | base)
        base = task & ~others & maker & ~alike
        if mine.figures and base.any():
            yield Basis(ACCELERATOR, base, (others & ~alike) | base)
        if (base := task & others & alike).any():
            yield Basis(OTHERS, base, others)

    def samples(self, i: int, at: Sequence[int]) -> Array:
        """Return ln of the samples to the goal of these rows of row i's benchmark."""
        rows, known = [self.rows[j] for j in at], [self.rows[j] for j in at if j != i]
        curve = convergence().get(self.benchmarks[i]) or _measured(known, rows)
        return np.array([_log_samples(curve, row.global_batch or 1.0) for row in rows])

    def predict(self, i: int, basis: Basis) -> SystemForecast:
        """Return the forecast of row i, whose published time and samples are not read.

        Raises UserError if the samples that its batch needs are unknown.
        """
        at = np.flatnonzero(basis.known & (self.benchmarks == self.benchmarks[i]))
        samples = self.samples(i, [*map(int, at), i])
        minutes = np.log([self.rows[j].minutes_mean_of_middle for j in at])
        values = minutes + np.log(self.count[at]) - samples[:-1] - self.prior[at]
        covariance = self.covariance[np.ix_(at, at)] + self.noise * np.eye(len(at))
        between = self.covariance[i, at]
        weights = np.linalg.solve(covariance, np.stack([values, between], axis=1))
        mean = self.prior[i] + between @ weights[:, 0] + samples[-1] - math.log(self.count[i])
        variance = self.covariance[i, i] + self.noise - between @ weights[:, 1]
        base = tuple(self.rows[j] for j in np.flatnonzero(basis.base))
        return SystemForecast(basis.kind, base, float(mean), math.sqrt(max(variance, self.noise)))

    def forecasts(self, i: int) -> list[SystemForecast]:
        """Return the calibrated forecasts of row i, one a basis. Raises UserError if there is none."""
        row = self.rows[i]
        name = f"{row.submitter}'s {row.system} cannot be predicted in {row.benchmark}"
        if why := _unusable(row):
            raise UserError(f"{name}: {why}")
        forecasts = [self.predict(i, basis) for basis in self.bases(i)]
        if not forecasts:
            of = f" of round {row.round}" if row.round else ""
            raise UserError(f"{name}: no other result{of} has its submitter or its accelerator")
        return [replace(one, half_width=one.spread * self._quantile(i, one.kind)) for one in forecasts]

    def _quantile(self, i: int, kind: str) -> float:
        """Return how many standard deviations hold LEVEL of the errors of other submitters' results.

        Row i is not known to their forecasts. Those of its round alone count if they are FEWEST or more.
        """
        mine, usable = self.submitters[i], map(int, np.flatnonzero(self.usable))
        others = [j for j in usable if not self.submitters[j] & mine]
        same = [j for j in others if self.rows[j].round == self.rows[i].round]
        errors = self._errors(i, kind, same)
        if len(errors) < FEWEST:
            errors = self._errors(i, kind, others)
        normal = NormalDist().inv_cdf((1 + LEVEL) / 2)
        if not errors:
            return normal
        seen = float(np.quantile(errors, min(1.0, LEVEL * (1 + 1 / len(errors)))))  # conformal
        return (len(errors) * seen + SHRINKAGE * normal) / (len(errors) + SHRINKAGE)

    def _errors(self, i: int, kind: str, at: Iterable[int]) -> list[float]:
        """Return the sizes of the errors of these rows, in standard deviations, if row i is not known."""
        unknown = np.arange(len(self.rows)) == i
        errors = []
        for j in at:
            if self.benchmarks[j] == self.benchmarks[i]:
                errors += [self._error(j, basis, unknown) for basis in self._known[j] if basis.kind == kind]
            else:  # row i has no influence on it
                if (j, kind) not in self._cache:
                    several = [self._error(j, basis) for basis in self._known[j] if basis.kind == kind]
                    self._cache[j, kind] = several
                errors += self._cache[j, kind]
        return [error for error in errors if error is not None]

    def _error(self, j: int, basis: Basis, unknown: Mask | None = None) -> float | None:
        """Return the size of row j's error, or None if its samples are unknown, or it has no other result."""
        known = basis.known if unknown is None else basis.known & ~unknown
        if not (known & (self.benchmarks == self.benchmarks[j])).any():
            return None
        try:
            one = self.predict(j, basis._replace(known=known))
        except UserError:
            return None
        return abs(math.log(self.rows[j].minutes_mean_of_middle) - one.log_minutes) / one.spread

    @cached_property
    def _known(self) -> list[list[Basis]]:
        """The bases of each row."""
        return [[*self.bases(i)] if self.usable[i] else [] for i in range(len(self.rows))]


def _unusable(row: PublishedResult) -> str:
    """Return why a result is unusable for predictions and cannot be predicted, or "" if it can."""
    if row.division == "open":
        return "the open division trains other models"
    if not row.accelerators or not row.accelerator:
        return "its accelerators are not stated"
    return "" if row.global_batch else "its batch is not stated"


def _equal(names: NDArray[np.str_]) -> Array:
    return (names[:, None] == names[None, :]).astype(np.float64)


def _measured(known: Sequence[PublishedResult], rows: Sequence[PublishedResult]) -> Mapping[float, float]:
    """Return the median samples to the goal by batch, as known results state them."""
    samples: dict[float, list[float]] = {}
    for row in known:
        if row.samples_to_goal and row.global_batch:
            samples.setdefault(row.global_batch, []).append(row.samples_to_goal)
    batches = sorted({row.global_batch or 1.0 for row in rows})
    if len(batches) == 1:
        return {batches[0]: 1.0}  # the same work, whatever it is
    if not samples:
        sentence = f"the samples to the goal of {rows[0].benchmark} are unknown at batches of "
        sentence += " and ".join(f"{batch:g}" for batch in (batches[0], batches[-1]))
        raise UserError(sentence, hint="state samples_to_goal in the table")
    return {batch: median(values) for batch, values in samples.items()}


def _log_samples(curve: Mapping[float, float], batch: float) -> float:
    """Return ln of the samples that a batch needs, on lines between the measured batches.

    A smaller batch than these needs as many as their smallest. Beyond the largest the last line goes on.
    """
    x, y = np.log(sorted(curve)), np.log([curve[size] for size in sorted(curve)])
    at = math.log(batch)
    if len(x) > 1 and at > x[-1]:
        return float(y[-1] + (y[-1] - y[-2]) / (x[-1] - x[-2]) * (at - x[-1]))
    return float(np.interp(at, x, y))
