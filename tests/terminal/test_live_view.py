import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from records import record
from rich.console import Console
from scripted import BEGUN, Clock, Connection, experiment, failure, sign, validation

from mlbench.terminal import live_view as display

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def no_ticking(monkeypatch):
    monkeypatch.setattr(display, "REDRAW_S", 3600)  # s; the tests tick themselves


def begun(clock, *words, terminal, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, force_terminal=terminal, width=80, _environ={"TERM": "xterm"})
    return display.Progress(experiment(*words), 7, begun=BEGUN, console=console, now=clock), file


def written(file):
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)


def a_run(progress, clock):
    """Two epochs with a worker that dies in the second, and a goal reached in it."""
    progress.say("starting Ray (local)")
    clock.wait(6)
    progress.connected(Connection(threads=2))
    clock.wait(4)
    for second in range(1, 13):
        clock.wait(1)
        progress.sign(sign(second / 12, 2 * second))
        progress.tick()
    progress.event(validation(1, 81.2, update=24, elapsed=12.5))
    progress.event(failure(1, rank_1="Traceback\nActorDiedError: killed"))
    clock.wait(15)
    progress.tick()
    progress.sign(sign(1.5, 36))
    progress.event(validation(2, 95.28, update=48, elapsed=40, goal_reached=True))


def test_a_pipe_gets_one_line_a_state_and_a_validation_and_few_signs_of_life():
    clock = Clock()
    progress, file = begun(clock, "max_failures=1", terminal=False)
    with progress:
        a_run(progress, clock)
    rate = "2 updates/s, 128 samples/s on 2 workers"
    assert written(file).splitlines() == [
        "[    0 s] resnet20 scale=mini division=closed workers=2 backend=gloo hardware=local "
        "cluster=local seed=7",
        "[    0 s] starting Ray (local)",
        "[    6 s] waiting for workers",
        "[   11 s] training",
        f"[   21 s] training: epoch 0.9 of 20, loss 1.5, {rate}, "
        "about 3 min 49 s to the last epoch, validations not counted yet",
        f"[   22 s] epoch 1: top1_accuracy 81.20 %, goal >= 95 %, loss 0.75, {rate}",
        "[   22 s] warning: rank 1 failed: ActorDiedError: killed (restart 1 of at most 1)",
        "[   22 s] restarting from the last checkpoint",
        "[   37 s] restarting from the last checkpoint",
        "[   37 s] training",
        "[   37 s] epoch 2: top1_accuracy 95.28 %, goal >= 95 % reached, loss 0.75",
        "[   37 s] done; measuring the nodes",
    ]


def test_plain_lines_are_ascii_and_keep_what_others_wrote_readable():
    clock = Clock()
    progress, file = begun(clock, terminal=False, encoding="ascii")
    with progress:
        progress.event(failure(1, rank_0="\x1b[31mRuntimeError\x1b[0m: Größe [/red] :boom:"))
    assert "rank 0 failed: RuntimeError: Gr\\xf6\\xdfe [/red] :boom:" in written(file)
    assert "\x1b" not in written(file)


def test_a_terminal_gets_a_screen_that_is_gone_at_the_end():
    clock = Clock()
    progress, file = begun(clock, "max_failures=1", terminal=True)
    with progress:
        a_run(progress, clock)
        progress.tick()
        shown = written(file)
    last_frame = CONTROL.sub("", shown).rsplit("resnet20 scale=mini", 1)[1]
    assert "done; measuring the nodes" in last_frame
    assert "top1_accuracy 95.28 %, goal >= 95 % reached" in last_frame
    closing = written(file)[len(shown) :]
    assert closing.count("\x1b[2K") >= len(last_frame.strip().splitlines()), "every line is erased"


def test_signs_and_events_draw_nothing_so_the_screen_costs_a_frame_a_tick():
    clock = Clock()
    progress, file = begun(clock, terminal=True)
    with progress:
        before = len(written(file))
        for second in range(1000):
            progress.sign(sign(second / 100, second))
        assert len(written(file)) == before
        progress.tick()
        assert len(written(file)) > before


def test_the_screen_is_drawn_at_most_four_times_a_second(monkeypatch):
    monkeypatch.undo()
    assert display.REDRAW_S >= 0.25


@pytest.mark.parametrize(
    ("words", "encoding"), [(("verbose=true",), "utf-8"), ((), "ascii")], ids=["verbose", "ascii terminal"]
)
def test_lines_replace_the_screen_where_it_would_be_torn_apart(words, encoding):
    progress, file = begun(Clock(), *words, terminal=True, encoding=encoding)
    with progress:
        progress.tick()
    assert written(file).startswith("[    0 s] resnet20")


def test_a_terminal_that_went_away_does_not_end_the_run():
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w")
    progress = display.Progress(experiment(), 7, console=Console(file=file))
    with progress:
        progress.say("starting")
        progress.event(validation(1, 81.2, update=24, elapsed=12.5))
    with pytest.raises(BrokenPipeError):
        file.close()


def test_time_goes_on_while_nothing_is_heard(monkeypatch):
    monkeypatch.setattr(display, "REDRAW_S", 0.01)
    clock, ticked = Clock(), threading.Event()
    progress, file = begun(clock, terminal=False)
    monkeypatch.setattr(progress._view, "tick", ticked.set)
    with progress:
        progress.say("waiting for workers")
        assert ticked.wait(30)


def test_progress_goes_to_stderr_and_the_card_to_stdout(capsys, tmp_path):
    with display.Progress(experiment(), 7) as progress:
        progress.say("starting Ray (local)")
    out, err = capsys.readouterr()
    assert out == ""
    assert "starting Ray (local)" in err
    display.show_card(record(), folder=tmp_path, where="4f2a", tracking_uri="sqlite:////r/mlflow.db")
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("GOAL REACHED: ")
    assert f"files:          {tmp_path}\n" in out
    assert "MLflow UI:      mlflow ui --backend-store-uri sqlite:////r/mlflow.db\n" in out


def test_a_result_of_the_past_says_so_and_how_to_measure_again(capsys):
    display.reused(record(), experiment("output_root=/results"))
    out, err = capsys.readouterr()
    assert "already measured at 2026-11-21T03:45:01.123+00:00" in err
    assert "force=true" in err
    assert "GOAL REACHED" in out
    assert "files:          /results/2026-11-21T034501-123-resnet20-w2-7\n" in out
    assert "mlflow ui --backend-store-uri sqlite:////results/mlflow.db" in out


def test_a_real_terminal_gets_the_panel_with_unbroken_lines_below():
    """The card is printed by a process of its own on a pseudo-terminal of 80 columns."""
    program = (
        "import json, sys; from pathlib import Path; from mlbench.terminal import live_view; "
        "from mlbench.experiment.record import Record; "
        "live_view.show_card(Record.model_validate_json(sys.stdin.read()), folder=Path('/long/' + 90 * 'x'), "
        "where=None, tracking_uri='http://mlflow:5000')"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "PYTHONUTF8": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=record().model_dump_json().encode(),
        stdout=theirs,
        env=environment,
        timeout=60,
    )
    assert ended.returncode == 0
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    plain = CONTROL.sub("", text.decode()).replace("\r\n", "\n")
    assert "─" * 70 in plain
    assert "GOAL REACHED: top1_accuracy 95.28 %" in plain
    assert "/long/" + 90 * "x" + "\n" in plain
    assert "python -m mlbench.results sync output_root=/long\n" in plain


@pytest.mark.parametrize(
    "call",
    [
        "show_card(record, folder=Path('/r'), where='4f2a', tracking_uri='http://mlflow:5000')",
    ],
)
def test_a_reader_that_has_seen_enough_gets_no_traceback(call):
    program = (
        "import sys; from pathlib import Path; from mlbench.terminal import live_view; "
        "from mlbench.experiment.record import Record; "
        f"record = Record.model_validate_json(sys.stdin.read()); live_view.{call}"
    )
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=record().model_dump_json().encode(),
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end of a pseudo-terminal is closed
        return b""
