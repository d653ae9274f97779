"""When a goal is met."""

import math

from mlbench.config.goal import Goal, better


def test_a_goal_is_met_at_its_target() -> None:
    assert Goal("accuracy", 80, "max").reached(80)
    assert not Goal("accuracy", 80, "max").reached(79.999)
    assert Goal("perplexity", 70, "min").reached(70)
    assert not Goal("perplexity", 70, "min").reached(70.001)


def test_nan_meets_no_goal_and_improves_on_nothing() -> None:
    for direction in ("max", "min"):
        assert not Goal("loss", 1, direction).reached(math.nan)
        assert not better(math.nan, 1.0, direction)


def test_the_first_value_is_an_improvement() -> None:
    assert better(5, None, "min") and better(4, 5, "min") and not better(5, 5, "min")
