"""How wrong a ratio of two processors' stated peaks is as one of their speeds, from published pairs."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import NamedTuple

from mlbench.analysis.published import load
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.wings.prediction.model import Array, peak

PUBLISHED_ON = {"V100": "aws_p3_2xlarge", "A100": "aws_p4d_24xlarge"}  # profiles that state the peaks
SAME_NODE = {"DGX-1, 8 V100": "V100", "8 V100": "V100", "DGX A100, 8 A100": "A100", "8 A100": "A100"}
MEASURED = ("throughput", "time_to_accuracy")  # of two the first counts: it has no luck with the epochs


class ProcessorPair(NamedTuple):
    """The same software on two processors, published: what their peaks predict, and what was measured."""

    task: str
    label: str
    workers: int
    peaks: float  # ratio of the stated peaks
    speedup: float  # ratio of the measured speeds


class Transfer(NamedTuple):
    """The error of a prediction for another processor, in logarithms of time for each e-fold of the peak.

    Student's t around 0. Pairs of a task err alike, so tasks are what is counted: one degree of freedom less
    than tasks (Cameron and Miller 2015, A Practitioner's Guide to Cluster-Robust Inference).
    """

    scale: float
    dof: int
    least: float  # the smallest logarithm of a peaks' ratio among the pairs; no other processor errs less

    def errors(self, peaks: float, students: Array) -> Array:
        """Return the errors in logarithms of time for this ratio of peaks, at quantiles of Student's t."""
        return students * self.scale * max(abs(math.log(peaks)), self.least)

    def factor(self, peaks: float) -> float:
        """Return the factor by which the ends of the 95 % interval of a time are off its middle."""
        from scipy.stats import t

        return math.exp(self.errors(peaks, t.ppf(0.975, self.dof)))


@cache
def pairs() -> tuple[ProcessorPair, ...]:
    """Return every pair of the shipped tables: one software, task, precision and count on V100 and on A100.

    NVIDIA's FP32 goes with TF32, the precision that replaced it in the same code; MLPerf's code is fp16.
    """
    speeds: dict[tuple[str, str, int], dict[str, dict[str, tuple[float, str]]]] = {}
    for row in load(publisher="peer"):
        if row.study == "nvidia-examples" and row.metric == "throughput":
            model, label = str(row.hardware), row.label or ""
        elif row.study.startswith("mlperf-training") and "v0.7" in str(row.software):
            model, label = SAME_NODE.get(str(row.hardware), ""), "AMP"
        else:
            continue
        if model in PUBLISHED_ON and row.metric in MEASURED:
            kind, precision = ("AMP", "fp16") if label == "AMP" else ("FP32 to TF32", label.lower())
            key = (row.task or "", f"{row.software}, {kind}", row.workers or 1)
            speed = row.value if row.metric == "throughput" else 1 / row.value
            speeds.setdefault(key, {}).setdefault(row.metric, {})[model] = (speed, precision)
    nodes, out = {model: profile(name) for model, name in PUBLISHED_ON.items()}, []
    for (task, label, workers), metrics in speeds.items():
        both = [metrics[name] for name in MEASURED if len(metrics.get(name, {})) == len(PUBLISHED_ON)]
        if both:
            (old, before), (new, after) = both[0]["V100"], both[0]["A100"]
            peaks = peak(nodes["A100"], after) / peak(nodes["V100"], before)
            out.append(ProcessorPair(task, label, workers, peaks, new / old))
    return tuple(sorted(out))


def transfer(of: Sequence[ProcessorPair] | None = None) -> Transfer:
    """Return the error fitted on these pairs, or all: a root mean square in which each task counts once.

    A pair's is by what power of the peaks' ratio its time was off: 0 where speed is proportional to the peak.
    """
    squares: dict[str, list[float]] = {}
    of = pairs() if of is None else of
    for pair in of:
        error = math.log(pair.peaks / pair.speedup) / math.log(pair.peaks)
        squares.setdefault(pair.task, []).append(error**2)
    scale = math.sqrt(mean(mean(squares[task]) for task in sorted(squares)))
    return Transfer(scale, max(1, len(squares) - 1), min(math.log(pair.peaks) for pair in of))


def profile(name: str) -> Hardware:
    """Return a hardware profile by its name; UserError for a name that there is none of."""
    if "," in name:
        raise UserError(f"hardware={name}: a prediction is for one profile", hint="hardware=all for every")
    return compose.hardware(name)
