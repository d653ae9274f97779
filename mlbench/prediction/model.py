"""The model: seconds a step from its phases, times steps to the goal, plus the time outside the batches.

Every part is a non-negative least-squares fit of two terms to relative errors, since noise is a percentage:

- compute, data wait: 1, and a worker's samples a step. optimizer: 1.
- all-reduce: hops, and volume 2(k-1)/k. A ring has 2(k-1) hops, a tree 2 log2 k (Thakur et al. 2005,
  Optimization of Collective Communication Operations in MPICH). Forms that fit alike count equally.
- epochs to the goal: 1, and the global batch where it grows (McCandlish et al. 2018, critical batch size).
- outside the batches, per epoch: 1, and 1/k, as validation is shared out.

No more communication is hidden behind backward, as a share of itself and of compute, than a run has shown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlbench.config.errors import UserError
from mlbench.prediction.runs import Measurements

Array = NDArray[np.float64]
STEP = ("compute", "optimizer", "data_wait")  # parts of a step beside communication
COMPUTING = ("compute", "optimizer")  # what another processor changes
PASSES = 3  # errors relative to noisy values pull a fit down; relative to the fit before they do not
TINY = 1e-6  # of a part's mean: a smaller value counts as nothing and has no relative error
ALIKE = 1.1  # ratio of relative errors up to which two forms of an all-reduce fit alike
BITS = 8  # a byte
NETWORK = re.compile(r"(?P<rate>\d+(?:\.\d+)?)gbit,(?P<latency>\d+(?:\.\d+)?)us", re.IGNORECASE)


@dataclass(frozen=True)
class Network:
    """What a message costs: seconds each, and seconds a byte; at line rate unless it was measured."""

    name: str
    latency_s: float
    s_per_byte: float
    measured: bool

    @classmethod
    def stated(cls, text: str) -> "Network":
        """Return the network of a text such as 10gbit,50us: line rate, and one-way latency of a message."""
        match = NETWORK.fullmatch(text)
        if not match or float(match["rate"]) == 0:
            raise UserError(
                f"network={text} is not a network",
                hint="write line rate and latency of a message, as in network=10gbit,50us, "
                "or the name of a run of task allreduce",
            )
        s_per_byte = BITS / (float(match["rate"]) * 1e9)
        return cls(text, float(match["latency"]) * 1e-6, s_per_byte, measured=False)

    @classmethod
    def of_table(cls, name: str, table: list[dict[str, Any]]) -> "Network":
        """Return the network that a run of task allreduce measured with all_reduce of float32."""
        wanted = {"kind": "fit", "collective": "all_reduce", "dtype": "float32"}
        rows = [row for row in table if wanted.items() <= row.items()]  # other tasks have other tables
        if not rows or not rows[0]["beta_s_per_byte"]:
            hint = "python -m mlbench.run task=allreduce"
            raise UserError(f"run {name!r} measured no bandwidth of all_reduce", hint=hint)
        line, workers = rows[0], rows[0]["workers"]
        hops, volume = 2 * (workers - 1), 2 * (workers - 1) / workers  # of a ring
        return cls(name, line["alpha_s"] / hops, line["beta_s_per_byte"] / volume, measured=True)


@dataclass(frozen=True)
class Part:
    """One part of the time, fitted: `terms` (runs, 2) @ `theta` (2,) is close to `measured` (runs,)."""

    terms: Array
    measured: Array
    theta: Array

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which runs have a relative error: those in which the part took time."""
        return _positive(self.measured)

    @property
    def residuals(self) -> Array:
        """Relative errors as logarithms, 0 for runs in which the part took no time."""
        fitted = self.terms @ self.theta
        used = self.used & (fitted > 0)
        return np.log(np.where(used, self.measured, 1.0) / np.where(used, fitted, 1.0))

    @property
    def dof(self) -> int:
        """Degrees of freedom that the runs leave for the noise."""
        return int(self.used.sum()) - _rank(self.terms[self.used])

    def refitted(self, noise: Array) -> "Part":
        """Return the fit to the fitted values times exp(noise)."""
        fitted = self.terms @ self.theta
        used = fitted > 0
        if not used.any():
            return self
        theta = _least_squares(self.terms[used], fitted[used] * np.exp(noise[used]), fitted[used])
        return replace(self, theta=theta)


@dataclass(frozen=True)
class Times:
    """What the model predicts of each worker count; all (counts,)."""

    time: Array  # s to accuracy
    epochs: Array
    step: Array  # s
    exposed: Array  # s of a step that are waited for communication


@dataclass(frozen=True)
class Model:
    """What was fitted to the measurements.

    - parts: compute, optimizer and data_wait of a step, s; outside of an epoch, s; epochs to the goal.
    - allreduce: s a step, by the forms that fit the runs alike; predictions are their mean.
    """

    measurements: Measurements
    parts: Mapping[str, Part]
    allreduce: Mapping[str, Part]
    hidden_of_communication: float  # at most this share of the all-reduce is overlapped
    hidden_of_compute: float  # and at most so much of it as this share of compute lasts
    epoch_samples: float
    batch: float  # samples a step; a worker's where the global batch grows

    @property
    def most_workers(self) -> float:
        """The count beyond which a worker has no sample of a step, or an epoch no whole step."""
        return self.epoch_samples / self.batch if self.measurements.grows else self.batch

    def predict(self, workers: Array, *, faster: float = 1.0, network: Network | None = None) -> Times:
        """Return the times at each worker count.

        - faster: by what factor another processor computes.
        - network: in place of the measured one; UserError where the bytes of the gradients are not known.
        """
        terms = _terms(workers, batch=self.batch, grows=self.measurements.grows)
        values = {name: terms[name] @ part.theta for name, part in self.parts.items()}
        for name in COMPUTING:
            values[name] = values[name] / faster
        thetas = {name: part.theta for name, part in self.allreduce.items()}
        if network is not None:
            thetas = self._carried_over(network)
        forms = [allreduce_terms(workers)[name] @ theta for name, theta in thetas.items()]
        allreduce = np.mean(forms, axis=0) if forms else 0 * workers
        hidden = self.hidden_of_communication * allreduce
        exposed = allreduce - np.minimum(hidden, self.hidden_of_compute * values["compute"])
        step = sum((values[name] for name in STEP), exposed)
        steps = self.epoch_samples / (self.batch * (workers if self.measurements.grows else 1.0))
        time = values["epochs"] * (steps * step + values["outside"])
        return Times(time, values["epochs"], step, exposed)

    def refitted(self, noise: Array, epoch_noise: Array, form: str | None) -> "Model":
        """Return the model of runs as fitted times exp(noise), with one form of all-reduce."""
        sent = np.array([run.workers > 1 for run in self.measurements.runs])
        parts = {
            name: part.refitted(epoch_noise if name == "epochs" else noise)
            for name, part in self.parts.items()
        }
        allreduce = {form: self.allreduce[form].refitted(noise[sent])} if form else {}
        return replace(self, parts=parts, allreduce=allreduce)

    def _carried_over(self, network: Network) -> dict[str, Array]:
        """Return alpha and beta of another network: its latency; its bandwidth with the measured efficiency.

        A stated line rate is reached to the share to which the runs reached that of their own hardware, where
        its profile states one, and never exceeded.
        """
        size = self.measurements.gradient_bytes
        if size is None:
            raise UserError(
                "the runs do not say how many bytes of gradients one step sums, "
                "so another network cannot be predicted",
                hint="leave network=... out, or measure again: new records say it",
            )
        line, own = size * network.s_per_byte, self.measurements.hardware.network_gbit_per_s
        thetas = {}
        for name in [name for name in ("ring", "tree") if name in self.allreduce] or ("ring", "tree"):
            fitted = self.allreduce.get(name) or self.allreduce.get("bandwidth")
            beta = line
            if own is not None and not network.measured and fitted is not None:
                beta = max(line, fitted.theta[1] * own * 1e9 * network.s_per_byte / BITS)
            thetas[name] = np.array([network.latency_s, beta])
        return thetas


def fit(measurements: Measurements) -> Model:
    """Return the model of these measurements, which `runs.check` has passed."""
    runs, grows = measurements.runs, measurements.grows
    workers = np.array([run.workers for run in runs], np.float64)
    steps, epochs = (np.array([getattr(run, name) for run in runs]) for name in ("steps", "epochs"))
    batch = median(run.batch / (run.workers if grows else 1) for run in runs)
    names = (*STEP, "outside", "communication", "overlapped")
    seconds = {name: np.array([getattr(run, f"{name}_s") for run in runs]) for name in names}
    sent = workers > 1
    reached = np.array([run.reached for run in runs])
    terms = _terms(workers, batch=batch, grows=grows)
    parts = {name: part(terms[name], seconds[name] / steps) for name in STEP}
    parts["outside"] = part(terms["outside"], seconds["outside"] / epochs)
    parts["epochs"] = part(terms["epochs"][reached], epochs[reached])
    communication = seconds["communication"] + seconds["overlapped"]
    return Model(
        measurements=measurements,
        parts=parts,
        allreduce=_allreduce(workers[sent], (communication / steps)[sent]),
        hidden_of_communication=_largest_share(seconds["overlapped"], communication),
        hidden_of_compute=_largest_share(seconds["overlapped"], seconds["compute"]),
        epoch_samples=median(run.samples / run.epochs for run in runs),
        batch=batch,
    )


def part(terms: Array, measured: Array) -> Part:
    """Return the non-negative least-squares fit of the relative errors.

    Of two terms that the runs cannot tell apart (equal batches, one worker count) the first takes all.
    """
    used = _positive(measured)
    if _rank(terms[used], tol=1e-2) < 2 and terms[used, 0].any():
        terms = terms * np.array([1.0, 0.0])
    theta, reference = np.zeros(2), measured
    for _ in range(PASSES if used.any() else 0):
        theta = _least_squares(terms[used], measured[used], reference[used])
        fitted = terms @ theta
        reference = np.where(fitted > 0, fitted, measured)
    return Part(terms, measured, theta)


def allreduce_terms(workers: Array) -> dict[str, Array]:
    """Return the (counts, 2) terms of alpha and beta for each form of an all-reduce among `workers`."""
    volume, tree = 2 * (workers - 1) / workers, 2 * np.log2(workers)
    return {
        "ring": _pair(2 * (workers - 1), volume),
        "tree": _pair(tree, volume),
        "bandwidth": _pair(0.0, volume),
        "latency": _pair(tree, 0 * workers),
    }


def _allreduce(workers: Array, seconds: Array) -> dict[str, Part]:
    """Return the forms that fit alike; at one count alone all may be latency, or all bandwidth."""
    if not len(workers):
        return {}
    terms = allreduce_terms(workers)
    names = ("ring", "tree") if len(set(workers)) > 1 else ("bandwidth", "latency")
    forms = {name: part(terms[name], seconds) for name in names}
    errors = {name: float(np.sqrt(np.mean(one.residuals**2))) for name, one in forms.items()}
    return {name: forms[name] for name in names if errors[name] <= ALIKE * min(errors.values()) + 1e-3}


def _terms(workers: Array, *, batch: float, grows: bool) -> dict[str, Array]:
    """Return the (counts, 2) terms of each part but the all-reduce."""
    samples = _pair(1.0, np.full_like(workers, batch) if grows else batch / workers)  # of a worker in a step
    return {
        "compute": samples,
        "optimizer": _pair(1.0, 0 * workers),
        "data_wait": samples,
        "outside": _pair(1.0, 1 / workers),
        "epochs": _pair(1.0, batch * workers if grows else 0 * workers),
    }


def _least_squares(terms: Array, values: Array, reference: Array) -> Array:
    """Return the coefficients, none negative, with the least squares of errors relative to `reference`."""
    from scipy.optimize import nnls

    rows = terms / reference[:, None]
    scale = np.linalg.norm(rows, axis=0).clip(1e-300)
    return nnls(rows / scale, values / reference)[0] / scale


def _rank(terms: Array, tol: float | None = None) -> int:
    unit = terms / np.linalg.norm(terms, axis=0).clip(1e-300)
    return int(np.linalg.matrix_rank(unit, tol=tol)) if len(terms) else 0


def _positive(measured: Array) -> NDArray[np.bool_]:
    return measured > TINY * max(measured.mean(), 1e-300)


def _pair(first: float | Array, second: Array) -> Array:
    return np.stack(np.broadcast_arrays(first, second), axis=-1)


def _largest_share(part: Array, whole: Array) -> float:
    """Return the largest share of the whole that the part has anywhere, at most 1."""
    known = whole > 0
    return min(1.0, float(np.max(part[known] / whole[known]))) if known.any() else 0.0
