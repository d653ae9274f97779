import io

import pytest
from rich.console import Console
from scripted import BEGUN, Clock, Connection, experiment, failure, sign, validation

from mlbench.terminal import frame
from mlbench.terminal.run_state import Course


def made(*words):
    clock = Clock()
    return Course(experiment(*words), seed=7, begun=BEGUN, now=clock), clock


def drawn(course, width=80):
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(frame.screen(course))
    return file.getvalue()


def test_the_first_frame_promises_nothing():
    course, clock = made()
    course.doing = "starting Ray (local)"
    clock.wait(3)
    text = drawn(course)
    assert "resnet20 scale=mini division=closed workers=2 backend=gloo hardware=local" in text
    assert "seed=7" in text
    assert "starting Ray (local)" in text
    assert "goal        top1_accuracy >= 95 %" in text
    assert "3 s since the command" in text
    assert not any(word in text for word in ("loss", "last epoch", "first touch", "samples/s"))


def test_a_frame_in_the_middle_shows_everything():
    course, clock = made("workers=4", "max_failures=2")
    course.connected(Connection(threads=1, oversubscribed=True))
    clock.wait(20)
    for update in (46, 54):
        clock.wait(1)
        course.sign(sign(update / 23, update, loss=0.2345678))
    course.event(validation(2, 93.61, update=46, elapsed=12))
    course.sign(sign(55 / 23, 55, loss=0.2345678))
    course.event(failure(1, rank_3="ActorDiedError: killed"))
    course.doing = "training"
    text = drawn(course, width=110)
    for part in (
        "workers=4 x 1 thread",
        "epoch 2.4 of 20",
        "top1_accuracy 93.61 %, goal >= 95 %",
        "22 s since the command, 12 s since the first touch of data",
        "at most about 1 min 46 s to the last epoch",
        "oversubscribed: 4 worker(s) of 1 thread(s)",
        "rank 3 failed: ActorDiedError: killed (restart 1 of at most 2)",
    ):
        assert part in text, text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_frame_never_is_wider_than_the_terminal(width):
    course, _ = made()
    course.event(validation(2, 93.61, update=46, elapsed=12))
    course.sign(sign(2.5, 55))
    assert max(map(len, drawn(course, width).splitlines())) <= width


def test_an_estimate_says_what_it_leaves_out():
    course, clock = made()
    course.sign(sign(0.5, 10))
    clock.wait(2)
    course.sign(sign(1.0, 20))
    assert frame.left(course) == ["about 1 min 16 s to the last epoch, validations not counted yet"]
    course.event(validation(1, 50, update=20, elapsed=6))
    assert frame.left(course) == ["at most about 1 min 54 s to the last epoch"]


def test_without_a_goal_the_last_epoch_is_no_upper_bound():
    course, _ = made("goal=none")
    course.event(validation(1, 50, update=20, elapsed=6))
    assert frame.left(course) == ["about 1 min 54 s to the last epoch"]
    assert frame.validated(course) == "top1_accuracy 50.00 %"


def test_a_reached_goal_is_said():
    course, _ = made()
    course.event(validation(1, 94.9996, update=20, elapsed=6))
    assert frame.validated(course) == "top1_accuracy 94.9996 %, goal >= 95 %"
    course.event(validation(2, 95.28, update=40, elapsed=12, goal_reached=True))
    assert frame.validated(course) == "top1_accuracy 95.28 %, goal >= 95 % reached"


def test_bars_fill_up_at_the_goal_only():
    course, _ = made()
    for epoch, value in enumerate((35, 65, 94.9, 95), start=1):
        course.event(validation(epoch, value, update=20 * epoch, elapsed=6 * epoch))
    assert frame.sparkline(course) == "▁▄▇█"


def test_bars_of_one_value_beyond_the_goal_are_full():
    course, _ = made("goal=30")
    course.event(validation(1, 35, update=20, elapsed=6))
    assert frame.sparkline(course) == "█"


def test_only_the_latest_validations_are_drawn():
    course, _ = made("goal=none")
    for epoch in range(1, 40):
        course.event(validation(epoch / 2, epoch, update=20 * epoch, elapsed=6 * epoch))
    assert len(frame.sparkline(course)) == frame.BARS_SHOWN
