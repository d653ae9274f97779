"""The model: seconds a step from its phases, times steps to the goal, plus the time outside the batches.

- compute and data wait: fixed + proportional to a worker's samples a step. optimizer: fixed.
- communication: an all-reduce of the gradients, hops(k) x alpha + 2(k-1)/k x beta. A ring passes 2(k-1)
  messages one after the other, a tree 2 log2 k (Thakur et al. 2005). Both are fitted; where the runs fit both
  alike, each counts half.
- exposed communication: what is not hidden behind backward; never more is hidden, as a share of the
  communication and of compute, than was measured.
- epochs to the goal: E_min (1 + B / B_crit) in the global batch B (McCandlish et al. 2018); constant where
  B is the same for all worker counts.
- outside the batches: an epoch's fixed part + a part shared among the workers, as validation is.

Every part is a non-negative least-squares fit of two terms to relative errors, since noise is a percentage.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlbench.experiment.errors import UserError
from mlbench.prediction.runs import Measurements

Array = NDArray[np.float64]
STEP = ("compute", "optimizer", "data_wait")  # parts of a step beside communication
COMPUTING = ("compute", "optimizer")  # what another processor changes
PASSES = 3  # errors relative to noisy values pull a fit down; relative to the fit before they do not
TINY = 1e-6  # of a part's mean: a smaller value counts as nothing and has no relative error
ALIKE = 1.1  # ratio of relative errors up to which two forms of an all-reduce fit alike
BITS = 8  # a byte
SEVERAL, ONE = ("ring", "tree"), ("bandwidth", "latency")  # forms fitted at several counts, and at one
NETWORK = re.compile(r"(?P<rate>\d+(?:\.\d+)?)gbit,(?P<latency>\d+(?:\.\d+)?)us", re.IGNORECASE)


@dataclass(frozen=True)
class Network:
    """What a message costs: seconds each, and seconds a byte; at line rate unless it was measured."""

    name: str
    latency_s: float
    s_per_byte: float
    measured: bool

    @property
    def gbit_per_s(self) -> float:
        return BITS / self.s_per_byte / 1e9

    @classmethod
    def stated(cls, text: str) -> "Network":
        """Return the network of a text such as 10gbit,50us: line rate, and one-way latency of a message."""
        found = NETWORK.fullmatch(text)
        if not found or float(found["rate"]) == 0:
            raise UserError(
                f"network={text} is not a network",
                hint="write line rate and latency of a message, as in network=10gbit,50us, "
                "or the name of a run of task allreduce",
            )
        rate = float(found["rate"]) * 1e9 / BITS
        return cls(text, float(found["latency"]) * 1e-6, 1 / rate, measured=False)

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
    def residuals(self) -> Array:
        """Relative errors as logarithms, 0 for runs in which the part took no time."""
        fitted, used = self.terms @ self.theta, self.measured > TINY * max(self.measured.mean(), 1e-300)
        safe = np.where(used & (fitted > 0), fitted, 1.0)
        return np.log(np.where(used & (fitted > 0), self.measured, 1.0) / safe)

    @property
    def dof(self) -> int:
        """Degrees of freedom that the runs leave for the noise."""
        used = self.measured > TINY * max(self.measured.mean(), 1e-300)
        rank = np.linalg.matrix_rank(_unit(self.terms[used])) if used.any() else 0
        return int(used.sum()) - int(rank)


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

    - step: parts of a step, s. outside: s an epoch. epochs: to the goal, from the runs that reached it.
    - allreduce: s a step by the form of the all-reduce, with `weights` that add up to 1.
    """

    measurements: Measurements
    step: Mapping[str, Part]
    allreduce: Mapping[str, Part]
    weights: Mapping[str, float]
    hidden_of_communication: float  # at most this share of the all-reduce is overlapped
    hidden_of_compute: float  # and at most so much of it as this share of compute lasts
    outside: Part
    epochs: Part
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
        batch = self.batch * (workers if self.measurements.grows else np.ones_like(workers))
        shared = _pair(1.0, batch / workers)
        seconds = {
            name: shared @ part.theta / (faster if name in COMPUTING else 1.0)
            for name, part in self.step.items()
        }
        terms = allreduce_terms(workers)
        thetas = {name: part.theta for name, part in self.allreduce.items()}
        weights = self.weights
        if network is not None:
            thetas = self._replaced(network)
            weights = weights if set(thetas) == set(weights) else dict.fromkeys(thetas, 1 / len(thetas))
        allreduce = sum((weights[n] * (terms[n] @ theta) for n, theta in thetas.items()), 0 * workers)
        hidden = np.minimum(
            self.hidden_of_communication * allreduce, self.hidden_of_compute * seconds["compute"]
        )
        step = sum(seconds.values(), allreduce - hidden)
        epochs = _pair(1.0, batch if self.measurements.grows else 0 * batch) @ self.epochs.theta
        outside = _pair(1.0, 1 / workers) @ self.outside.theta
        time = epochs * (self.epoch_samples / batch * step + outside)
        return Times(time, epochs, step, allreduce - hidden)

    def refit(self, noise: Array, epoch_noise: Array, form: str | None) -> "Model":
        """Return the model of runs as fitted times exp(noise), with one form of all-reduce."""
        sent = np.array([run.workers > 1 for run in self.measurements.runs])
        allreduce = {form: _noisy(self.allreduce[form], noise[sent])} if form else {}
        return replace(
            self,
            step={name: _noisy(part, noise) for name, part in self.step.items()},
            allreduce=allreduce,
            weights=dict.fromkeys(allreduce, 1.0),
            outside=_noisy(self.outside, noise),
            epochs=_noisy(self.epochs, epoch_noise),
        )

    def _replaced(self, network: Network) -> dict[str, Array]:
        """Return alpha and beta of another network: its latency; its bandwidth with the measured efficiency.

        A stated line rate is reached to the share to which the runs reached that of their own hardware, where
        its profile states one, and never exceeded.
        """
        size = self.measurements.gradient_bytes
        if size is None:
            raise UserError(
                "the runs do not say how many bytes of gradients a step sums, "
                "so another network cannot be predicted",
                hint="leave network=... out, or measure again: new records say it",
            )
        line, own = size * network.s_per_byte, self.measurements.hardware.network_gbit_per_s
        replaced = {}
        for name in [name for name in SEVERAL if name in self.allreduce] or SEVERAL:
            fitted = self.allreduce.get(name) or self.allreduce.get("bandwidth")
            beta = line
            if own is not None and not network.measured and fitted is not None:
                beta = max(line, fitted.theta[1] * own / network.gbit_per_s)
            replaced[name] = np.array([network.latency_s, beta])
        return replaced


def fit(measurements: Measurements) -> Model:
    """Return the model of these measurements, which `runs.check` has passed."""
    runs, grows = measurements.runs, measurements.grows
    workers = np.array([run.workers for run in runs], np.float64)
    steps, epochs = (np.array([getattr(run, name) for run in runs]) for name in ("steps", "epochs"))
    batch = median(run.batch / (run.workers if grows else 1) for run in runs)
    share = np.full_like(workers, batch) if grows else batch / workers
    names = (*STEP, "outside", "communication", "overlapped")
    seconds = {name: np.array([getattr(run, f"{name}_s") for run in runs]) for name in names}
    all_of_it = seconds["communication"] + seconds["overlapped"]
    sent = workers > 1
    # At one count alone latency and bandwidth are not told apart, and either may be all of it.
    forms = SEVERAL if len(set(workers[sent])) > 1 else ONE
    terms = allreduce_terms(workers[sent])
    allreduce = {name: part(terms[name], (all_of_it / steps)[sent]) for name in forms if sent.any()}
    reached = np.array([run.reached for run in runs])
    sizes = _pair(1.0, batch * workers if grows else 0 * workers)
    return Model(
        measurements=measurements,
        step={
            name: part(_pair(1.0, 0 * share if name == "optimizer" else share), seconds[name] / steps)
            for name in STEP
        },
        allreduce=allreduce,
        weights=_weights(allreduce),
        hidden_of_communication=_most(seconds["overlapped"], all_of_it),
        hidden_of_compute=_most(seconds["overlapped"], seconds["compute"]),
        outside=part(_pair(1.0, 1 / workers), seconds["outside"] / epochs),
        epochs=part(sizes[reached], epochs[reached]),
        epoch_samples=median(run.samples / run.epochs for run in runs),
        batch=batch,
    )


def part(terms: Array, measured: Array) -> Part:
    """Return the non-negative least-squares fit of the relative errors.

    Of two terms that the runs cannot tell apart (equal batches, one worker count) the first takes all.
    """
    from scipy.optimize import nnls

    used = measured > TINY * max(measured.mean(), 1e-300)
    if np.linalg.matrix_rank(_unit(terms[used]), tol=1e-2) < 2 and terms[used, 0].any():
        terms = terms * np.array([1.0, 0.0])
    theta, reference = np.zeros(2), measured
    for _ in range(PASSES if used.any() else 0):
        rows = terms[used] / reference[used, None]
        scale = np.linalg.norm(rows, axis=0).clip(1e-300)
        theta = nnls(rows / scale, measured[used] / reference[used])[0] / scale
        fitted = terms @ theta
        reference = np.where(fitted > 0, fitted, measured)
    return Part(terms, measured, theta)


def allreduce_terms(workers: Array) -> dict[str, Array]:
    """Return the (runs, 2) terms of alpha and beta for each form of an all-reduce among `workers`."""
    volume, tree = 2 * (workers - 1) / workers, 2 * np.log2(workers)
    return {
        "ring": _pair(2 * (workers - 1), volume),
        "tree": _pair(tree, volume),
        "bandwidth": _pair(0 * workers, volume),
        "latency": _pair(tree, 0 * workers),
    }


def _pair(first: float | Array, second: Array) -> Array:
    return np.stack(np.broadcast_arrays(first, second), axis=-1)


def _unit(terms: Array) -> Array:
    return terms / np.linalg.norm(terms, axis=0).clip(1e-300)


def _noisy(one: Part, noise: Array) -> Part:
    """Return the fit to the fitted values times exp(noise); errors are relative to the fitted values."""
    from scipy.optimize import nnls

    fitted = one.terms @ one.theta
    used = fitted > 0
    if not used.any():
        return one
    rows = one.terms[used] / fitted[used, None]
    scale = np.linalg.norm(rows, axis=0).clip(1e-300)
    return replace(one, theta=nnls(rows / scale, np.exp(noise[used]))[0] / scale)


def _weights(forms: Mapping[str, Part]) -> dict[str, float]:
    """Return 1 for the form that fits better, equal parts where they fit alike or exactly."""
    errors = {name: float(np.sqrt(np.mean(one.residuals**2))) for name, one in forms.items()}
    best = {name for name, error in errors.items() if error <= ALIKE * min(errors.values()) + 1e-3}
    return {name: 1 / len(best) if name in best else 0.0 for name in forms}


def _most(part: Array, whole: Array) -> float:
    """Return the largest share of the whole that the part has anywhere, at most 1."""
    known = whole > 0
    return min(1.0, float(np.max(part[known] / whole[known]))) if known.any() else 0.0
