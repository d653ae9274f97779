"""How many workers to take: the fastest, the cheapest, for a deadline, for a budget."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlbench.config.errors import UserError
from mlbench.prediction.forecast import Forecast, Interval
from mlbench.record import format

DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|d)")
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # seconds


@dataclass(frozen=True)
class Advice:
    """The answer to one question: a worker count, None where there is none, and the sentence."""

    question: str
    workers: int | None
    sentence: str


def advise(forecasts: Sequence[Forecast], *, deadline: float | None, budget: float | None) -> list[Advice]:
    """Return the fastest and the cheapest, and an answer for a deadline (s) and a budget (USD) if given.

    Only supported counts are advised: going up, each must be shown to be faster than the one before.
    Raises UserError for a budget where the hardware has no price.
    """
    supported, reason, slower = _supported(forecasts)
    priced = all(one.cost_usd for one in forecasts)
    if reason and len(supported) == 1 and not slower:
        answers = [Advice("fastest", None, f"Fastest: no advice, {reason}.")]
    else:
        more = reason or "no larger count was predicted"
        sentence = f"Fastest: {in_words(supported[-1])}; {more}."
        answers = [Advice("fastest", supported[-1].workers, sentence)]
        if priced:
            cheapest = min(supported, key=_usd)
            answers.append(Advice("cheapest", cheapest.workers, f"Cheapest: {in_words(cheapest)}."))
    if deadline is not None:
        order = _usd if priced else (lambda one: one.workers)
        answers.append(_within("deadline", format.duration(deadline), supported, deadline, _time, order))
    if budget is not None:
        if not priced:
            raise UserError(
                "a budget needs a price, and the hardware has none", hint="hardware=gcp_n1_t4, say"
            )
        answers.append(_within("budget", format.usd(budget), supported, budget, _usd, _time))
    return answers


def parse_deadline(text: str) -> float:
    """Return the seconds of a deadline such as 8h, 90min, 2d or 5400s."""
    match = DURATION.fullmatch(text)
    if not match or float(match[1]) == 0:
        raise UserError(f"deadline={text} is not a duration", hint="write e.g. 8h, 90min, 2d or 5400s")
    return float(match[1]) * UNITS_S[match[2]]


def parse_budget(text: str) -> float:
    """Return a budget in USD."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UserError(f"budget={text} is not an amount of USD", hint="write e.g. budget=25")
    return value


def in_words(one: Forecast) -> str:
    """Return e.g. 8 workers, 7 h 00 min, 31.32 USD; with intervals."""
    parts = [format.counted(one.workers, "worker"), _with_ends(one.time_s, format.duration)]
    return ", ".join([*parts, *([_with_ends(one.cost_usd, format.usd)] if one.cost_usd else [])])


def _supported(forecasts: Sequence[Forecast]) -> tuple[list[Forecast], str, bool]:
    """Return the counts up to which each is shown to be faster than the one before, and why it ends there.

    The last value is whether the next count is shown to be slower, rather than not shown to be faster.
    """
    supported = [forecasts[0]]
    for one in forecasts[1:]:
        ratio = one.time_ratio or Interval(math.nan)
        if ratio.high is None or ratio.high >= 1:
            slower = ratio.low is not None and ratio.low > 1
            verb = "are slower" if slower else "are not shown to be faster"
            before = format.counted(supported[-1].workers, "worker")
            ends = _with_ends(ratio, lambda value: f"{value:.2f}")
            return supported, f"{one.workers:,} {verb} than {before} (ratio of the times {ends})", slower
        supported.append(one)
    return supported, "", False


def _within(
    name: str,
    limit_text: str,
    supported: Sequence[Forecast],
    limit: float,
    value: Callable[[Forecast], float],
    order: Callable[[Forecast], float],
) -> Advice:
    """Return the best count that is predicted to stay within the limit, and whether its interval does."""
    question = f"{name.capitalize()} of {limit_text}"
    within = [one for one in supported if value(one) <= limit]
    if not within:
        closest = in_words(min(supported, key=value))
        sentence = f"{question}: no advised worker count is predicted to keep it; closest is {closest}."
        return Advice(name, None, sentence)
    best = min(within, key=order)
    ends = [(one.time_s if value is _time else one.cost_usd) or Interval(math.inf) for one in within]
    safe = [one for one, end in zip(within, ends, strict=True) if end.high is not None and end.high <= limit]
    surely = "no count keeps it with its whole interval"
    if best in safe:
        surely = "its whole interval keeps it"
    elif safe:
        surely = f"with the whole interval, {format.counted(min(safe, key=order).workers, 'worker')}"
    return Advice(name, best.workers, f"{question}: {in_words(best)}; {surely}.")


def _with_ends(estimate: Interval, text: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return text(estimate.value)
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


def _time(one: Forecast) -> float:
    return one.time_s.value


def _usd(one: Forecast) -> float:
    return one.cost_usd.value if one.cost_usd else math.inf
