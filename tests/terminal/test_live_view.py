import io
import os
import re
import threading

import pytest
from commands import PATIENCE_S
from records import record
from rich.console import Console
from scripted import BEGUN, Clock, experiment, failure, heartbeat, validation
from syrupy.assertion import SnapshotAssertion

from mlbench.terminal import dataset_table, live_view
from mlbench.terminal.live_view import RunView
from mlbench.terminal.sweep_view import PointProgress, SweepView

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def no_ticking(monkeypatch):
    monkeypatch.setattr(live_view, "REDRAW_S", 3600)  # s; the tests draw themselves


def console(*, terminal, encoding="utf-8", width=80):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(
        file=file, force_terminal=terminal, width=width, height=24, _environ={"TERM": "xterm"}
    ), file


def started(clock, *overrides, **how):
    where, file = console(**how)
    return RunView(experiment(*overrides), 7, command_started=BEGUN, console=where, now=clock), file


def written(file):
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)


def a_run(view, clock):
    """Two epochs with a worker that dies in the second, and a goal reached in it."""
    view.say("starting Ray (local)")
    clock.wait(6)
    view.connected(2, False)
    clock.wait(4)
    for second in range(1, 13):
        clock.wait(1)
        view.heartbeat(heartbeat(second / 12, 2 * second))
        view.redraw()
    view.event(validation(1, 81.2, update=24, elapsed=12.5))
    view.event(failure(1, rank_1="Traceback\nActorDiedError: killed"))
    clock.wait(15)
    view.redraw()
    view.heartbeat(heartbeat(1.5, 36))
    view.event(validation(2, 95.28, update=48, elapsed=40, goal_reached=True))


def test_a_pipe_gets_one_line_per_state_and_validation_and_few_signs_of_life(snapshot: SnapshotAssertion):
    clock = Clock()
    view, file = started(clock, "max_failures=1", terminal=False)
    with view:
        a_run(view, clock)
    assert written(file) == snapshot


def test_plain_lines_are_ascii_and_keep_what_others_wrote_readable():
    view, file = started(Clock(), terminal=False, encoding="ascii")
    with view:
        view.event(failure(1, rank_0="\x1b[31mRuntimeError\x1b[0m: Größe [/red] :boom:"))
    assert "Gr\\xf6\\xdfe [/red] :boom:" in written(file)
    assert "\x1b" not in written(file)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_frame_shows_everything_within_the_terminal(width):
    clock = Clock()
    view, file = started(clock, "workers=4", "max_failures=2", terminal=True, width=width)
    view.connected(1, True)
    clock.wait(20)
    for step in (46, 54):
        clock.wait(1)
        view.heartbeat(heartbeat(step / 23, step, loss=0.2345678))
    view.event(validation(2, 93.61, update=46, elapsed=12))
    view.heartbeat(heartbeat(55 / 23, 55, loss=0.2345678))
    view.console.print(view.screen())
    lines = CONTROL.sub("", written(file)).splitlines()
    assert max(map(len, lines)) <= width and (width < 80 or len(lines) <= 8)
    text = " ".join(" ".join(lines).split())
    for part in ("4 workers x 1 thread", "22 s since the command",
                 "at most about 1 min 46 s to the last epoch",
                 "! oversubscribed: 4 workers x 1 thread on fewer CPUs", "steps/s"):  # fmt: skip
        assert width == 40 or part in text, text
    if width >= 80:
        for part in ("training", "epoch 2.4 of 20", "top1_accuracy", "93.61 %, goal >= 95 %", "━"):
            assert part in text, text


def test_a_terminal_gets_a_screen_that_is_gone_at_the_end():
    clock = Clock()
    view, file = started(clock, "max_failures=1", terminal=True)
    with view:
        a_run(view, clock)
        view.redraw()
        shown = written(file)
    last_frame = CONTROL.sub("", shown).rsplit("resnet20 mini", 1)[1]
    assert "ending" in last_frame and "calibrating" not in shown
    assert "95.28 %, goal >= 95 % reached" in last_frame
    closing = written(file)[len(shown) :]
    assert closing.count("\x1b[2K") >= len(last_frame.strip().splitlines()), "every line is erased"


def test_heartbeats_and_events_draw_nothing_so_the_screen_costs_a_frame_per_redraw():
    view, file = started(Clock(), terminal=True)
    with view:
        before = len(written(file))
        for second in range(1000):
            view.heartbeat(heartbeat(second / 100, second))
        assert len(written(file)) == before
        view.redraw()
        assert len(written(file)) > before


@pytest.mark.parametrize(
    ("overrides", "encoding"),
    [(("verbose=true",), "utf-8"), ((), "ascii")],
    ids=["verbose", "ascii terminal"],
)
def test_lines_replace_the_screen_where_it_would_be_torn_apart(overrides, encoding):
    view, file = started(Clock(), *overrides, terminal=True, encoding=encoding)
    with view:
        view.say("starting")
    assert written(file).startswith("[    0 s] resnet20")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "message",
    [{}, {"rank": 0}, {"loss": "x", "rank": 0, "step": None, "epoch": 1}, {"doing": 3}, {"doing": object()}],
    ids=["nothing", "rank", "loss", "number", "object"],
)
def test_what_breaks_the_display_never_reaches_the_run(terminal, message):
    view, file = started(Clock(), terminal=terminal)
    with view:
        view.heartbeat(message)
        view.event({"key": "validation", "value": None})
        view.connected(None, True)
        view.redraw()
        view.heartbeat(heartbeat(1, 2))
    assert CONTROL.sub("", written(file)).count("display failed") == 1


def test_a_terminal_that_went_away_does_not_end_the_run():
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w")
    with RunView(experiment(), 7, console=Console(file=file)) as view:
        view.say("starting")
        view.event(validation(1, 81.2, update=24, elapsed=12.5))
    with pytest.raises(BrokenPipeError):
        file.close()


def test_time_goes_on_while_nothing_is_heard(monkeypatch):
    monkeypatch.setattr(live_view, "REDRAW_S", 0.01)
    clock, drawn = Clock(), threading.Event()
    view, _ = started(clock, terminal=False)
    monkeypatch.setattr(view, "quiet", drawn.set)
    with view:
        view.say("waiting for workers")
        assert drawn.wait(PATIENCE_S)


def test_a_log_gets_lines_also_where_colours_are_forced(monkeypatch, capsys):
    """CI jobs set FORCE_COLOR, which rich takes for a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with RunView(experiment(), 7) as view:
        view.say("starting Ray (local)")
        view.redraw()
    with dataset_table.progress() as step:
        step("reading", 5, 10, "rows")
    lines = capsys.readouterr().err.splitlines()
    said = [line.rpartition("] ")[2] for line in lines[1:]]
    assert said == ["starting Ray (local)", "reading: 5 of 10 rows"]


def points():
    missed = record(time_to_accuracy=None, status="goal_not_reached")
    return [
        PointProgress("workers=1", 3, [record(time_to_accuracy=20.0), record(time_to_accuracy=30.0), missed]),
        PointProgress("workers=2", 3, [missed, missed]),
        *(PointProgress(f"workers={k}", 3) for k in range(3, 30)),
    ]


def test_a_sweep_shows_its_points_with_their_medians_and_what_runs():
    clock = Clock()
    where, file = console(terminal=True)
    view = SweepView(points(), console=where, now=clock)
    with view:
        view.started("workers=2 seed=5")
        clock.wait(12)
        view.spent, view.left = 1.5, 125.0
        view.advanced(3.5, 20)
        view.redraw()
        view.ended("workers=2 seed=5", record(), None)
    lines = CONTROL.sub("", written(file)).replace("\r", "\n").splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("workers=")}
    assert "3/3" in rows["workers=1"] and "30.0 s" in rows["workers=1"]
    assert "20.0 s to missed" in rows["workers=1"] and rows["workers=1"].split()[-1] == "1.00"
    assert any(line.startswith("workers=2 seed=5") and "epoch 3.5 of 20, 12 s" in line for line in lines)
    assert any("5/87 done, 12 s" in line and "2 min 05 s left, 1.50 USD" in line for line in lines)
    assert any("more points" in line for line in lines), "a terminal of 24 lines has no room for 29"
    assert view.done == 6 and len(view.points[1].records) == 3


def test_a_pipe_sees_that_a_long_run_of_a_sweep_is_alive():
    clock = Clock()
    where, file = console(terminal=False)
    view = SweepView(points(), console=where, now=clock)
    with view:
        view.redraw()
        view.started("workers=2 seed=5")
        for seconds in (29, 1, 29):
            clock.wait(seconds)
            view.redraw()
        view.advanced(3.5, 20)
        clock.wait(1)
        view.redraw()
        view.ended("workers=2 seed=5", record(), None)
        clock.wait(60)
        view.redraw()
    said = [line.partition("] ")[2].strip() for line in written(file).splitlines()]
    assert said[:3] == [
        "6/87 workers=2 seed=5",
        "running, 30 s; 5/87 done, 30 s elapsed, not priced",
        "epoch 3.5 of 20, 1 min 00 s; 5/87 done, 1 min 00 s elapsed, not priced",
    ]
    assert len(said) == 5, "the run's end and what is left"


def test_what_is_left_of_a_sweep_becomes_less_while_a_run_goes_on():
    clock = Clock()
    view = SweepView(points(), console=console(terminal=True)[0], now=clock)
    view.run_s, view.left = 60.0, 90.0
    view.started("workers=2 seed=5")
    for waited, left in ((0, "2 min 30 s"), (20, "2 min 10 s"), (3600, "1 min 30 s")):
        clock.wait(waited)
        assert f"about {left} left" in view.standing()


def test_a_sweep_shows_no_speedup_where_the_report_takes_none():
    first = PointProgress("workers=1", 1, [record(time_to_accuracy=20.0)])
    second = PointProgress("workers=2", 1, [record(time_to_accuracy=10.0)])
    crowd = PointProgress("workers=4", 1, [record(time_to_accuracy=10.0, oversubscribed=True)])
    doubtful = PointProgress("workers=8", 1, [record(time_to_accuracy=10.0, caveats=["another node"])])
    noise = {"caveats": ["other processes"], "disturbances": ["other processes"]}
    noisy = PointProgress("workers=3", 1, [record(time_to_accuracy=10.0, **noise)])
    all_points = [first, second, noisy, crowd, doubtful]
    assert [point.speedup(all_points) for point in all_points] == ["1.00", "2.00", "2.00", "", ""]
