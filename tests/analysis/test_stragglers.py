"""The sentence about a straggler: there when a rank is late, not there by chance."""

import numpy as np
import pytest
from records import record

from mlbench.analysis.stragglers import of_run, straggler
from mlbench.record.phases import LatenessBlock


def simulated(ranks: int, late_s: float, *, blocks: int = 40, seed: int = 0) -> list[list[LatenessBlock]]:
    """Return stretches of 25 steps; rank 1 is late by `late_s`, all by noise of 2 ms that stretches share."""
    random = np.random.default_rng(seed)
    stretch = random.normal(0, 2e-3, (blocks, 1, ranks))
    launches = stretch + random.normal(0, 2e-3, (blocks, 25, ranks))
    launches[..., 1] += late_s
    others = (launches.sum(2, keepdims=True) - launches) / (ranks - 1)
    lateness, last = launches - others, launches == launches.max(2, keepdims=True)
    return [
        [
            LatenessBlock(25, int(last[block, :, rank].sum()), float(np.median(lateness[block, :, rank])))
            for block in range(blocks)
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_late_rank_is_named_with_how_late_it_is(ranks: int) -> None:
    result = straggler(simulated(ranks, 5e-3))
    assert result is not None and result.rank == 1
    assert result.low_s < 5e-3 < result.high_s and result.median_s == pytest.approx(5e-3, rel=0.2)
    assert result.last > 2 * result.chance or ranks == 2


def test_ranks_that_are_alike_are_not_accused() -> None:
    """At most one study in a hundred may; of 300 more than 9 would come once in a thousand."""
    accused = sum(straggler(simulated(4, 0.0, seed=seed)) is not None for seed in range(300))
    assert accused <= 9


def test_few_stretches_one_rank_or_a_coarse_clock_show_nothing() -> None:
    assert straggler(simulated(2, 5e-3, blocks=5)) is None
    assert straggler(simulated(2, 5e-3)[:1]) is None
    assert straggler([[], []]) is None
    assert straggler(simulated(2, 5e-3), clock_error_s=0.01) is None
    assert straggler(simulated(2, 5e-3), step_s=0.1) is None and straggler(simulated(2, 5e-3), step_s=0.02)


def test_a_run_s_late_rank_is_late_by_a_tenth_of_its_median_step() -> None:
    lateness = simulated(2, 5e-3)
    for step_s, named in ((0.02, 1), (0.1, None)):
        late = of_run(record(lateness=lateness, step_s={"p50": step_s, "p95": 1.0, "p99": 1.0}))
        assert (late and late.rank) == named


def test_the_more_ranks_the_more_stretches_it_takes() -> None:
    """Ten stretches all late have the chance 2^-10 = 0.00098: below 0.005 / 2, and not below 0.005 / 8."""
    late, early = [LatenessBlock(10, 10, 0.01)] * 10, [LatenessBlock(10, 0, -0.01)] * 10
    assert straggler([late, early]) is not None
    assert straggler([late, *[early] * 7]) is None


def test_the_interval_is_the_sign_test_s() -> None:
    """Of 20 stretches the median lies between the fourth lowest and the fourth highest in 99 % of cases.

    Fewer than four of 20 fair coins show heads once in 776; fewer than five once in 169 (binomial tables),
    and 0.0025 is what each end may miss by with two ranks.
    """
    late = [LatenessBlock(10, 10, float(n)) for n in range(1, 21)]
    early = [LatenessBlock(10, 0, -float(n)) for n in range(1, 21)]
    result = straggler([early, late])
    assert result is not None and (result.low_s, result.high_s) == (4.0, 17.0)
