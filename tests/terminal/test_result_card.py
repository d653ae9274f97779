import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from records import nothing_measured, record
from scripted import experiment
from syrupy.assertion import SnapshotAssertion

from mlbench.record import cost
from mlbench.record.record import STATUSES, RankStats
from mlbench.terminal import full_card, result_card

HARDWARE = "hardware=gcp_n1_t4"


def said(record):
    """Return the full card with its broken lines joined."""
    return " ".join(" ".join(line.plain for line in full_card.full(record)).split())


def priced(*, wall_s=7200.0, reached_s: float | None = 3600.0):
    bill = cost.cost(experiment(HARDWARE).hardware, 2, wall_s=wall_s, time_to_accuracy_s=reached_s)
    assert bill is not None
    return vars(bill)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "goal_reached"},
        {"status": "goal_not_reached", "time_to_accuracy": None, "best": 94.9996, "epochs": 20.0},
        {"status": "diverged", "time_to_accuracy": None},
        {"status": "failed", "error": "rank 1: RuntimeError: no"},
        {"status": "interrupted", "error": "stopped by the user"},
    ],
    ids=lambda value: value["status"],
)
def test_the_first_thing_said_is_how_it_ended(changes, snapshot: SnapshotAssertion):
    verdict = result_card.verdict(record(**changes))
    assert said(record(**changes)).startswith(verdict)
    assert verdict == snapshot


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_short_card_names_the_data(name):
    run = record(f"task.dataset={name}")
    lines = result_card.short(run, folder=Path("runs"), width=79, tracking_uri="", ascii_only=True)
    assert any(f"resnet20 mini on {name}, 2 w" in line.plain for line in lines)
    assert len(lines) <= result_card.MOST_LINES


def test_the_longest_phases_have_a_bar_on_a_card_that_has_no_room_for_all(monkeypatch):
    monkeypatch.setattr(result_card, "MOST_LINES", 9)  # as with a late rank and a warm-up
    shares = {"data_wait": 0.01, "forward": 0.03, "backward": 0.04, "wait": 0.3, "optimizer": 0.6}
    phases = {name: RankStats.of([share, share]) for name, share in shares.items()}
    run = record(phases=phases, caveats=["a sentence " * 30])
    run = run.model_copy(update={"status": "diverged", "cost": None})
    lines = result_card.short(run, folder=Path("r" * 60), width=79, tracking_uri="x", ascii_only=True)
    text = "\n".join(line.plain for line in lines)
    assert len(lines) <= result_card.MOST_LINES and "optimizer  " in text and "wait  " in text


@pytest.mark.parametrize("share", [0.02, 0.4])
def test_a_long_loss_has_a_bar_of_its_own_and_a_short_one_is_in_forward(share):
    shares = {"forward": 0.5 - share, "loss": share, "optimizer": 0.5}
    text = "\n".join(
        short(record(phases={name: RankStats.of([each, each]) for name, each in shares.items()}))
    )
    assert (re.search(r"loss +#", text) is not None) == (share == 0.4)
    assert re.search(rf"forward .* {50 if share < 0.1 else 10} %", text)


def test_what_to_try_stays_on_the_card_of_a_late_rank_before_its_bars(monkeypatch):
    monkeypatch.setattr(result_card, "MOST_LINES", 6)
    monkeypatch.setattr(result_card, "reason", lambda _: ("late rank", "rank 1 is late"))
    monkeypatch.setattr(result_card, "advice", lambda _: "Try: this.")
    shares = {"data_wait": 0.3, "forward": 0.2, "backward": 0.2, "wait": 0.3}
    text = "\n".join(
        short(record(phases={name: RankStats.of([each, each]) for name, each in shares.items()}))
    )
    assert "Try: this." in text


def test_a_task_that_measures_without_training_has_a_card():
    values = experiment("task=allreduce").plain()
    text = said(nothing_measured(status="completed", experiment=values, goal=None, table=[{"bytes": 4}] * 85))
    assert text.startswith("COMPLETED: 85 rows ")


def test_of_a_series_the_full_card_has_the_last_row_and_of_a_few_rows_all():
    series = [{"kind": "distance", "epoch": epoch, "loss": 1 / (1 + epoch)} for epoch in range(11)]
    few = [{"kind": "optimum", "loss": 0.25}, {"kind": "optimum", "loss": 0.5}]
    rows = full_card.rows(record(table=[*series, *few]))
    assert [row for row in rows if row[0] in ("distance", "optimum")] == [
        ("distance", "epoch 10, loss 0.0909"),
        ("optimum", "loss 0.25"),
        ("optimum", "loss 0.5"),
    ]


@pytest.mark.parametrize(
    ("build", "status"),
    [(record, status) for status in STATUSES]
    + [(nothing_measured, status) for status in STATUSES if status != "goal_reached"],
)
def test_every_ending_has_a_card_whatever_was_measured(build, status):
    run = build(status=status, error="rank 0: it broke", **({"goal": None} if status == "completed" else {}))
    assert said(run).startswith(status.replace("_", " ").upper())
    assert "None" not in said(run)


@pytest.mark.parametrize("width", [60, 79, 100])
def test_the_full_card_is_ascii_within_its_width(width):
    run = record(HARDWARE, cost=priced(), caveats=["a sentence " * 20])
    lines = [line.plain for line in full_card.full(run, width)]
    assert "".join(lines).isascii() and max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == said(run)


@pytest.mark.parametrize("width", range(20, 60))
def test_a_number_stays_beside_its_unit(width):
    text = "batches 40.0 s, validation 6.2 s, forward 31.2 % (29.8 to 33.0), 1 h 02 min, 0.0217 USD"
    for line in result_card.wrapped(text, width):
        first = line.split()[0].rstrip(",")
        assert first not in ("s", "%", "h", "min", "USD"), line


def test_an_error_of_many_lines_becomes_one_sentence_without_codes_for_terminals():
    error = "\x1b[31mrank 0\x1b[0m:\n  lost\x07 " + "x" * 999
    text = result_card.verdict(nothing_measured(status="failed", error=error))
    assert text.startswith("FAILED: rank 0: lost ")
    assert len(text) < 500
    assert text.endswith(" ...")


def test_costs_come_with_both_prices_their_date_and_source():
    price = experiment(HARDWARE).hardware.price
    assert price is not None
    missed = said(record(HARDWARE, status="goal_not_reached", cost=priced(reached_s=None)))
    assert "to the goal" not in missed[missed.index("cost") :]
    text = said(record(HARDWARE, cost=priced() | {"wall_usd_spot": None, "goal_usd_spot": None}))
    assert f"{4 * price.usd_per_hour:.2f} USD on demand " in text and "for 2 nodes" in text
    assert f"{2 * price.usd_per_hour:.2f} USD from " in text
    assert "spot" not in text
    assert f"prices of {price.date}: {price.source}" in text
    spot = said(record(HARDWARE, cost=priced() | {"wall_usd_spot": 1.5, "goal_usd_spot": 0.75}))
    assert "1.50 USD on spot" in spot and "0.750 USD on spot" in spot


def test_a_run_on_a_cluster_has_two_bills():
    hardware = experiment(HARDWARE).hardware
    bill = cost.cost(
        hardware, 2, wall_s=3000.0, time_to_accuracy_s=1800.0, clustered=True, provisioning_s=600.0
    )
    assert bill is not None and bill.whole is not None
    text = said(record(HARDWARE, cost=vars(bill)))
    assert f"{bill.wall_usd:.3f} USD on demand " in text
    assert f"whole cluster {bill.whole.usd:.2f} USD on demand, " in text
    assert "1 h 00 min, 10 min 00 s of" in text
    assert "head 0.190 USD" in text and "control plane 0.100 USD" in text
    lines = result_card.short(
        record(HARDWARE, cost=vars(bill)), folder=Path("runs/x"), width=200, tracking_uri="", ascii_only=True
    )
    assert any(f"{bill.whole.usd:.2f} USD for" in line.plain for line in lines)


def test_a_card_lists_the_record_s_reasons_why_it_is_not_official():
    assert "not official scale=mini" in said(record())
    reasons = ["division=open", "caveat: CPUs were missing"]
    text = said(record("scale=official", official_reasons=reasons, caveats=["CPUs were missing"]))
    assert "not official division=open" in text and "caveat CPUs were" in text and "caveat: " not in text
    assert "eligible yes: one" in said(record("scale=official", eligible=True))


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged"])
def test_a_run_without_a_result_is_not_called_unofficial(status):
    assert "official" not in said(nothing_measured(status=status, error="x"))


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, **changes: Any) -> Any:
    """Return the record of a script that has trained for 40 s and was 10 s outside its steps."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("")
    values = {"status": "completed", "time_to_accuracy": None, "best": None, "goal": None, "epochs": 0.0}
    values |= {"samples": 2000, "samples_per_s": 50.0, "outside": {"validation": RankStats.of([8.25])}}
    return record("task=script", "task.path=train.py", *overrides, **values | changes)


def short(run: Any) -> list[str]:
    lines = result_card.short(run, folder=Path("runs/x"), width=79, tracking_uri="none", ascii_only=True)
    return [line.plain for line in lines]


@pytest.mark.parametrize(("seconds", "apart"), [(1.9, False), (2.3, True)])
def test_what_a_script_does_between_its_steps_is_other_unless_it_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, apart: bool
) -> None:
    """Of 40 s in steps 5 % are 2.0 s. Shorter phases share a line, and all sum to 100 %."""
    run = script(tmp_path, monkeypatch)
    phases = run.phases | {"metrics": RankStats.of([seconds]), "forward": RankStats.of([15.1 - seconds])}
    text = " ".join(short(run.model_copy(update={"phases": phases})))
    bars = {name: float(share) for name, share in re.findall(r"(\w+) +#* *([\d.]+) %", text)}
    assert ("other" in bars.keys() - dict(re.findall(r"(\w+) ([\d.]+) %", text)).keys()) is apart
    assert bars["optimizer"] == 2.5 and 98 <= sum(bars.values()) <= 102
    suite = record(phases=phases)
    assert not any("other" in line for line in short(suite))


@pytest.mark.parametrize(("losses", "longer"), [((0.9, 0.7, 0.5), True), ((0.9, 0.5, 0.6), False)])
def test_training_for_longer_is_advised_only_while_the_metric_becomes_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: Sequence[float], *, longer: bool
) -> None:
    one = record().validations[0]
    values = {"validations": [one.model_copy(update={"metrics": {"loss": loss}}) for loss in losses]}
    values |= {"status": "goal_not_reached", "best": min(losses), "phases": {}}
    run = script(tmp_path, monkeypatch, "task.metric=loss", "goal=0.1").model_copy(update=values)
    advice = result_card.advice(run)
    assert advice is not None and advice.startswith("Train for longer") is longer and "goal=NUMBER" in advice
    lost = [*run.validations, one.model_copy(update={"metrics": {"loss": None}})]
    advice = result_card.advice(run.model_copy(update={"validations": lost}))
    assert advice is not None and "diverged" in advice
    unseen = [one.model_copy(update={"metrics": {}})]
    advice = result_card.advice(run.model_copy(update={"validations": unseen, "best": None}))
    assert advice is not None and "task.metric" in advice


def test_a_script_s_rate_and_its_time_are_of_the_same_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = short(script(tmp_path, monkeypatch))
    (time,) = [line for line in lines if line.startswith("time")]
    assert "40.0 s trained, 50 images/s" in time  # 2000 of them, and 48.25 s until the last validation
    (outside,) = [line for line in lines if line.startswith("outside steps")]
    assert "8.2 s of 48.2 s (17 %)" in outside and len(outside) <= 79
    lines = short(script(tmp_path, monkeypatch, outside={"validation": RankStats.of([0.4])}))
    assert not any(line.startswith("outside steps") for line in lines)


@pytest.mark.parametrize(
    ("files", "shown"),
    [((), None), (("output.log",), "output.log"), (("rank_0.log", "rank_1.log"), "rank_*.log")],
)
def test_the_card_of_a_failed_script_has_the_path_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Sequence[str], shown: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    run = script(tmp_path, monkeypatch).model_copy(update={"status": "failed", "error": "ValueError: no"})
    lines = result_card.short(run, folder=tmp_path, width=79, tracking_uri="", ascii_only=True)
    paths = [line.plain.split()[1] for line in lines if line.plain.startswith("output ")]
    assert paths == ([f"{tmp_path}/{shown}"] if shown else [])
