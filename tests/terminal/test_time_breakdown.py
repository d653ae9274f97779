from records import nothing_measured, record

from mlbench.record.record import RankStats
from mlbench.terminal import time_breakdown


def said(**changes):
    return {label: text for label, text in time_breakdown.lines(record(**changes)) if text}


def test_the_parts_of_the_clock_add_up_to_the_whole():
    text = said()["time breakdown"]
    assert text == (
        "batches 40.0 s, validation 6.2 s, report 750 ms, rest 1.3 s; train time as MLBench counts it 39.9 s"
    )


def test_time_lost_by_restarts_is_named():
    assert (
        "rest, with what restarts lost 1.3 s"
        in said(restarts=[{"failures": {"1": "gone"}}])["time breakdown"]
    )
    assert "restarts" not in said(restarts=[{"failures": {"1": "gone"}}], status="failed")["time breakdown"]


def test_long_times_keep_their_exact_seconds():
    assert said(time_to_accuracy=3725.5)["time to accuracy"].startswith("1 h 02 min (3,725.50 s) from")


def test_a_missed_goal_has_no_time_but_the_clock_is_shown():
    assert said(time_to_accuracy=None)["time to accuracy"] == (
        "none; 48.2 s from clock start to the last validation"
    )


def test_start_up_is_shown_by_its_parts():
    assert said()["start-up"] == (
        "12.7 s from the command to clock start: "
        "command 1.2 s, cluster 5.4 s, scheduling 2.2 s, imports 3.9 s"
    )


def test_start_up_whose_parts_are_not_all_known_says_what_is_left():
    parts = said(startup={"command": 1.2, "cluster": 5.4, "imports": 1e-4})["start-up"]
    assert parts.endswith(": command 1.2 s, cluster 5.4 s, rest 6.1 s")


def test_phases_show_their_range_only_where_ranks_differ():
    text = said()["phases"]
    assert "data wait 1.0 % (0.5 to 1.5)" in text
    assert "backward 45.0 %, wait 5.0 % (2.5 to 7.5), transfer 7.5 %" in text
    assert text.endswith("in brackets lowest to highest rank")
    same = said(phases={"forward": RankStats.of([1.0]), "backward": RankStats.of([3.0])})["phases"]
    assert same == "of the batch: forward 25.0 %, backward 75.0 %"


def test_communication_tells_exposed_from_hidden():
    assert said()["communication"] == (
        "exposed 12.5 % of the batch (wait 5.0 % (2.5 to 7.5), transfer 7.5 %), "
        "overlapped with backward 7.5 % (5.0 to 10.0)"
    )


def test_bytes_sent_stand_beside_the_gradients():
    sent = RankStats(min=2.0e6, mean=3.0e6, max=4.0e6)
    text = said(bytes_sent_per_step=sent, gradient_bytes=2_000_000)["bytes sent"]
    assert text.endswith("per step and worker (2 MB to 4 MB), 1.5 x its gradients, by sync=ddp")
    assert "bytes sent" not in said()


def test_one_worker_communicates_with_nobody_and_has_no_rate_of_its_own():
    text = said(workers=1)
    assert "communication" not in text
    assert text["throughput"] == "71.9 images/s"


def test_utilisation_is_shown_only_where_a_peak_is_known():
    assert said()["arithmetic"] == "model FLOP/s (all workers) 4.39 GFLOP/s"
    assert said(mfu=0.3512)["arithmetic"].endswith("MFU 35.1 %")
    assert "arithmetic" not in said(model_flops_per_s=None)


def test_throughput_batches_and_training_have_units():
    text = said()
    assert text["throughput"] == "71.9 images/s, 36 per worker"
    assert text["batch"] == "p50 152 ms, p95 181 ms"
    assert text["trained"] == "2 epochs, 46 steps, 2,876 images"
    assert said(epochs=1.0, steps=1)["trained"] == "1 epoch, 1 step, 2,876 images"


def test_a_run_without_phase_clocks_shows_none():
    text = said(
        phases={},
        overlapped_communication=None,
        exposed_communication_share=None,
        train_time=None,
        step_s={},
    )
    assert not {"phases", "communication", "batch"} & text.keys()
    assert text["time breakdown"] == "validation 6.2 s, report 750 ms, batches and rest 41.3 s"


def test_a_run_that_never_trained_shows_how_far_it_came():
    text = {label: text for label, text in time_breakdown.lines(nothing_measured()) if text}
    assert text == {
        "start-up": "not finished: command 1.2 s, cluster 5.4 s",
        "whole command": "1 min 12 s",
    }
