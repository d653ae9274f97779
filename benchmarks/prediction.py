"""How wrong predictions are: every published study and every pair of processors, predicted and measured.

    python benchmarks/prediction.py --picture docs/images/prediction.png

Prints the table of docs/prediction-model.md. Studies are fitted at 1, 2 and 4 workers. Pairs of processors
get the error that MLPerf's results show, of which they are none. `--study NAME`, of this machine
at three worker counts or more, adds each count predicted from the others, `--links FITTED OTHER ...` what
studies over other emulated links took, predicted from the first, e.g. of the studies that these measure on
two cores:

    python -m mlbench.sweep study=quick workers=2,3,4 network=1gbit_1ms network.cpus=0.4
    python -m mlbench.sweep study=links task=logreg,resnet20 workers=2,4 hardware.threads_per_worker=1 \\
        network=1gbit_1ms network.cpus=0.4 network.delay_ms=0.5,5 repeats=2
    python -m mlbench.sweep study=racks task=logreg,resnet20 workers=4 hardware.threads_per_worker=1 \\
        network=1gbit_1ms network.cpus=0.4 network.racks=2 network.delay_ms=0.5 network.rack_delay_ms=4.5 \\
        repeats=2

The row of spot nodes is what `python benchmarks/spot.py` prints.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.published import load
from mlbench.config.errors import UserError
from mlbench.plugins.prediction import model, published_runs
from mlbench.plugins.prediction.forecast import Forecast, forecast
from mlbench.plugins.prediction.model import NetworkCost, Target
from mlbench.plugins.prediction.processors import factor, profile
from mlbench.record import format, run_folders
from mlbench.record.record import Record
from mlbench.report import render

FITTED = [1, 2, 4]
# min; MLPerf Training v0.7 to 24 BLEU and NVIDIA's example for 6 epochs (mlbench/analysis/tables)
ELSEWHERE = (
    ("gnmt", "aws_p4d_24xlarge", 8, (7.81, 22.7)),
    ("gnmt", "aws_p4d_24xlarge", 16, (4.94,)),
    ("gnmt", "aws_p3_2xlarge", 1, (224.0,)),
    ("gnmt", "aws_p3dn_24xlarge", 8, (18.5, 38.6)),
    ("transformer", "aws_p4d_24xlarge", 8, (7.84,)),
)
TICKS_S = (1, 10, 60, 600, 3600, 36_000)
PUBLISHED_ON = {"V100": "aws_p3_2xlarge", "A100": "aws_p4d_24xlarge"}  # profiles that state the peaks
SAME_NODE = {"DGX-1, 8 V100": "V100", "8 V100": "V100", "DGX A100, 8 A100": "A100", "8 A100": "A100"}
MEASURED = ("throughput", "time_to_accuracy")  # of two the first counts: it has no luck with the epochs


@dataclass(frozen=True)
class Row:
    """A prediction beside what was measured; ratios to the source for pairs, seconds else."""

    group: str
    case: str
    unit: str  # "s" or "" of a ratio
    predicted: float
    low: float
    high: float
    measured: tuple[float, ...]

    @property
    def inside(self) -> bool:
        return self.low <= min(self.measured) and max(self.measured) <= self.high

    def cells(self) -> list[str]:
        text = format.duration if self.unit else "{:.2f}".format
        measured = " and ".join(map(text, self.measured))
        interval = f"{text(self.low)} to {text(self.high)}"
        return [self.case, text(self.predicted), interval, measured, "yes" if self.inside else "no"]


def studies() -> Iterator[Row]:
    """Predict each published study at the counts that were not fitted."""
    for task in published_runs.TASKS:
        for backend in ("nccl", "gloo", "mpi"):
            try:
                runs = published_runs.measurements(task, backend=backend)
            except UserError:
                continue
            fit = model.fit(model.check(runs.only(FITTED)))
            for prediction in forecast(fit, [k for k in runs.counts if k > max(FITTED)]):
                case = f"{task}, {backend}, {prediction.workers} workers"
                yield row("study", case, prediction, runs.times(prediction.workers))


def row(group: str, case: str, prediction: Forecast, measured: Sequence[float]) -> Row:
    """Return a predicted time to accuracy beside the measured ones, in s."""
    time = prediction.time_s
    return Row(group, case, "s", time.value, time.low or 0.0, time.high or math.inf, tuple(measured))


def own(names: Sequence[str], output_root: Path) -> Iterator[Row]:
    """Predict each worker count of studies of this machine from their other counts, task by task."""
    for name in names:
        for task, records in by_task(run_folders.study(output_root, name)).items():
            runs = model.from_records(records, title=name)
            for k in runs.counts if len(runs.counts) > 2 else ():
                rest = runs.only([count for count in runs.counts if count != k])
                (prediction,) = forecast(model.fit(model.check(rest)), [k])
                case = f"{name}, {task}, {format.counted(k, 'worker')} from {_list(rest.counts)}"
                yield row("own", case, prediction, [median(runs.times(k))])


def links(fitted: str, others: Sequence[str], output_root: Path) -> Iterator[Row]:
    """Predict what studies over other emulated links took from the runs of one study."""
    records = [run for name in others for run in run_folders.study(output_root, name)]
    for task, runs in by_task(run_folders.study(output_root, fitted)).items():
        fit = model.fit(model.check(model.from_records(runs, title=fitted)))
        for network in dict.fromkeys(run.experiment.network for run in records):
            here = [run for run in by_task(records).get(task, []) if run.experiment.network == network]
            if not here:
                continue
            measured = model.from_records(here, title=str(network))
            delay_ms = network.delay_ms + (network.rack_delay_ms if network.racks > 1 else 0.0)
            link = NetworkCost.stated(f"{measured.hardware.network_gbit_per_s:g}gbit,{1e3 * delay_ms:g}us")
            for prediction in forecast(fit, measured.counts, Target(network=link)):
                k = prediction.workers
                yield row("link", f"{task}, {k} hosts, {network}", prediction, [median(measured.times(k))])


def by_task(records: Sequence[Record]) -> dict[str, list[Record]]:
    tasks: dict[str, list[Record]] = {}
    for run in records:
        tasks.setdefault(run.experiment.task.name, []).append(run)
    return tasks


def _list(counts: Sequence[int]) -> str:
    return " and ".join(map(str, counts))


class ProcessorPair(NamedTuple):
    """The same software on two processors, published: what their peaks predict, and what was measured."""

    task: str
    label: str
    workers: int
    peaks: float  # ratio of the stated peaks
    speedup: float  # ratio of the measured speeds


@cache
def pairs() -> tuple[ProcessorPair, ...]:
    """Return every pair of the shipped tables: one software, task, precision and count on V100 and on A100.

    NVIDIA's FP32 goes with TF32, the precision that replaced it in the same code; MLPerf's code is fp16.
    """
    speeds: dict[tuple[str, str, int], dict[str, dict[str, tuple[float, str]]]] = {}
    for row in load(publisher="peer"):
        if row.study == "nvidia-examples" and row.metric == "throughput":
            chip, label = str(row.hardware), row.label or ""
        elif row.study.startswith("mlperf-training") and "v0.7" in str(row.software):
            chip, label = SAME_NODE.get(str(row.hardware), ""), "AMP"
        else:
            continue
        if chip in PUBLISHED_ON and row.metric in MEASURED:
            kind, precision = ("AMP", "fp16") if label == "AMP" else ("FP32 to TF32", label.lower())
            key = (row.task or "", f"{row.software}, {kind}", row.workers or 1)
            speed = row.value if row.metric == "throughput" else 1 / row.value
            speeds.setdefault(key, {}).setdefault(row.metric, {})[chip] = (speed, precision)
    nodes, out = {chip: profile(name) for chip, name in PUBLISHED_ON.items()}, []
    for (task, label, workers), metrics in speeds.items():
        both = [metrics[name] for name in MEASURED if len(metrics.get(name, {})) == len(PUBLISHED_ON)]
        if both:
            (old, before), (new, after) = both[0]["V100"], both[0]["A100"]
            peaks = model.peak(nodes["A100"], after) / model.peak(nodes["V100"], before)
            out.append(ProcessorPair(task, label, workers, peaks, new / old))
    return tuple(sorted(out))


def processors() -> Iterator[Row]:
    """Predict the speed-up of each pair of processors; none of them is among the results of the error."""
    for pair in pairs():
        off = factor(pair.peaks)
        case = f"{pair.task}, {pair.label}, {format.counted(pair.workers, 'worker')}: A100 over V100"
        yield Row("pair", case, "", pair.peaks, pair.peaks / off, pair.peaks * off, (pair.speedup,))


def elsewhere() -> Iterator[Row | str]:
    """Predict MLBench's runs on hardware for which others published a time, with other software."""
    for task, hardware, workers, minutes in ELSEWHERE:
        case = f"{task}, {workers} x {hardware}"
        try:
            (prediction,) = forecast(
                model.fit(published_runs.measurements(task)), [workers], Target(profile(hardware))
            )
        except UserError as refusal:
            yield f"{case} | refused: {str(refusal).partition(' (')[0]}"
            continue
        yield row("elsewhere", case, prediction, [60 * m for m in minutes])


def chart(rows: list[Row]) -> alt.LayerChart:
    """Return predicted over measured times with the diagonal on which they agree."""
    drawn = [(row, value) for row in rows if row.unit for value in row.measured]
    ends = [value for row, m in drawn for value in (row.low, row.high, m)]
    ticks = tuple((float(s), format.duration(s)) for s in TICKS_S)
    limits = min(ends), max(ends)
    diagonal = [{"series": "predicted = measured", "x": s, "y": s} for s in limits]
    looks = {"predicted = measured": marks.look(5)}
    points: list[marks.Row] = []
    kinds = (
        ("MLBench's studies", "study"),
        ("ours", "own"),
        ("ours, other links", "link"),
        ("other hardware and software", "elsewhere"),
    )
    for style, (name, group) in enumerate(kinds, start=1):
        looks[name] = marks.look(style, hollow=group == "elsewhere")
        points += [
            {"series": name, "x": m, "y": row.predicted, "low": row.low, "high": row.high}
            for row, m in drawn
            if row.group == group
        ]
    about = "MLBench's fitted at 1, 2 and 4 workers; on other hardware at 1 to 16; bars are 95 % intervals"
    x, y = (
        marks.axis(f"{name} time", ticks=ticks, log=True, limits=limits) for name in ("measured", "predicted")
    )
    layers = [*marks.line(diagonal), *marks.intervals(points), *marks.points(points)]
    title = "Predicted and measured times"
    return marks.chart("prediction", title, layers, looks=looks, x=x, y=y, about=about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path)
    parser.add_argument(
        "--study", action="append", default=[], help="of this machine, at three counts or more"
    )
    parser.add_argument("--links", nargs="+", default=[], metavar="STUDY", help="fitted, then predicted ones")
    parser.add_argument("--output-root", type=Path, default=Path("runs"))
    args = parser.parse_args()
    groups: dict[str, list[Row | str]] = {
        "studies": list(studies()),
        "own": list(own(args.study, args.output_root)),
        "links": list(links(args.links[0], args.links[1:], args.output_root)) if args.links else [],
        "pairs": list(processors()),
        "elsewhere": list(elsewhere()),
    }
    print("| case | predicted | 95 % interval | measured | inside |\n|---|--:|--:|--:|---|")
    for line in (line for rows in groups.values() for line in rows):
        print(f"| {line} | | | |" if isinstance(line, str) else f"| {' | '.join(line.cells())} |")
    print()
    for name, rows in groups.items():
        values = [line.inside for line in rows if isinstance(line, Row)]
        if values:
            print(f"- {name}: {sum(values)} of {len(values)} inside, nominal 95 %")
    if args.picture:
        drawn = [line for rows in groups.values() for line in rows if isinstance(line, Row)]
        render.save([chart(drawn)], args.picture)


if __name__ == "__main__":
    main()
