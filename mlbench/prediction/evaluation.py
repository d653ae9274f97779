"""The model's times at any worker count, for its best coefficients and for plausible others."""

from dataclasses import dataclass

import numpy as np

from mlbench.experiment.errors import UserError
from mlbench.prediction import fitting
from mlbench.prediction.fitting import Array
from mlbench.prediction.model import DRAWS, PHASES, Model, communication_terms
from mlbench.prediction.network import Network

COMPUTING = ("compute", "optimizer")  # what another processor changes


@dataclass(frozen=True)
class Coefficients:
    """Coefficients as the model's, each (draws, 2); one draw for the best estimate."""

    phases: dict[str, Array]
    forms: dict[str, Array]
    weights: Array  # (draws, forms)
    outside: Array
    epochs: Array


@dataclass(frozen=True)
class Times:
    """What the coefficients say of each worker count; all (draws, counts)."""

    time: Array  # s to accuracy
    epochs: Array
    update: Array  # s
    exposed: Array  # s of an update that are waited for communication


def evaluate(
    model: Model,
    coefficients: Coefficients,
    workers: Array,
    *,
    faster: float = 1.0,
    network: Network | None = None,
) -> Times:
    """Return the times at each worker count for each draw of the coefficients.

    - faster: by what factor another processor computes.
    - network: in place of the measured one; UserError where the bytes of the gradients are not known.
    """
    batch = model.global_batch(workers)
    one = np.ones_like(workers)
    shared = np.stack([one, batch / workers], axis=1)
    seconds = {name: coefficients.phases[name] @ shared.T for name in PHASES}
    for name in COMPUTING:
        seconds[name] = seconds[name] / faster
    terms = communication_terms(workers, several="ring" in model.forms or network is not None)
    forms, weights = coefficients.forms, coefficients.weights
    if network is not None:
        forms = _replaced(model, coefficients, network)
        weights = weights if "ring" in model.forms else np.full((1, len(forms)), 1 / len(forms))
    all_reduce = np.zeros_like(seconds["compute"])
    for index, name in enumerate(terms):
        all_reduce = all_reduce + weights[:, index : index + 1] * (forms[name] @ terms[name].T)
    hidden = np.minimum(
        model.hidden_of_communication * all_reduce, model.hidden_of_compute * seconds["compute"]
    )
    exposed = all_reduce - hidden
    update = sum(seconds.values(), exposed)
    grown = np.stack([one, batch if model.measurements.grows else 0 * one], axis=1)
    epochs = coefficients.epochs @ grown.T
    outside = coefficients.outside @ np.stack([one, 1 / workers], axis=1).T
    time = epochs * (model.epoch_samples / batch * update + outside)
    return Times(time, epochs, update, exposed)


def best(model: Model) -> Coefficients:
    """Return the fitted coefficients, forms of communication weighted."""
    return Coefficients(
        phases={name: one.theta[None] for name, one in model.phases.items()},
        forms={name: one.theta[None] for name, one in model.forms.items()},
        weights=np.array([list(model.weights.values())]),
        outside=model.outside.theta[None],
        epochs=model.epochs.theta[None],
    )


def drawn(model: Model, rng: np.random.Generator) -> tuple[Coefficients, Array, Array] | None:
    """Return coefficients as the noise may have made them, each draw with one form of communication."""
    if not model.freedom or not model.epochs_freedom:
        return None
    sigma = fitting.drawn_sigma(model.sigma**2 * model.freedom, model.freedom, DRAWS, rng)
    freedom = model.epochs_freedom
    epochs_sigma = fitting.drawn_sigma(model.epochs_sigma**2 * freedom, freedom, DRAWS, rng)
    names = list(model.weights)
    chosen = rng.choice(len(names), size=DRAWS, p=list(model.weights.values()))
    runs = model.measurements.runs
    # A slow run is slow in all of its phases, so they share their noise.
    noise = sigma[:, None] * rng.standard_normal((DRAWS, len(runs)))
    sent = noise[:, [run.workers > 1 for run in runs]]
    reached = (DRAWS, sum(run.reached for run in runs))
    coefficients = Coefficients(
        phases={name: fitting.refitted(one, noise) for name, one in model.phases.items()},
        forms={name: fitting.refitted(one, sent) for name, one in model.forms.items()},
        weights=np.eye(len(names))[chosen],
        outside=fitting.refitted(model.outside, noise),
        epochs=fitting.refitted(model.epochs, epochs_sigma[:, None] * rng.standard_normal(reached)),
    )
    return coefficients, sigma, epochs_sigma


def _replaced(model: Model, coefficients: Coefficients, network: Network) -> dict[str, Array]:
    """Return alpha and beta of another network: its latency; its bandwidth with the measured efficiency.

    A stated line rate is reached to the share to which the runs reached that of their own hardware, where
    its profile states one, and never exceeded.
    """
    size = model.measurements.gradient_bytes
    if size is None:
        raise UserError(
            "the runs do not say how many bytes of gradients an update sums, "
            "so another network cannot be predicted",
            hint="leave network=... out, or measure again: new records say it",
        )
    line = size * network.s_per_byte
    own = model.measurements.hardware.network_gbit_per_s
    replaced = {}
    for name in ("ring", "tree"):
        fitted = coefficients.forms[name if name in model.forms else "bandwidth"][:, 1]
        beta = np.full_like(fitted, line)
        if own is not None and not network.measured:
            beta = np.maximum(line, fitted * own / network.gbit_per_s)
        replaced[name] = np.stack([np.full_like(beta, network.latency_s), beta], axis=1)
    return replaced
