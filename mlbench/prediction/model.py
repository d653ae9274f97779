"""The model: seconds an update from its phases, times updates to the goal, plus the time outside batches.

- compute and feeding: fixed + proportional to a worker's samples an update. optimizer: fixed.
- communication: an all-reduce of the gradients, hops(k) x alpha + 2(k-1)/k x beta. A ring passes 2(k-1)
  messages one after the other, a tree 2 log2 k (Thakur et al. 2005; NCCL, gloo and MPI choose between such
  forms). Runs at two worker counts fit both exactly, so both are kept, weighted by how well they fit.
- exposed communication: what is not hidden behind backward; never more is hidden, as a share of the
  communication and of compute, than was measured.
- epochs to the goal: E_min (1 + B / B_crit) in the global batch B (McCandlish et al. 2018); constant where
  B is the same for all worker counts.
- outside the batches: an epoch's fixed part + a part shared out among the workers, as validation is.

Noise is multiplicative; its level and the coefficients are drawn as the misfit of the measured runs allows,
so an interval widens where the runs say little. The interval is that of one further run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench.prediction import fitting
from mlbench.prediction.fitting import Array, Component
from mlbench.prediction.runs import Measurements

DRAWS = 4000  # parameter sets; the ends of a 95 % interval then move by about 1 % between seeds
SEED = 20200908  # any constant: equal runs give equal intervals
ALIKE = 0.01  # relative misfit below which two forms of communication are not told apart
PHASES = ("compute", "optimizer", "feeding")
SECONDS = (*PHASES, "outside", "communication", "overlapped")


@dataclass(frozen=True)
class Model:
    """What was fitted to the measurements.

    - forms: communication's fit by name of the form, with `weights` that add up to 1.
    - sigma, freedom: noise of seconds, relative, and how many degrees of freedom know it; 0: nothing does.
    - epochs_sigma, epochs_freedom: likewise of the epochs to the goal.
    """

    measurements: Measurements
    phases: dict[str, Component]  # s an update
    forms: dict[str, Component]  # s an update
    weights: dict[str, float]
    hidden_of_communication: float  # at most this share of the all-reduce is overlapped
    hidden_of_compute: float  # and at most so much of it as this share of compute lasts
    outside: Component  # s an epoch
    epochs: Component
    epoch_samples: float
    batch: float  # samples an update; a worker's where the global batch grows
    sigma: float
    freedom: float
    epochs_sigma: float
    epochs_freedom: int

    def global_batch(self, workers: Array) -> Array:
        """Return the samples an update of all workers."""
        return self.batch * (workers if self.measurements.grows else np.ones_like(workers))

    @property
    def most_workers(self) -> float:
        """The count beyond which a worker has no sample of an update, or an epoch no whole update."""
        return self.epoch_samples / self.batch if self.measurements.grows else self.batch


def fit(measurements: Measurements) -> Model:
    """Return the model of these measurements, which `measured.check` has passed."""
    runs = measurements.runs
    workers = np.array([run.workers for run in runs], np.float64)
    updates = np.array([run.updates for run in runs])
    epochs = np.array([run.epochs for run in runs])
    grows = measurements.grows
    batch = median(run.batch / (run.workers if grows else 1) for run in runs)
    share = np.full_like(workers, batch) if grows else batch / workers

    seconds = {name: np.array([getattr(run, f"{name}_s") for run in runs]) for name in SECONDS}
    phases = {name: fitting.component(_share_terms(share, name), seconds[name] / updates) for name in PHASES}
    overlapped = seconds["overlapped"]
    all_reduce = seconds["communication"] + overlapped
    sent = workers > 1
    forms = {
        name: fitting.component(terms[sent], (all_reduce / updates)[sent])
        for name, terms in communication_terms(workers, several=len(set(workers[sent])) > 1).items()
    }
    outside = fitting.component(_outside_terms(workers), seconds["outside"] / epochs)
    reached = np.array([run.reached for run in runs])
    to_goal = fitting.component(_epoch_terms(batch * workers, grows=grows)[reached], epochs[reached])
    sigma, freedom = _noise([*phases.values(), outside], forms, seconds)
    least = min((one.misfit for one in forms.values()), default=0.0)
    known = max(sigma, ALIKE) ** 2
    likely = {name: _likelihood((one.misfit - least) / known, freedom) for name, one in forms.items()}
    step = median(run.epochs / run.validations for run in runs)
    spread = to_goal.misfit / to_goal.freedom if to_goal.freedom else 0.0
    return Model(
        measurements=measurements,
        phases=phases,
        forms=forms,
        weights={name: value / sum(likely.values()) for name, value in likely.items()},
        hidden_of_communication=_most(overlapped, all_reduce),
        hidden_of_compute=_most(overlapped, seconds["compute"]),
        outside=outside,
        epochs=to_goal,
        epoch_samples=median(run.samples / run.epochs for run in runs),
        batch=batch,
        sigma=sigma,
        freedom=freedom,
        # The goal is met at a validation, so epochs are known no better than their distance: uniform.
        epochs_sigma=max(math.sqrt(spread), step / math.sqrt(12) / float(np.mean(epochs[reached]))),
        epochs_freedom=to_goal.freedom,
    )


def communication_terms(workers: Array, *, several: bool) -> dict[str, Array]:
    """Return the (runs, 2) terms of alpha and beta for each form of an all-reduce among `workers`.

    Where runs at one count alone are known (not `several`), latency and bandwidth are not told apart, and
    either may be all of it.
    """
    volume = 2 * (workers - 1) / workers
    tree, none = 2 * np.log2(workers), np.zeros_like(workers)
    if several:
        return {
            "ring": np.stack([2 * (workers - 1), volume], axis=1),
            "tree": np.stack([tree, volume], axis=1),
        }
    return {"bandwidth": np.stack([none, volume], axis=1), "latency": np.stack([tree, none], axis=1)}


def _share_terms(share: Array, name: str) -> Array:
    proportional = np.zeros_like(share) if name == "optimizer" else share
    return np.stack([np.ones_like(share), proportional], axis=1)


def _outside_terms(workers: Array) -> Array:
    return np.stack([np.ones_like(workers), 1 / workers], axis=1)


def _epoch_terms(batch: Array, *, grows: bool) -> Array:
    return np.stack([np.ones_like(batch), batch if grows else np.zeros_like(batch)], axis=1)


def _most(part: Array, whole: Array) -> float:
    """Return the largest share of the whole that the part has anywhere, at most 1."""
    known = whole > 0
    return min(1.0, float(np.max(part[known] / whole[known]))) if known.any() else 0.0


def _likelihood(excess: float, freedom: float) -> float:
    """Return Student's likelihood of a misfit above the best, in squares of a noise; 1 for the best."""
    known = max(1.0, freedom)
    return (1 + excess / known) ** (-(known + 1) / 2)


def _noise(
    fixed: Sequence[Component], forms: dict[str, Component], seconds: dict[str, Array]
) -> tuple[float, float]:
    """Return the relative noise of seconds and its degrees of freedom.

    Misfits are pooled over the phases, each weighted by its share of the time, or the noise of a phase
    that hardly takes time would be that of all; the freedom is Satterthwaite's (1946).
    """
    names = ("compute", "optimizer", "feeding", "outside")
    shares = [float(seconds[name].sum()) for name in names]
    best = min(forms.values(), key=lambda one: one.misfit, default=None)
    pooled = list(zip(fixed, shares, strict=True))
    if best is not None:
        pooled.append((best, float((seconds["communication"] + seconds["overlapped"]).sum())))
    weight = sum(share * one.freedom for one, share in pooled)
    if weight == 0:
        return 0.0, 0.0
    squared = sum(share**2 * one.freedom for one, share in pooled)
    sigma = math.sqrt(sum(share * one.misfit for one, share in pooled) / weight)
    return sigma, weight**2 / squared
