"""Format values for people: numbers of few digits with unit, in ASCII, and text without control codes."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from mlbench.config.goal import Goal
from mlbench.record.record import RankStats

MINUTE, HOUR, DAY = 60, 3600, 86400  # s
PREFIXES = ("", "k", "M", "G", "T", "P", "E")  # powers of 1000, SI
SIGNIFICANT = 4  # digits of a metric without a unit
MOST_DIGITS = 6  # digits after the point that distinguish a value from its goal


def duration(seconds: float) -> str:
    """Return seconds in readable units: 4.1 ms, 12.3 s, 2 min 05 s, 1 h 02 min, 3 d 04 h."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if round(seconds, 1) >= MINUTE:
        whole = round(seconds)
        if whole < HOUR:
            return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
        minutes = round(seconds / MINUTE)
        if minutes < 2 * DAY // MINUTE:
            return f"{minutes // 60} h {minutes % 60:02d} min"
        hours = round(seconds / HOUR)
        return f"{hours // 24} d {hours % 24:02d} h"
    if seconds == 0:
        return "0 s"
    factor, unit = next(
        ((f, u) for f, u in ((1, "s"), (1e3, "ms")) if float(f"{seconds * f:.3g}") >= 1), (1e6, "us")
    )
    value = seconds * factor
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"


def whole(seconds: float) -> str:
    """Return a duration for a clock that ticks: whole seconds, e.g. 8 s, 2 min 05 s."""
    return duration(round(seconds)) if round(seconds) >= MINUTE else f"{seconds:.0f} s"


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point: 0.0123, 2,637."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def factor(value: float) -> str:
    """Return a ratio as `number` does, with enough further digits that only 1 reads as 1, e.g. 1.004."""
    digits = 3
    while digits < MOST_DIGITS and value != 1 and float(f"{value:.{digits}g}") == 1:
        digits += 1
    return number(value) if digits == 3 else f"{value:.{digits}g}"


def with_prefix(value: float, unit: str) -> str:
    """Return a large quantity with an SI prefix, e.g. 12.3 GFLOP/s."""
    power = 0
    while abs(value) >= 999.5 and power < len(PREFIXES) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g} {PREFIXES[power]}{unit}"


def usd(value: float) -> str:
    """Return a price with cents, or three significant digits below a dollar, never in powers of ten."""
    if value >= 1 or value == 0:
        return f"{value:,.2f} USD"
    digits = 2 - math.floor(math.log10(value))
    return f"{value:.{digits}f} USD"


def percent(share: float) -> str:
    """Return a share of one in percent."""
    return f"{100 * share:.1f} %"


def quantity(value: float | str, unit: str) -> str:
    """Return a value of a base unit: s, USD, share (of 1), ratio, date (ISO 8601), B, J, FLOP (SI prefixes).

    Of any other unit it is the number with it, e.g. 1 epoch, 71.9 images/s.
    """
    if isinstance(value, str):
        return value[5:16].replace("T", " ") if unit == "date" else value
    if unit in WORDED:
        return WORDED[unit](value)
    if unit in WITH_PREFIX:
        return with_prefix(value, unit)
    singular = value == 1 and unit.endswith("s") and "/" not in unit
    return f"{number(value)} {unit[:-1] if singular else unit}".rstrip()


def spread(stats: RankStats, unit: str) -> str:
    """Return the mean over the ranks, with lowest and highest if digits differ, e.g. 3 MB (2 to 4)."""
    text, low, high = (quantity(value, unit) for value in (stats.mean, stats.min, stats.max))
    if low == high:
        return text
    _, blank, shared = text.rpartition(" ")
    if all(end.endswith(blank + shared) for end in (low, high)):
        low, high = (end.removesuffix(blank + shared) for end in (low, high))
    return f"{text} ({low} to {high})"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, e.g. 1 epoch, 2 epochs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


WORDED = {"s": duration, "USD": usd, "share": percent, "ratio": factor}
WITH_PREFIX = ("B", "B/s", "J", "FLOP", "FLOP/s")


def measured(value: float, unit: str, goal: Goal | None) -> str:
    """Return a metric with its unit and enough digits that rounding never makes it meet or miss the goal.

    A metric without a unit, such as a share or a loss, has at least SIGNIFICANT digits.
    """
    digits = 2
    if not unit and value and math.isfinite(value):
        digits = max(digits, min(SIGNIFICANT - 1 - math.floor(math.log10(abs(value))), MOST_DIGITS))
    while goal and digits < MOST_DIGITS and goal.reached(round(value, digits)) != goal.reached(value):
        digits += 1
    return f"{value:.{digits}f} {unit}".rstrip()


def target(goal: Goal, unit: str) -> str:
    """Return the goal for the metric, e.g. >= 95 %."""
    return f"{goal.bound} {unit}".rstrip()


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return text from elsewhere without terminal control codes and with nothing `encoding` cannot write."""
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]", "", text)  # ECMA-48 sequences
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def last_line(error: str) -> str:
    """Return the line of an error or traceback that names the cause."""
    lines = [line for line in error.splitlines() if line.strip()]
    return printable(lines[-1]).strip() if lines else "no reason given"


def failures(errors: Mapping[int, str]) -> list[str]:
    """Return one phrase a reason, with all ranks that gave it, e.g. ranks 0, 1 failed: out of memory."""
    ranks: dict[str, list[str]] = {}
    for rank, error in sorted(errors.items()):
        ranks.setdefault(last_line(error), []).append(str(rank))
    return [
        f"rank{'s' if len(same) > 1 else ''} {', '.join(same)} failed: {reason}"
        for reason, same in ranks.items()
    ]


def json_text(values: Any) -> str:
    """Return JSON. An infinite number, e.g. the time of a missed goal, is "infinite", and NaN is null."""
    return json.dumps(_plain(values), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    return value
