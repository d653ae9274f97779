"""How well others' results are predicted: python benchmarks/published_predictions.py TABLE.csv

For each result of the table and each basis it prints what was used, the predicted minutes, their 80 %
interval and the published minutes, then the median error and the coverage of each kind of basis. Of the
predicted submitter nothing is known but the base:

- two sizes: two smaller sizes of the system. one size: the only smaller one.
- accelerator: the submitter's results on other accelerators of the maker. Nobody's results on the predicted
  accelerator are known.
- other submitters: nothing of the submitter.

The results that ship with mlbench are known, too, without those of the submitter. `--nested` fits the spreads
again without each submitter. `--fit` prints the spreads of all shipped results.

    python benchmarks/published_predictions.py mlbench/analysis/results/mlperf-training-v5.1-part.csv \\
        --markdown --picture docs/images/published_predictions.png
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import altair as alt
import numpy as np

from mlbench.analysis import marks, published_results, systems
from mlbench.analysis.published_results import PublishedResult
from mlbench.analysis.systems import ACCELERATOR, FAR, KINDS, TWO_SIZES, SystemForecast, SystemsModel
from mlbench.config.errors import UserError
from mlbench.record.format import counted, duration
from mlbench.report import render
from mlbench.terminal import tables

HEADINGS = ("benchmark", "submitter", "system", "accelerators", "from", "used", "predicted, min")
HEADINGS += ("80 % interval", "published, min", "error", "inside")
TICKS_MIN = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
BEFORE = {  # spreads before any result, each known to a factor of e
    "peak": 0.3,
    "memory": 0.3,
    "accelerator": 0.2,
    "floor": 1.0,
    "nodes": 0.2,
    "system": 0.1,
    "growth": 0.05,
    "noise": 0.05,
}
GAP = 3.0  # ratio of an interval's ends from which a prediction is no advice, as mlbench.predict has it


class Prediction(NamedTuple):
    """A forecast beside the published result."""

    result: PublishedResult
    forecast: SystemForecast

    @property
    def error(self) -> float:
        return self.forecast.minutes / self.result.minutes_mean_of_middle - 1

    @property
    def inside(self) -> bool:
        low, high = self.forecast.ends
        return low <= self.result.minutes_mean_of_middle <= high

    def cells(self) -> list[str]:
        row, (low, high) = self.result, self.forecast.ends
        name = systems.accelerator(row.accelerator).name
        wide = ", no advice" if high > GAP * low else ""
        return [
            row.benchmark,
            row.submitter,
            row.system,
            f"{row.accelerators:,} {name}",
            self.forecast.kind,
            used(self.forecast),
            f"{self.forecast.minutes:.2f}",
            f"{low:.2f} to {high:.2f}{wide}",
            f"{row.minutes_mean_of_middle:.2f}",
            f"{self.error:+.1%}".replace("%", " %"),
            "yes" if self.inside else "no",
        ]


def used(forecast: SystemForecast) -> str:
    """Return the base in words, e.g. 8 and 72 GB200."""
    if forecast.kind == systems.OTHERS:
        names = {row.submitter for row in forecast.base}
        return f"{counted(len(forecast.base), 'result')} of {', '.join(sorted(names))}"
    bases = {(row.accelerators, systems.accelerator(row.accelerator).name) for row in forecast.base}
    return " and ".join(f"{count:,} {name}" for count, name in sorted(bases))


def predictions(
    table: Sequence[PublishedResult], *, nested: bool = False
) -> tuple[list[Prediction], list[str]]:
    """Return the predictions of a table's rows, and a sentence for each row that has none."""
    rows = published_results.with_shipped(table)
    model = SystemsModel(rows)
    models: dict[str, SystemsModel] = {}
    found, refused = [], []
    for i, row in enumerate(table):
        if nested and row.submitter not in models:
            spreads = fitted(
                [j for j in range(len(rows)) if not model.submitters[j] & model.submitters[i]], model
            )
            models[row.submitter] = SystemsModel(rows, spreads)
        try:
            forecasts = models.get(row.submitter, model).forecasts(i)
            found += [Prediction(row, forecast) for forecast in forecasts]
        except UserError as error:
            refused.append(str(error))
    return found, refused


def summary(found: Sequence[Prediction]) -> list[str]:
    """Return median error and coverage of each kind of basis, in sentences."""
    far = [one for one in found if one.forecast.kind == TWO_SIZES and one.forecast.times(one.result) >= FAR]
    groups = {f"{TWO_SIZES}, to {FAR} and more times the accelerators": far}
    groups |= {kind: [one for one in found if one.forecast.kind == kind] for kind in KINDS}
    groups["all"] = list(found)
    return [f"{name}: {_rates(some)}" for name, some in groups.items() if some]


def _rates(some: Sequence[Prediction]) -> str:
    error, inside = median(abs(one.error) for one in some), fmean(one.inside for one in some)
    shares = f"median error {100 * error:.1f} %, 80 % intervals hold {100 * inside:.1f} %"
    return f"{counted(len(some), 'prediction')}, {shares}"


def fitted(at: Iterable[int], model: SystemsModel) -> dict[str, float]:
    """Return the spreads of these rows, by maximum likelihood and BEFORE."""
    from scipy.optimize import minimize

    chosen, names, blocks = np.array([i for i in at if model.usable[i]]), list(BEFORE), []
    for name in sorted(set(model.benchmarks[chosen])):
        rows = chosen[model.benchmarks[chosen] == name]
        minutes = np.log([model.rows[i].minutes_mean_of_middle for i in rows])
        try:
            samples = model.samples(int(rows[0]), list(rows))
        except UserError:
            continue
        terms = {term: values[np.ix_(rows, rows)] for term, values in model.terms.items()}
        terms["noise"] = np.eye(len(rows))
        blocks.append((minutes + np.log(model.count[rows]) - samples - model.prior[rows], terms))
    start = np.log([BEFORE[name] for name in names])

    def cost(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = 0.5 * ((logs - start) ** 2).sum(), logs - start
        for values, terms in blocks:
            covariance = systems.UNKNOWN**2 * terms["unknown"]
            for log, name in zip(logs, names, strict=True):
                covariance = covariance + math.exp(2 * log) * terms[name]
            inverse = np.linalg.inv(covariance)
            weights = inverse @ values
            value += 0.5 * values @ weights + 0.5 * np.linalg.slogdet(covariance)[1]
            slope = slope + [
                math.exp(2 * log) * ((inverse * terms[name]).sum() - weights @ terms[name] @ weights)
                for log, name in zip(logs, names, strict=True)
            ]
        return value, slope

    best = minimize(cost, start, jac=True, method="L-BFGS-B")
    return {name: round(math.exp(log), 3) for name, log in zip(names, best.x, strict=True)}


def chart(found: Sequence[Prediction], title: str) -> alt.LayerChart:
    """Return predicted over published times with the diagonal on which they agree."""
    shown = [one for one in found if one.forecast.kind in (TWO_SIZES, systems.ONE_SIZE, ACCELERATOR)]
    ends = [end for one in shown for end in (*one.forecast.ends, one.result.minutes_mean_of_middle)]
    limits = min(ends), max(ends)
    ticks = [(tick, duration(60 * tick)) for tick in TICKS_MIN if limits[0] <= tick <= limits[1]]
    diagonal = [{"series": "predicted = published", "x": end, "y": end} for end in limits]
    looks = {"predicted = published": marks.look(5)}
    points: list[marks.Row] = []
    for style, kind in enumerate((ACCELERATOR, systems.ONE_SIZE, TWO_SIZES), start=1):
        looks[series := f"from {kind}"] = marks.look(style)
        points += [
            {
                "series": series,
                "x": one.result.minutes_mean_of_middle,
                "y": one.forecast.minutes,
                "low": one.forecast.ends[0],
                "high": one.forecast.ends[1],
                "text": f"{one.result.submitter}, {one.result.system}, {one.result.benchmark}",
            }
            for one in shown
            if one.forecast.kind == kind
        ]
    x, y = (
        marks.axis(f"{name} time to the goal", ticks=ticks, log=True, limits=limits)
        for name in ("published", "predicted")
    )
    return marks.chart(
        "published",
        f"Predicted and published times: {title}",
        [*marks.plain_line(diagonal), *marks.intervals(points), *marks.points(points)],
        looks=looks,
        x=x,
        y=y,
        about="each predicted without the results of its submitter but the base; bars are 80 % intervals",
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the table in Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 2 for a table that cannot be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="?", type=Path, help="the columns are those of the shipped tables")
    parser.add_argument("--nested", action="store_true", help="fit the spreads without each submitter")
    parser.add_argument("--fit", action="store_true", help="print the spreads of the shipped results")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    options = parser.parse_args(arguments)
    if options.fit:
        model = SystemsModel(published_results.shipped())
        print("\n".join(f"{name}: {value}" for name, value in fitted(range(len(model.rows)), model).items()))
        return 0
    try:
        if options.table is None:
            raise UserError("no table", hint="mlbench/analysis/results/mlperf-training-v5.1-part.csv is one")
        table = [one.result for one in published_results.read(options.table)]
    except UserError as error:
        print(f"published_predictions: {error}", file=sys.stderr)
        return 2
    found, refused = predictions(table, nested=options.nested)
    rows = [one.cells() for one in found]
    right = [heading in HEADINGS[6:10] for heading in HEADINGS]
    print(markdown(rows) if options.markdown else tables.table(HEADINGS, rows, right=right, fold=False))
    print("", *(f"Refused: {why}." for why in refused), *(["", *summary(found)] if found else []), sep="\n")
    if options.picture and found:
        render.save([chart(found, options.table.stem)], options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
