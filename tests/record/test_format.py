import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mlbench.config.goal import Goal
from mlbench.record import format


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (4.1e-7, "0.4 us"),
        (3.21e-5, "32.1 us"),
        (0.0041, "4.1 ms"),
        (0.412, "412 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (86400, "24 h 00 min"),
        (2 * 86400, "2 d 00 h"),
        (3 * 86400 + 4 * 3600, "3 d 04 h"),
        (-3.2, "-3.2 s"),
    ],
)
def test_durations_are_said_with_sensible_digits(seconds, said):
    assert format.duration(seconds) == said


@given(st.floats(1e-6, 1e7))
def test_a_said_duration_is_within_its_last_digit(seconds):
    factors = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}
    parts = format.duration(seconds).split()
    said = sum(float(value) * factors[unit] for value, unit in zip(parts[::2], parts[1::2], strict=True))
    assert said == pytest.approx(seconds, rel=0.05, abs=1e-7)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.012345, "0.0123"), (41.23, "41.2"), (99.96, "100"), (2637.4, "2,637"), (math.nan, "nan")],
)
def test_numbers_keep_three_digits(value, said):
    assert format.number(value) == said


def test_small_prices_are_not_rounded_to_nothing():
    assert format.usd(1234.5) == "1,234.50 USD"
    assert format.usd(0.01234) == "0.0123 USD"
    assert format.usd(0.0000456) == "0.0000456 USD"
    assert format.usd(0) == "0.00 USD"


def test_rounding_never_makes_a_value_meet_or_miss_its_goal():
    most = Goal("accuracy", 95, "max")
    assert format.measured(94.9996, "%", most) == "94.9996 %"
    assert format.measured(95.28, "%", most) == "95.28 %"
    least = Goal("perplexity", 70, "min")
    assert format.measured(70.001, "", least) == "70.001"
    assert format.measured(70.5, "", None) == "70.50"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9795, "0.9795"), (3.2789, "3.279"), (-0.5, "-0.5000"), (0.00123, "0.001230"), (1e-9, "0.000000"),
     (1234.5, "1234.50"), (0.0, "0.00"), (math.inf, "inf"), (math.nan, "nan")],
)  # fmt: skip
def test_a_metric_without_a_unit_has_four_significant_digits(value: float, text: str) -> None:
    assert format.measured(value, "", None) == text


def test_ranks_that_failed_alike_are_named_together(snapshot: SnapshotAssertion):
    errors = {10: "Traceback\n  x\nRuntimeError: a", 2: "RuntimeError: a\n\n", 3: ""}
    assert format.failures(errors) == snapshot


def test_text_from_elsewhere_cannot_steer_the_terminal():
    assert format.printable("\x1b[2J\x1b]0;title\x07a\x9bb\r\nc\td") == "0;title a b c d"
    assert format.printable("Größe", "ascii") == "Gr\\xf6\\xdfe"
