import pytest
from scripted import BEGUN, Clock, experiment, heartbeat, validation

from mlbench.terminal.run_progress import ENDING, TRAINING, WAITING, RunState


@pytest.fixture
def clock():
    return Clock()


def made(clock, *overrides):
    return RunState(experiment(*overrides), seed=7, command_started=BEGUN, now=clock)


def test_rates_are_those_of_the_last_seconds_over_all_workers(clock):
    state = made(clock, "workers=4")
    state.heartbeat(heartbeat(0.1, 10))
    assert state.steps_per_s is None, "one heartbeat has no rate"
    for second in range(1, 41):
        clock.wait(1)
        rate = 5 if second <= 20 else 8
        state.heartbeat(heartbeat(0.1 * second, state.step + rate))
    assert state.steps_per_s == pytest.approx(8)
    assert state.samples_per_s == pytest.approx(8 * 32 * 4), "four workers with batches of 32"


def test_steps_that_are_made_again_from_a_checkpoint_are_in_no_rate(clock):
    state = made(clock)
    for step in (10, 20, 5, 9):
        state.heartbeat(heartbeat(0.1, step))
        clock.wait(1)
    assert state.steps_per_s == pytest.approx(4)


def test_epochs_shorter_than_a_second_have_a_rate_too(clock):
    state = made(clock)
    for epoch in (1, 2, 3):
        clock.wait(0.25)
        state.event(validation(epoch, 50, update=20 * epoch, elapsed=0.25 * epoch))
    assert state.steps_per_s == pytest.approx(80)


def test_validations_that_arrive_in_a_burst_have_the_rate_of_their_own_clock(clock):
    """Epochs of 20 steps in 0.25 s, of which 0.05 s validate; the driver hears of all of them at once."""
    state = made(clock)
    times = {"outside": {"validation": 0.05}, "samples": 640}
    for epoch in (1, 2, 3, 4):
        event = validation(epoch, 50, update=20 * epoch, elapsed=0.25 * epoch)
        event["metadata"] |= {"phase_times": [times, times], "unit": "rows"}
        clock.wait(0.001)
        state.event(event)
        assert state.steps_per_s == pytest.approx(100)
        assert state.rates()[1:] == ["100 steps/s", "6,400 rows/s on 2 workers"]


def test_the_loss_is_the_mean_over_the_ranks_heard_of(clock):
    state = made(clock)
    assert state.loss is None
    state.heartbeat(heartbeat(0.1, 10, loss=1.0))
    state.heartbeat(heartbeat(0.1, 10, loss=3.0, rank=1))
    assert state.loss == 2.0
    state.event(validation(1, 50, update=23, elapsed=5))
    assert state.loss == 0.75, "a validation brings the exact mean"


def test_the_first_touch_of_data_is_not_guessed(clock):
    state = made(clock)
    clock.wait(30)
    state.heartbeat(heartbeat(0.5, 10))
    assert state.trained is None
    assert state.elapsed == 30
    state.event(validation(1, 50, update=23, elapsed=5))
    assert state.trained == 20


def test_the_time_left_counts_epochs_not_the_goal(clock):
    state = made(clock)
    assert state.remaining is None
    state.heartbeat(heartbeat(0.5, 10))
    assert state.remaining is None, "no speed from one heartbeat"
    clock.wait(2)
    state.heartbeat(heartbeat(1.0, 20))
    assert state.remaining == pytest.approx(19 * 4)
    state.event(validation(1, 94.9, update=20, elapsed=6))
    assert state.remaining == pytest.approx(19 * 6)
    state.heartbeat(heartbeat(1.5, 30))
    assert state.remaining == pytest.approx(18.5 * 6)


def test_a_validation_that_arrives_after_a_later_heartbeat_does_not_turn_back(clock):
    state = made(clock)
    state.heartbeat(heartbeat(1.2, 28))
    state.event(validation(1, 50, update=23, elapsed=5))
    assert (state.epoch, state.step) == (1.2, 28)
    assert state.values == [(1, 50)]


def test_states_follow_what_is_told(clock):
    state = made(clock)
    state.connected(1, False)
    assert state.activity == WAITING
    state.heartbeat(heartbeat(0.5, 10))
    assert state.activity == TRAINING
    state.heartbeat({"rank": 0, "doing": "validating"})
    assert state.activity == "validating"
    state.event(validation(1, 50, update=23, elapsed=5))
    assert state.activity == TRAINING
    state.event(validation(2, 96, update=46, elapsed=9, goal_reached=True))
    assert state.activity == ENDING


@pytest.mark.parametrize(("epoch", "value"), [(20, 50), (3, None)], ids=["last epoch", "diverged"])
def test_training_is_over_without_a_goal_too(clock, epoch, value):
    state = made(clock)
    state.event(validation(epoch, value, update=23, elapsed=5))
    assert state.activity == ENDING


def test_rates_of_samples_go_on_after_a_restart_that_counts_samples_from_zero(clock):
    state = made(clock, "workers=2")
    for step in (100, 110):
        clock.wait(1)
        state.heartbeat(heartbeat(1, step) | {"samples": 32 * (step - 90)})
    assert state.samples_per_s == pytest.approx(10 * 32 * 2)
