import pytest
from scripted import BEGUN, Clock, Connection, experiment, failure, sign, validation

from mlbench.terminal.run_state import CALIBRATING, RESTARTING, TRAINING, WAITING, Course


@pytest.fixture
def clock():
    return Clock()


def made(clock, *words):
    return Course(experiment(*words), seed=7, begun=BEGUN, now=clock)


def test_rates_are_those_of_the_last_seconds_over_all_workers(clock):
    course = made(clock, "workers=4")
    course.sign(sign(0.1, 10))
    assert course.updates_per_s is None, "one sign has no rate"
    for second in range(1, 41):
        clock.wait(1)
        rate = 5 if second <= 20 else 8
        course.sign(sign(0.1 * second, course.update + rate))
    assert course.updates_per_s == pytest.approx(8)
    assert course.samples_per_s == pytest.approx(8 * 32 * 4), "four workers with batches of 32"


def test_epochs_shorter_than_a_second_have_a_rate_too(clock):
    course = made(clock)
    for epoch in (1, 2, 3):
        clock.wait(0.25)
        course.event(validation(epoch, 50, update=20 * epoch, elapsed=0.25 * epoch))
    assert course.updates_per_s == pytest.approx(80)


def test_the_loss_is_the_mean_over_the_ranks_heard_of(clock):
    course = made(clock)
    assert course.loss is None
    course.sign(sign(0.1, 10, loss=1.0))
    course.sign(sign(0.1, 10, loss=3.0, rank=1))
    assert course.loss == 2.0
    course.event(validation(1, 50, update=23, elapsed=5))
    assert course.loss == 0.75, "a validation brings the exact mean"


def test_only_rank_0_says_where_training_is(clock):
    course = made(clock)
    course.sign(sign(0.5, 10))
    course.sign(sign(0.4, 9, rank=1))
    assert (course.epoch, course.update) == (0.5, 10)


def test_the_first_touch_of_data_is_not_guessed(clock):
    course = made(clock)
    clock.wait(30)
    course.sign(sign(0.5, 10))
    assert course.trained is None
    assert course.elapsed == 30
    course.event(validation(1, 50, update=23, elapsed=5))
    assert course.trained == 20


def test_a_run_that_keeps_checkpoints_tells_its_first_touch_at_once(clock):
    course = made(clock)
    course.event({"key": "run_start", "value": BEGUN - 3, "metadata": {}})
    assert course.trained == 3


def test_the_time_left_counts_epochs_not_the_goal(clock):
    course = made(clock)
    assert course.remaining is None
    course.sign(sign(0.5, 10))
    assert course.remaining is None, "no pace from one sign"
    clock.wait(2)
    course.sign(sign(1.0, 20))
    assert course.remaining == pytest.approx(19 * 4)
    assert not course.remaining_counts_validation
    course.event(validation(1, 94.9, update=20, elapsed=6))
    assert course.remaining == pytest.approx(19 * 6)
    assert course.remaining_counts_validation
    course.sign(sign(1.5, 30))
    assert course.remaining == pytest.approx(18.5 * 6)


def test_a_validation_that_arrives_after_a_later_sign_does_not_turn_back(clock):
    course = made(clock)
    course.sign(sign(1.2, 28))
    course.event(validation(1, 50, update=23, elapsed=5))
    assert (course.epoch, course.update) == (1.2, 28)
    assert course.values == [(1, 50)]


def test_states_follow_what_is_told(clock):
    course = made(clock)
    course.connected(Connection())
    assert course.doing == WAITING
    course.sign(sign(0.5, 10))
    assert course.doing == TRAINING
    course.sign({"rank": 0, "doing": "validating"})
    assert course.doing == "validating"
    course.event(validation(1, 50, update=23, elapsed=5))
    assert course.doing == TRAINING
    course.event(validation(2, 96, update=46, elapsed=9, goal_reached=True))
    assert course.doing == CALIBRATING


@pytest.mark.parametrize(("epoch", "value"), [(20, 50), (3, None)], ids=["last epoch", "diverged"])
def test_training_is_over_without_a_goal_too(clock, epoch, value):
    course = made(clock)
    course.event(validation(epoch, value, update=23, elapsed=5))
    assert course.doing == CALIBRATING


def test_a_dead_worker_is_named_with_the_restart_and_the_rates_begin_again(clock):
    course = made(clock, "max_failures=1")
    for update in (10, 20):
        clock.wait(1)
        course.sign(sign(update / 23, update))
    course.event(failure(1, rank_1="Traceback ...\n  line\nActorDiedError: killed by SIGKILL\n"))
    assert course.doing == RESTARTING
    assert course.warnings == ["rank 1 failed: ActorDiedError: killed by SIGKILL (restart 1 of at most 1)"]
    assert course.updates_per_s is None
    assert course.loss is None
    clock.wait(20)
    course.sign(sign(1 / 23, 1))
    assert (course.doing, course.update) == (TRAINING, 1)
    course.event(failure(2, rank_0="gone"))
    assert course.warnings[-1] == "rank 0 failed: gone (no restart is left)"
    assert course.doing == "ending"


def test_sharing_cpus_is_said_in_words(clock):
    course = made(clock, "workers=4")
    course.connected(Connection(oversubscribed=True))
    assert len(course.warnings) == 1
    assert "4 worker(s) of 1 thread(s) have fewer CPUs than that" in course.warnings[0]


def test_events_of_other_kinds_change_nothing(clock):
    course = made(clock)
    course.event({"key": "run_configuration", "value": {}, "metadata": {}})
    course.event({"key": "run_stop", "value": {"status": "failed"}, "metadata": {}})
    assert course.epoch == 0
