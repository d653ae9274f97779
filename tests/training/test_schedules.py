import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlbench.training.schedules import (
    Plateau,
    Schedule,
    exponential_warmup,
    late_steps,
    linear_warmup,
    product,
    step_decay,
    warmup_epochs,
    warmup_inverse_sqrt,
)

UPDATES = 10  # an epoch in these tests


def optimizer(rate, *more):
    groups = [{"params": [torch.zeros(1)], "lr": r} for r in (rate, *more)]
    return torch.optim.SGD(groups)


def rates(schedule, updates):
    values = []
    for update in updates:
        schedule.before_step(update)
        values.append([group["lr"] for group in schedule.optimizer.param_groups])
    return [rate if len(rate) > 1 else rate[0] for rate in values]


def resnet_2020(k, *, rate=0.02):
    warmup = warmup_epochs(k) * UPDATES
    plateau = Plateau(decay=0.5, patience=2, start=warmup)
    return Schedule(optimizer(rate), linear_warmup(k, warmup), plateau=plateau)


def logreg_2020(k):
    return Schedule(optimizer(4.0 * k), lambda _: 1.0, plateau=Plateau(decay=0.75, patience=2))


def test_warm_up_lasts_ceil_log2_k_epochs():
    counts = {k: warmup_epochs(k) for k in (1, 2, 3, 4, 5, 8, 9, 16, 32)}
    assert counts == {1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 16: 4, 32: 5}


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, {0: 0.02, 1: 0.02, 1639: 0.02}),
        (2, {0: 0.02, 1: 0.022, 5: 0.03, 9: 0.038, 10: 0.04, 11: 0.04, 1639: 0.04}),
        (4, {0: 0.02, 1: 0.023, 5: 0.035, 10: 0.05, 19: 0.077, 20: 0.08, 1639: 0.08}),
        (8, {0: 0.02, 3: 0.034, 15: 0.09, 27: 0.146, 30: 0.16, 1639: 0.16}),
    ],
)
def test_resnet_2020_rises_per_update_to_k_times_the_rate(k, expected):
    assert rates(resnet_2020(k), expected) == pytest.approx(list(expected.values()), rel=1e-12)


@pytest.mark.parametrize(("k", "start"), [(1, 4.0), (2, 8.0), (4, 16.0), (8, 32.0)])
def test_logreg_2020_falls_by_a_quarter_after_two_validations_without_progress(k, start):
    schedule = logreg_2020(k)
    values = []
    for epoch, loss in enumerate([0.6, 0.5, 0.5, 0.55, 0.51, 0.4, 0.45, 0.4]):
        values += rates(schedule, [epoch * UPDATES, (epoch + 1) * UPDATES - 1])[1:]
        schedule.after_validation({"loss": loss, "accuracy": 80.0})
    values += rates(schedule, [8 * UPDATES])
    cuts = [1, 1, 1, 1, 0.75, 0.75, 0.75, 0.75, 0.5625]
    assert values == pytest.approx([start * cut for cut in cuts], rel=1e-12)


def test_gnmt_rises_by_equal_ratios_then_halves_four_times_from_two_fifths_on():
    factor = product(
        exponential_warmup(0.01, 200), late_steps(0.5, total=1000, start=0.4, every=0.05, times=4)
    )
    values = rates(Schedule(optimizer(2e-3), factor), range(1000))
    assert values[0] == pytest.approx(2e-5)
    assert values[100] == pytest.approx(2e-4)
    ratios = [later / sooner for sooner, later in zip(values[:200], values[1:201], strict=True)]
    assert ratios == pytest.approx([100 ** (1 / 200)] * 200)
    assert set(values[200:400]) == {2e-3}
    falls = [t for t in range(201, 1000) if values[t] < values[t - 1]]
    assert falls == [400, 450, 500, 550]
    assert values[-1] == pytest.approx(2e-3 / 16)


def test_the_transformers_rate_rises_from_nothing_and_falls_as_the_root():
    values = rates(Schedule(optimizer(1.976e-3), warmup_inverse_sqrt(1000)), [0, 1, 500, 999, 1000, 4000])
    expected = [0.0, 1.976e-6, 0.988e-3, 1.974024e-3, 1.976e-3, 0.988e-3]
    assert values == pytest.approx(expected)


def test_plateau_and_warm_up_multiply_and_the_rising_rate_is_not_cut():
    schedule = resnet_2020(4)
    for epoch, loss in enumerate([1.0, 2.0, 2.0, 2.0]):  # epochs 0 and 1 warm up
        rates(schedule, [(epoch + 1) * UPDATES - 1])
        schedule.after_validation({"loss": loss})
        if epoch == 2:
            assert rates(schedule, [3 * UPDATES]) == [0.08]
    assert rates(schedule, [4 * UPDATES]) == [0.04]


def test_a_loss_that_is_not_a_number_is_no_progress():
    plateau = Plateau(decay=0.5, patience=2)
    for value in (1.0, math.nan, math.nan):
        plateau.observe(value, 0)
    assert (plateau.cut, plateau.best) == (0.5, 1.0)


@given(st.lists(st.floats(0, 4).map(lambda x: round(x, 1)), max_size=30), st.integers(1, 4))
def test_plateau_cuts_when_torchs_own_does(losses, patience):
    """torch waits for one more bad epoch than its patience: theirs is ours minus one."""
    theirs = optimizer(1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.5, patience=patience - 1, threshold=0, eps=0
    )
    ours = Schedule(optimizer(1.0), lambda _: 1.0, plateau=Plateau(decay=0.5, patience=patience))
    for update, loss in enumerate(losses):
        reference.step(loss)
        ours.after_validation({"loss": loss})
        ours.before_step(update)
        assert ours.optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]


@given(st.lists(st.integers(1, 30), unique=True, max_size=4).map(sorted))
def test_steps_fall_where_torchs_multi_step_does(milestones):
    theirs = optimizer(1.0)
    reference = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones, gamma=0.1)
    for update in range(32):
        assert step_decay(0.1, milestones)(update) == pytest.approx(theirs.param_groups[0]["lr"])
        theirs.step()
        reference.step()


@pytest.mark.parametrize("stop", [1, 7])
def test_a_restored_schedule_goes_on_exactly(stop):
    losses = [1.0, 0.9, 0.95, 0.9, 0.8, 0.85, 0.86, 0.87, 0.88, 0.7, 0.75, 0.76]

    def run(schedule, epochs):
        values = []
        for epoch in epochs:
            values += rates(schedule, range(epoch * UPDATES, (epoch + 1) * UPDATES))
            schedule.after_validation({"loss": losses[epoch]})
        return values

    whole = run(resnet_2020(8), range(12))
    assert min(whole[60:]) < 0.16  # the plateau had its say
    first = resnet_2020(8)
    before = run(first, range(stop))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = resnet_2020(8)
    # as after loading the optimizer's state: the rate of the last update stands in its groups
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(torch.load(file, weights_only=True))
    assert before + run(second, range(stop, 12)) == whole


def test_a_schedule_built_on_a_restored_optimizer_takes_its_bases_from_the_state():
    first = resnet_2020(8)
    rates(first, [30])
    second = resnet_2020(8, rate=first.optimizer.param_groups[0]["lr"])
    second.load_state_dict(first.state_dict())
    assert rates(second, [30]) == pytest.approx([0.16])
