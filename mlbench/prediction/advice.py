"""How many workers to take: for the least time, the least cost, a deadline or a budget; in words."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlbench.experiment import format
from mlbench.experiment.errors import UserError
from mlbench.prediction.forecast import Estimate, Forecast

UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # seconds
NEAR = 0.05  # relative; what more workers gain beyond this is hardly worth their price
PATTERN = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|d)")


@dataclass(frozen=True)
class Advice:
    """The answer to one question: a worker count, None where there is none, and the sentence."""

    question: str
    workers: int | None
    sentence: str


def seconds(word: str) -> float:
    """Return the seconds of a deadline such as 8h, 90min, 2d or 5400s."""
    found = PATTERN.fullmatch(word)
    if not found:
        raise UserError(f"deadline={word} is not a duration", hint="write e.g. 8h, 90min, 2d or 5400s")
    return float(found[1]) * UNITS_S[found[2]]


def dollars(word: str) -> float:
    """Return a budget in USD."""
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"budget={word} is not an amount of USD", hint="write e.g. budget=25")
    return value


def advise(found: Sequence[Forecast], *, deadline: float | None, budget: float | None) -> list[Advice]:
    """Return an answer for the least time, the least cost, and what else was asked.

    - deadline: seconds to accuracy. budget: USD, from the first touch of data to the goal.
    Raises UserError for a budget where the hardware has no price.
    """
    answers = [_least_time(found)]
    priced = all(one.cost_usd for one in found)
    if priced:
        answers.append(_least_cost(found))
    if deadline is not None:
        answers.append(_deadline(found, deadline))
    if budget is not None:
        if not priced:
            raise UserError(
                "a budget needs a price, and the hardware has none", hint="hardware=gcp_n1_t4, say"
            )
        answers.append(_budget(found, budget))
    return answers


def _least_time(found: Sequence[Forecast]) -> Advice:
    best = min(found, key=_time)
    near = min((one for one in found if _time(one) <= (1 + NEAR) * _time(best)), key=lambda one: one.workers)
    edge = best is found[-1] and len(found) > 1
    more = "; it is the most that was asked for, and more may be faster still" if edge else ""
    less = f"; within {NEAR:.0%} of it: {_words(near)}".replace("%", " %") if near is not best else ""
    return Advice("least time", best.workers, f"Least time: {_words(best)}{more}{less}.")


def _least_cost(found: Sequence[Forecast]) -> Advice:
    best = min(found, key=_usd)
    return Advice("least cost", best.workers, f"Least cost: {_words(best)}.")


def _deadline(found: Sequence[Forecast], limit: float) -> Advice:
    asked = f"Deadline of {format.duration(limit)}"
    order = _usd if found[0].cost_usd else lambda one: one.workers
    chosen, safe = _within(found, limit, lambda one: one.time_s, order)
    if chosen is None:
        least = min(found, key=_time)
        return Advice("deadline", None, f"{asked}: no worker count is predicted to meet it; {_least(least)}.")
    return Advice("deadline", chosen.workers, f"{asked}: {_words(chosen)}; {_surely(safe, chosen)}.")


def _budget(found: Sequence[Forecast], limit: float) -> Advice:
    asked = f"Budget of {format.usd(limit)}"
    chosen, safe = _within(found, limit, lambda one: one.cost_usd, _time)
    if chosen is None:
        least = min(found, key=_usd)
        return Advice("budget", None, f"{asked}: no worker count is predicted to keep it; {_least(least)}.")
    return Advice("budget", chosen.workers, f"{asked}: {_words(chosen)}; {_surely(safe, chosen)}.")


def _within(
    found: Sequence[Forecast],
    limit: float,
    quantity: Callable[[Forecast], Estimate | None],
    order: Callable[[Forecast], float],
) -> tuple[Forecast | None, Forecast | None]:
    """Return the best that is predicted to stay within the limit, and the best whose whole interval does."""
    known = [(one, estimate) for one in found if (estimate := quantity(one)) is not None]
    kept = [one for one, estimate in known if estimate.value <= limit]
    sure = [one for one, estimate in known if estimate.high is not None and estimate.high <= limit]
    return min(kept, key=order, default=None), min(sure, key=order, default=None)


def _words(one: Forecast) -> str:
    """Return what is predicted of one worker count, e.g. 8 workers, 7 h 00 min, 31.32 USD; with intervals."""
    said = f"{format.counted(one.workers, 'worker')}, {interval(one.time_s, format.duration)}"
    return f"{said}, {interval(one.cost_usd, format.usd)}" if one.cost_usd else said


def _least(one: Forecast) -> str:
    return f"closest is {_words(one)}"


def _surely(safe: Forecast | None, chosen: Forecast) -> str:
    if safe is None:
        return "no count keeps it with its whole interval"
    if safe is chosen:
        return "its whole interval keeps it"
    return f"with the whole interval, {format.counted(safe.workers, 'worker')}"


def interval(estimate: Estimate, words: Callable[[float], str]) -> str:
    """Return a value with its interval in words, or alone where it has none."""
    if estimate.low is None or estimate.high is None:
        return words(estimate.value)
    return f"{words(estimate.value)} ({words(estimate.low)} to {words(estimate.high)})"


def _time(one: Forecast) -> float:
    return one.time_s.value


def _usd(one: Forecast) -> float:
    assert one.cost_usd is not None
    return one.cost_usd.value
