"""One phase's cost as one or two terms that only add: fixed and proportional, latency and bandwidth.

Everything is fitted to relative errors, since times span decades and a benchmark's noise is a percentage.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NOISIEST = 1.0  # relative; noise by a factor of e either way would be no measurement
PASSES = 3  # errors relative to noisy values would pull the fit down; the fit before is as good as its limit
TINY = 1e-6  # of a component's mean: below it a measured value is nothing, and has no relative error


@dataclass(frozen=True)
class Component:
    """One phase, fitted.

    - terms: what each run's row is made of, (runs, 2); a column of zeros is a term that does not exist or
      that the runs cannot tell from the other.
    - measured: (runs,). theta: (2,), both at least 0.
    """

    terms: Array
    measured: Array
    theta: Array

    @property
    def used(self) -> NDArray[np.bool_]:
        """Return which runs say something about it; a run in which it took no time does not."""
        return self.measured > TINY * max(self.measured.mean(), 1e-300)

    @property
    def misfit(self) -> float:
        """The sum of squared errors of the logarithms; noise is multiplicative."""
        fitted, measured = (self.terms @ self.theta)[self.used], self.measured[self.used]
        return float(np.sum(np.square(np.log(fitted / measured))))

    @property
    def freedom(self) -> int:
        """Degrees of freedom that the runs leave for the noise."""
        used = self.terms[self.used]
        return max(0, len(used) - int(np.any(used != 0, axis=0).sum()))


def component(terms: Array, measured: Array) -> Component:
    """Return the least-squares fit with non-negative coefficients.

    Two terms that are proportional over the runs (equal batches, one worker count) are not told apart: the
    second is left out, and the caller predicts with both only where the other stays constant too.
    """
    terms = identified(terms)
    reference = measured
    theta = np.zeros(2)
    for _ in range(PASSES):
        theta = non_negative(terms, measured[None, :], reference)[0]
        fitted = terms @ theta
        reference = np.where(fitted > 0, fitted, measured)
    return Component(terms, measured, theta)


def identified(terms: Array) -> Array:
    """Return the terms with the second set to zero where it is proportional to the first."""
    rows = terms[np.any(terms != 0, axis=1)]
    if len(rows) == 0 or np.linalg.matrix_rank(rows / np.abs(rows).max(axis=0).clip(1e-300), tol=1e-2) < 2:
        return terms * np.array([1.0, 0.0]) if np.any(terms[:, 0]) else terms
    return terms


def non_negative(terms: Array, measured: Array, reference: Array) -> Array:
    """Return for each row of `measured` (draws, runs) the (draws, 2) coefficients.

    Minimises the squared errors relative to `reference` (runs,) subject to both being at least 0: the
    unconstrained solution where it is allowed, else the better one of the two terms alone, which is exact
    for two convex terms. A run whose reference is next to nothing does not count.
    """
    known = reference > TINY * max(reference.mean(), 1e-300)
    weight = np.where(known, 1.0 / np.where(known, reference, 1.0), 0.0)
    scale = np.sqrt(np.square(terms * weight[:, None]).sum(axis=0)).clip(1e-300)
    rows = terms * weight[:, None] / scale  # (runs, 2), columns of unit length or zero
    target = measured * weight
    a, b, c = rows[:, 0] @ rows[:, 0], rows[:, 0] @ rows[:, 1], rows[:, 1] @ rows[:, 1]
    p, q = target @ rows[:, 0], target @ rows[:, 1]
    determinant = a * c - b * b
    solvable = determinant > 1e-12
    safe = determinant if solvable else 1.0
    both = np.stack([(c * p - b * q) / safe, (a * q - b * p) / safe], axis=1)
    first, second = (p / a if a > 0 else 0 * p), (q / c if c > 0 else 0 * q)
    # A term alone lowers the squared error by coefficient x its product with the target.
    alone = np.where(
        (first * p >= second * q)[:, None],
        np.stack([first, np.zeros_like(first)], axis=1),
        np.stack([np.zeros_like(second), second], axis=1),
    )
    allowed = np.all(both >= 0, axis=1)
    return np.where(solvable & allowed[:, None], both, alone) / scale


def refitted(one: Component, noise: Array) -> Array:
    """Return (draws, 2) coefficients of refits to the fitted values times exp(noise), noise (draws, runs)."""
    fitted = one.terms @ one.theta
    return non_negative(one.terms, fitted * np.exp(noise), np.where(one.used, fitted, 0.0))


def drawn_sigma(misfit: float, freedom: float, draws: int, rng: np.random.Generator) -> Array:
    """Return plausible noise levels, given how well `freedom` degrees of freedom know it (chi-squared)."""
    return np.minimum(np.sqrt(misfit / rng.chisquare(freedom, size=draws)), NOISIEST)
