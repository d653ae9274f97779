"""The short card of at most 12 lines, and how a card is printed."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_S
from records import nothing_measured, record
from scripted import experiment

from mlbench.record.record import STATUSES, RankStats
from mlbench.tasks.allreduce import bandwidth
from mlbench.terminal import result_card, show

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HARDWARE = "hardware=gcp_n1_t4"
DEVIATION = {"field": "task.rate", "given": 0.1, "reference": 0.02, "rule": "R1"} | dict(
    fixed=False, declared=False
)


def card(record, width=80, ascii_only=True):
    where = {"folder": Path("/r") / record.run_id, "tracking_uri": "sqlite:////r/mlflow.db"}
    return [line.plain for line in result_card.short(record, width=width, ascii_only=ascii_only, **where)]


@pytest.mark.parametrize("build", [record, nothing_measured])
@pytest.mark.parametrize("status", STATUSES)
def test_every_ending_is_told_in_twelve_lines_of_80_columns(build, status):
    if build is nothing_measured and status == "goal_reached":
        return
    run = build(
        status=status,
        error="rank 0: it broke: " + 30 * "a long reason ",
        **({"goal": None} if status == "completed" else {}),
        caveats=[20 * "a caveat "],
        warnings=[20 * "load "],
        deviations=[DEVIATION],
        oversubscribed=True,
    )
    lines = card(run)
    assert len(lines) <= 12, lines
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(status.replace("_", " ").upper())
    assert "None" not in "".join(lines)
    assert any(line.startswith("all numbers") and line.endswith("--full") for line in lines)


def test_the_verdict_comes_first_then_the_doubts_then_time_cost_and_phases():
    lines = card(record(HARDWARE, warnings=["load 7.5 on 2 CPUs"], cost=PRICED))
    order = [
        "GOAL REACHED: top1_accuracy 95.28 %",
        "! load 7.5 on 2 CPUs",
        *("run ", "time ", "cost ", "forward", "all numbers", "run again", "MLflow"),
    ]
    places = [next(i for i, line in enumerate(lines) if line.startswith(word)) for word in order]
    assert places == sorted(places)


PRICED = {
    "nodes": 2,
    "wall_usd": 4.0,
    "goal_usd": 2.0,
    "wall_usd_spot": None,
    "goal_usd_spot": None,
    "date": "2026-11-21",
    "source": "a page",
}


def test_phases_are_bars_whose_lengths_are_their_shares():
    text = "\n".join(card(record()))
    assert re.search(r"forward +##### +39 %", text) and re.search(r"backward +###### +45 %", text)
    assert re.search(r"[^_]wait +# +5 %", text) and re.search(r"transfer +# +8 %", text)
    assert re.search(r"^short phases +data_wait 1.\d %, optimizer 2.8 %$", text, re.MULTILINE)
    alone = {"forward": RankStats.of([1.0]), "backward": RankStats.of([3.0])}
    assert "transfer" not in "".join(card(record("workers=1", workers=1, phases=alone)))


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"oversubscribed": True}, "oversubscribed"),
        ({"caveats": ["CPUs were missing"]}, "CPUs were missing"),
        ({"warnings": ["load 9 on 2 CPUs"]}, "load 9 on 2 CPUs"),
        ({"deviations": [DEVIATION]}, "task.rate is 0.1, the reference is 0.02 (rule R1)"),
        ({"source": "mlbench-published"}, "imported: measured elsewhere"),
    ],
)
def test_every_doubt_stands_right_below_the_verdict(changes, doubt):
    lines = card(record(**changes))
    assert lines[1].startswith("! ") and doubt in lines[1]


def test_a_run_without_doubts_has_no_line_of_doubt():
    """That no mini run is official says nothing of this one."""
    assert not card(record("scale=official", eligible=True, official_reasons=[]))[1].startswith("!")
    mini = record()
    assert mini.official_reasons and not card(mini)[1].startswith("!")
    reasons = ["the data are not those of the reference"]
    assert card(record("scale=official", official_reasons=reasons))[1] == f"! not official: {reasons[0]}"


def test_what_weighs_most_is_said_first():
    began = "other processes used 1.8 of the 2 CPUs of vm when the run began"
    trained = "other processes used 1.4 of the 2 CPUs of vm while it trained"
    forged = "the log contradicts itself: epoch 2 ends before it begins"
    lines = card(record(caveats=[began, trained, forged], source="mlbench", recorded_in="/elsewhere"))
    assert lines[1].startswith(f"! {forged}"[:70])
    wide = " ".join(line.plain for line in result_card.doubts(record(caveats=[began, trained]), 200))
    assert wide.index(trained) < wide.index(began)


def test_no_price_is_said_and_never_zero():
    text = "\n".join(card(record()))
    assert "not priced (hardware=local" in text and "USD" not in text


def test_the_card_goes_to_stdout_and_full_has_everything(capsys, tmp_path):
    where = {"folder": tmp_path, "tracking_uri": "sqlite:////r/mlflow.db"}
    show.Terminal().card(record(), where="4f2a", **where)
    short, err = capsys.readouterr()
    assert err == "" and short.startswith("GOAL REACHED: ") and len(short.splitlines()) <= 12
    show.stored(record(), full=True, **where)
    full, _ = capsys.readouterr()
    assert len(full.splitlines()) > 20 and f"files:          {tmp_path}\n" in full
    assert " mlflow output_root=/r\n" in full


def test_in_a_pipe_no_column_of_a_task_s_own_table_is_cut(capsys, tmp_path):
    rows = [
        bandwidth.times([1e-4] * 3, wrong=0, backend="gloo", device="cpu", workers=2, dtype="float32",
                        collective="all_reduce", size=size, elements=size, bytes=4 * size)
        for size in (4, 400_000_000)
    ]  # fmt: skip
    show.stored(record("task=allreduce", table=rows), folder=tmp_path, tracking_uri="sqlite:////r/mlflow.db")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[-1:] == ["#wrong"] for line in lines)
    assert any("400,000,000" in line and line.split()[-1] == "0" for line in lines)


def test_a_result_of_the_past_says_so_and_how_to_measure_again(capsys):
    show.Terminal().reused(record(), experiment("output_root=/results"))
    out, err = capsys.readouterr()
    assert "at 2026-11-21T03:45:01.123+00:00 with seed=7" in err and "force=true" in err
    assert "GOAL REACHED" in out


PROGRAM = (
    "import sys; from pathlib import Path; from mlbench.terminal import show; "
    "from mlbench.record.record import Record; "
    "show.Terminal().card(Record.model_validate_json(sys.stdin.read()), folder=Path('/long/' + 90 * 'x'), "
    "where=None, tracking_uri='http://mlflow:5000')"
)


def test_a_real_terminal_gets_colours_and_unbroken_commands():
    """The card is printed by a process of its own on a pseudo-terminal of 80 columns."""
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=record().model_dump_json().encode(),
        stdout=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "PYTHONUTF8": "1"},
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    assert b"\x1b[1;32m" in text, "a goal that was reached is green"
    plain = CONTROL.sub("", text.decode()).replace("\r\n", "\n")
    assert "top1_accuracy 95.28 %" in plain and "━" in plain
    assert "results sync output_root=/long\n" in plain


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end of a pseudo-terminal is closed
        return b""
