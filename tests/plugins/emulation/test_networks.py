"""Break-evens, profiles and predictions over emulated networks, on cells whose truth is known."""

import math
from pathlib import Path

import pytest
from driven import Run
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis.points import points
from mlbench.plugins.emulation import charts as chart
from mlbench.plugins.emulation import measurement, networks
from mlbench.plugins.emulation.measurement import EmulatedLinks, LinkMeasurement
from mlbench.plugins.emulation.networks import SettingRuns
from mlbench.record.record import Record, RunEnd
from mlbench.terminal import full_card


def cell(sync: str, bandwidth: float, *step_s: float, task: str = "logreg") -> SettingRuns:
    return SettingRuns(task, 2, sync, bandwidth, 1.0, step_s, step_s, (0.5,) * len(step_s), ())


def ddp_s(bandwidth: float) -> float:
    return 0.01 + 10 / bandwidth


def sparse_s(bandwidth: float) -> float:
    return 0.05 + 1 / bandwidth  # equally fast where 9 / bandwidth is 0.04: at 225 Mbit/s


def test_the_break_even_is_where_the_lines_meet_and_its_interval_holds_it() -> None:
    spread = (0.97, 0.99, 1.0, 1.01, 1.03)
    measured = [
        cell(name, bandwidth, *(factor * line(bandwidth) for factor in spread))
        for name, line in (("ddp", ddp_s), ("topk", sparse_s))
        for bandwidth in (50.0, 100.0, 200.0, 250.0, 400.0)
    ]
    (break_even,) = networks.break_evens(measured)
    assert break_even.bandwidth_mbit_s == pytest.approx(225, rel=0.02)
    assert break_even.low is not None and break_even.high is not None
    assert break_even.low < 225 < break_even.high
    assert (break_even.winner, break_even.loser) == ("topk", "ddp")
    assert break_even.gain == pytest.approx(ddp_s(50) / sparse_s(50))
    assert "2 workers, 1 ms: below 22" in str(break_even)
    assert "topk beats ddp" in str(break_even) and "3.00 times" in str(break_even)


def test_a_second_break_even_says_where_its_winner_is_faster_and_has_its_own_interval() -> None:
    """a is faster at 10 and 1000 Mbit/s, b at 100: the interval of one crossing is not the other's."""
    spread = (0.97, 0.99, 1.0, 1.01, 1.03)
    medians = {"a": {10.0: 1.0, 100.0: 3.0, 1000.0: 1.0}, "b": {10.0: 3.0, 100.0: 1.0, 1000.0: 1.5}}
    measured = [
        cell(name, rate, *(factor * seconds for factor in spread))
        for name, line in medians.items()
        for rate, seconds in line.items()
    ]
    first, second = networks.break_evens(measured)
    assert (first.winner, first.gain_mbit_s, second.winner, second.gain_mbit_s) == ("a", 10, "b", 100)
    assert first.gain == pytest.approx(3) and second.gain == pytest.approx(3)
    for break_even in (first, second):
        assert break_even.low is not None and break_even.high is not None
        assert break_even.low < break_even.bandwidth_mbit_s < break_even.high
    assert first.high is not None and second.low is not None and first.high < second.low
    assert "b beats a" in str(second) and "3.00 times at 100 Mbit/s" in str(second)


def test_few_runs_show_no_interval_and_one_winner_has_no_break_even(snapshot: SnapshotAssertion) -> None:
    measured = [
        cell(name, b, line(b)) for name, line in (("a", ddp_s), ("b", sparse_s)) for b in (100.0, 400.0)
    ]
    (break_even,) = networks.break_evens(measured)
    assert break_even.low is None and break_even.high is None
    assert str(break_even) == snapshot
    two = [cell(row.sync, row.bandwidth_mbit_s, *row.step_s, 1.01 * row.step_s[0]) for row in measured]
    (break_even,) = networks.break_evens(two)
    assert break_even.low is None and break_even.high is None
    assert str(break_even) == snapshot
    assert not networks.break_evens([row for row in measured if row.bandwidth_mbit_s < 200])
    assert not networks.break_evens([cell("a", 1.0, 1.0), cell("a", 2.0, 1.0), cell("b", 1.0, 2.0)])


def test_performance_profiles_are_shares_of_the_problems_that_all_have_met() -> None:
    measured = [
        cell("a", 1.0, 1.0), cell("b", 1.0, 2.0),
        cell("a", 2.0, 3.0), cell("b", 2.0, 1.0),
        cell("a", 3.0, math.inf), cell("b", 3.0, 5.0),
        cell("a", 4.0, 1.0),
    ]  # fmt: skip
    profiles = networks.performance_profiles(measured)
    assert profiles["a"] == [(1.0, 1 / 3), (3.0, 2 / 3)]  # its third is never solved
    assert profiles["b"] == [(1.0, 1 / 3), (1.0, 2 / 3), (2.0, 1.0)]
    profile = chart.chart(measured, about="test").vconcat[-1].to_dict()  # held against Vega-Lite's schema
    drawn = [(row["sync"], row["tau"], row["share"]) for row in profile["data"]["values"]]
    assert drawn == [(name, tau, share) for name, steps in profiles.items() for tau, share in steps]


def emulated(tmp_path: Path, *overrides: str, bandwidth: float = 80) -> Record:
    more = (f"network.bandwidth_mbit_s={bandwidth}", *overrides)
    run = Run(tmp_path, "network=1gbit_1ms", *more, name=tmp_path.name)
    run.validate(90.0)
    link = LinkMeasurement(
        source=0,
        target=1,
        round_trip_ms=4.0,
        round_trip_min_ms=4.0,
        bandwidth_mbit_s=80.0,
        bandwidth_back_mbit_s=160.0,
        lost_percent=None,
        expected_round_trip_ms=2.0,
        expected_bandwidth_mbit_s=80.0,
        expected_bandwidth_back_mbit_s=80.0,
    )
    links = EmulatedLinks(kind="user space", hosts=2, measured=[link])
    return run.end("goal_reached", gradient_bytes=1_000_000).model_copy(
        update={"extras": {"links": links.model_dump()}}
    )


def test_the_prediction_is_computing_and_the_ring_over_the_slowest_direction(tmp_path: Path) -> None:
    record = emulated(tmp_path)
    computing = sum(spread.mean for name, spread in record.phases.items() if name not in ("wait", "transfer"))
    # Two ranks: two messages of half a megabyte at 10 MB/s, less the headers, each after 4 ms.
    expected = computing / record.steps + 2 * (0.004 + 0.05 * 1500 / 1448)
    assert networks.predicted_step_s(record) == pytest.approx(expected)
    (cell,) = networks.cells(points([record]))
    step_s = sum(spread.mean for spread in record.phases.values()) / record.steps
    assert cell.error == pytest.approx(expected / step_s - 1)
    assert (cell.bandwidth_mbit_s, cell.delay_ms, cell.workers, cell.sync) == (80.0, 1.0, 2, "ddp")
    assert networks.predicted_step_s(record.model_copy(update={"extras": {}})) is None


def test_what_else_differs_is_part_of_the_strategy_and_no_cell_hides_another(tmp_path: Path) -> None:
    records = [
        emulated(tmp_path / f"{number}", *overrides, bandwidth=bandwidth)
        for number, (bandwidth, *overrides) in enumerate(
            [
                (80, "network.loss_percent=0.1"),
                (80, "network.loss_percent=1"),
                (20, "network.loss_percent=1"),
                (80, "sync=local_sgd", "division=open"),
            ]
        )
    ]
    assert [(cell.sync, cell.bandwidth_mbit_s) for cell in networks.cells(points(records))] == [
        ("ddp network.loss_percent=0.1", 80.0),
        ("ddp network.loss_percent=1.0", 20.0),
        ("ddp network.loss_percent=1.0", 80.0),
        ("local_sgd", 80.0),
    ]


def test_a_compiled_run_tells_no_communication(tmp_path: Path) -> None:
    """Its heat map said 0: that all of it were hidden."""
    compiled = emulated(tmp_path).model_copy(update={"exposed_communication_share": None})
    (cell,) = networks.cells(points([compiled]))
    assert cell.exposed == () and chart.row(cell)["exposed_median"] is None
    chart.chart([cell], about="test").save(tmp_path / "network.png")
    assert (tmp_path / "network.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_missed_its_goal_needs_for_ever(tmp_path: Path) -> None:
    missed = emulated(tmp_path).model_copy(update={"status": "goal_not_reached"})
    assert missed.time_to_accuracy is not None
    (cell,) = networks.cells(points([missed]))
    assert cell.time_to_accuracy == (math.inf,)


def test_a_real_network_is_no_cell_and_stands_in_no_chart_with_an_emulated_one(tmp_path: Path) -> None:
    from mlbench.report import grouping

    real = Run(tmp_path / "real", name="real", seed=8)
    real.validate(90.0)
    records = [emulated(tmp_path / "emulated"), real.end("goal_reached")]
    assert len(networks.cells(points(records))) == 1
    groups = grouping.groups(records)
    assert len(groups) == 2
    assert sum("80 Mbit/s and 1 ms" in group.about for group in groups) == 1


def test_links_of_records_from_before_there_were_extras_are_read(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """They were a field of the record, and of the log's last event."""
    now = emulated(tmp_path)
    links = now.extras["links"]
    values = now.model_dump(mode="json", exclude={"extras"})
    before = Record.model_validate(values | {"links": links})
    assert before.extras == {"links": links} and before == now
    assert measurement.of(before) == EmulatedLinks.model_validate(links)
    assert full_card.extras(before)[0] == snapshot
    assert Record.model_validate(values | {"links": None}).extras == {}
    end = {"status": "failed", "ended": 1.0, "links": links}
    assert RunEnd.model_validate(end).extras == {"links": links}
