from pathlib import Path

import pytest
from records import nothing_measured, record
from scripted import experiment

from mlbench.record import cost
from mlbench.record.record import STATUSES
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
    ("changes", "first"),
    [
        (
            {"status": "goal_reached"},
            "GOAL REACHED: top1_accuracy 95.28 % (goal >= 95 %) after 48.2 s, epoch 2 of 20",
        ),
        (
            {"status": "goal_not_reached", "time_to_accuracy": None, "best": 94.9996, "epochs": 20.0},
            "GOAL NOT REACHED: best top1_accuracy 94.9996 % (goal >= 95 %) after epoch 20 of 20",
        ),
        (
            {"status": "diverged", "time_to_accuracy": None},
            "DIVERGED: loss or validation stopped being a finite number in epoch 2 of 20, step 46",
        ),
        ({"status": "failed", "error": "rank 1: RuntimeError: no"}, "FAILED: rank 1: RuntimeError: no"),
        ({"status": "interrupted", "error": "stopped by the user"}, "INTERRUPTED: stopped by the user"),
    ],
    ids=lambda value: value["status"] if isinstance(value, dict) else "",
)
def test_the_first_thing_said_is_how_it_ended(changes, first):
    assert said(record(**changes)).startswith(first)


def test_a_run_without_a_goal_says_so():
    text = said(record("goal=none", status="completed", goal=None, time_to_accuracy=None))
    assert text.startswith("COMPLETED: epoch 2 of 20, best top1_accuracy 95.28 %; no goal was set")


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_short_card_names_the_data(name):
    run = record(f"task.dataset={name}")
    lines = result_card.short(run, folder=Path("runs"), width=79, tracking_uri="", ascii_only=True)
    assert any(line.plain.startswith(f"run               resnet20 mini on {name}, 2 w") for line in lines)
    assert len(lines) <= result_card.MOST_LINES


def test_a_task_that_measures_without_training_has_a_card():
    values = experiment("task=allreduce").plain()
    text = said(nothing_measured(status="completed", experiment=values, goal=None, table=[{"bytes": 4}] * 85))
    assert text.startswith("COMPLETED: 85 rows measured what ")


def test_of_a_series_the_full_card_has_the_last_row_and_of_a_few_rows_all():
    series = [{"kind": "distance", "epoch": epoch, "loss": 1 / (1 + epoch)} for epoch in range(11)]
    few = [{"kind": "optimum", "loss": 0.25}, {"kind": "optimum", "loss": 0.5}]
    rows = full_card.rows(record(table=[*series, *few]))
    assert [row for row in rows if row[0] in ("distance", "optimum")] == [
        ("distance", "epoch 10, loss 0.0909"),
        ("optimum", "loss 0.25"),
        ("optimum", "loss 0.5"),
    ]


def test_what_a_task_noted_beside_its_goal_is_on_the_card():
    rows = [{"kind": "bleu", "signature": "nrefs:1|case:lc"}, {"kind": "batches", "share_of_padding": 0.0625}]
    text = said(record(table=rows))
    assert "bleu signature nrefs:1|case:lc batches share of padding 0.0625" in text


@pytest.mark.parametrize("status", [s for s in STATUSES if s not in ("goal_reached", "completed")])
def test_a_run_that_did_not_end_well_says_what_to_do_second(status):
    run = record(status=status, error="it broke", time_to_accuracy=None)
    assert full_card.rows(run)[0][0] == "next"


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
    assert text.startswith("FAILED: rank 0: lost xxx")
    assert len(text) < 500
    assert text.endswith(" ...")


def test_costs_come_with_both_prices_their_date_and_source():
    price = experiment(HARDWARE).hardware.price
    assert price is not None
    text = said(record(HARDWARE, cost=priced() | {"wall_usd_spot": None, "goal_usd_spot": None}))
    assert (
        f"{4 * price.usd_per_hour:.2f} USD on demand for the whole command" in text and "for 2 nodes" in text
    )
    assert f"{2 * price.usd_per_hour:.2f} USD from the first data to the goal" in text
    assert "spot" not in text
    assert f"prices of {price.date}: {price.source}" in text
    spot = said(record(HARDWARE, cost=priced() | {"wall_usd_spot": 1.5, "goal_usd_spot": 0.75}))
    assert "1.50 USD on spot nodes for the whole command, 0.750 USD on spot nodes to the goal" in spot


def test_a_run_on_a_cluster_has_two_bills():
    hardware = experiment(HARDWARE).hardware
    bill = cost.cost(
        hardware, 2, wall_s=3000.0, time_to_accuracy_s=1800.0, clustered=True, provisioning_s=600.0
    )
    assert bill is not None and bill.whole is not None
    text = said(record(HARDWARE, cost=vars(bill)))
    assert f"{bill.wall_usd:.3f} USD on demand for the whole command" in text
    assert f"whole cluster {bill.whole.usd:.2f} USD on demand, " in text
    assert "billed for 1 h 00 min, 10 min 00 s of provisioning among them" in text
    assert "head 0.190 USD" in text and "control plane 0.100 USD" in text
    lines = result_card.short(
        record(HARDWARE, cost=vars(bill)), folder=Path("runs/x"), width=200, tracking_uri="", ascii_only=True
    )
    assert any(f"{bill.whole.usd:.2f} USD for the whole cluster" in line.plain for line in lines)


def test_a_run_that_missed_its_goal_has_no_cost_to_the_goal():
    text = said(record(HARDWARE, status="goal_not_reached", cost=priced(reached_s=None)))
    assert "to the goal" not in text[text.index("cost") :]


def test_a_script_that_missed_its_goal_has_no_recipe_that_ends():
    run = record("task=script", "task.path=train.py", status="goal_not_reached")
    assert result_card.advice(run) == result_card.advice(run.model_copy(update={"status": "failed"}))


def test_no_price_is_a_sentence_and_never_zero():
    text = said(record())
    assert "not priced: hardware=local has no price; choose a hardware profile" in text
    assert "USD" not in text


def test_a_card_lists_the_record_s_reasons_why_it_is_not_official():
    assert "not official scale=mini" in said(record())
    reasons = ["division=open", "caveat: CPUs were missing"]
    text = said(record("scale=official", official_reasons=reasons, caveats=["CPUs were missing"]))
    assert "not official division=open not official caveat: CPUs were missing" in text
    assert "eligible yes: one of the runs" in said(record("scale=official", eligible=True))


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged"])
def test_a_run_without_a_result_is_not_called_unofficial(status):
    assert "official" not in said(nothing_measured(status=status, error="x"))


def test_deviations_caveats_noise_and_failures_are_all_listed():
    deviation = {"field": "task.lr", "given": 0.1, "reference": 0.02, "rule": "R1", "fixed": False}
    deviation |= {"declared": False}
    text = said(
        record(
            deviations=[deviation],
            caveats=["4 workers had fewer CPUs"],
            warnings=["the CPU frequency may change"],
            restarts=[{"failures": {1: "Traceback\nActorDiedError: killed"}}, {"failures": {0: "gone"}}],
        )
    )
    assert "deviation task.lr is 0.1, the reference is 0.02 (rule R1)" in text
    assert "caveat 4 workers had fewer CPUs" in text
    assert "warning the CPU frequency may change" in text
    assert "worker failures 2; rank 1 failed: ActorDiedError: killed; rank 0 failed: gone; the rest" in text


def test_one_failure_that_ended_the_run_is_said_once():
    run = nothing_measured(status="failed", error="rank 1: gone", restarts=[{"failures": {1: "gone"}}])
    assert said(run).count("gone") == 1


def test_the_best_value_within_the_budget_is_shown_where_it_is_known():
    assert "best in budget 95.28 % within the time budget" in said(record())
    assert "best in budget" not in said(record(accuracy_after_time=None))


def test_the_seed_and_what_ran_are_named():
    text = said(record("workers=2", "task=logreg", "goal=80", validations=[], status="failed", error="x"))
    assert (
        "what task=logreg, workers=2, scale=mini, backend=gloo, hardware=local, sync=ddp, network=host, "
        "division=closed, seed=7, recipe=mlbench2020, dataset=epsilon_like, cluster=local, launcher=ray, "
        "threads_per_worker=1" in text
    )
