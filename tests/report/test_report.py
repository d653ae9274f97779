"""The report's files, rows, charts and sentences, from made-up studies."""

import csv
import html
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair
import pyarrow.parquet as pq
import pytest
import studies
from conftest import ROOT
from drawings import axis, column, looks, marked, notes, series
from PIL import Image, ImageStat
from records import nothing_measured
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis import marks, run_index
from mlbench.analysis.points import points
from mlbench.analysis.speedup import speedups
from mlbench.record.phases import PHASES, LatenessBlock
from mlbench.record.record import Node, Record
from mlbench.report import aggregates, grouping, page, provenance_section, render, tables, writer
from mlbench.report.answers import answer, headline
from mlbench.report.charts import NAMES, charts
from mlbench.report.charts.phases import APART
from mlbench.report.quantities import OUTSIDE
from mlbench.terminal import full_card, run_table, sweep_view

pytestmark = pytest.mark.slow

T4 = "hardware=gcp_n1_t4"
STUDY = writer.StudyText("Scaling", "How many workers?", ("mlbench sweep task=resnet20 workers=1,2,4",))
OVERSUBSCRIBED = {"oversubscribed": True, "caveats": ["8 workers shared the CPUs of fewer"]}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Three points that scale, one with a missed run, and one that is oversubscribed."""
    missed = studies.run(4, 9, T4, time=50, status="goal_not_reached")
    apart = [studies.run(8, seed, T4, time=20 + seed, **OVERSUBSCRIBED) for seed in range(3)]
    return [*studies.study(T4), missed, *apart]


@pytest.fixture(scope="module")
def report(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], int]:
    """Return the files of one report, and how often the points' statistics were computed for it."""
    calls = []
    original = grouping.points
    folder = tmp_path_factory.mktemp("report") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "points", lambda *a, **k: calls.append(1) or original(*a, **k))
        return writer.write(records, folder, study=STUDY), len(calls)


def drawn(records: list[Record], name: str) -> altair.LayerChart:
    (group,) = grouping.groups(records)
    return next(chart for chart in charts(group) if chart.name == name)


def test_write_makes_every_file_and_each_holds_something(report: tuple[list[Path], int]) -> None:
    paths, computed = report
    assert computed == 1, "the bootstraps of the points take seconds"
    assert sorted(path.name for path in paths) == sorted(writer.FILES)
    for path in paths:
        assert path.stat().st_size > 0
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert picture.size[0] > 1000
                assert ImageStat.Stat(picture.convert("L")).stddev[0] > 10  # not a blank sheet


def test_the_tables_on_disk_hold_the_aggregates(
    records: list[Record], report: tuple[list[Path], int]
) -> None:
    folder = report[0][0].parent
    stored = pq.read_table(folder / "summary.parquet").to_pylist()
    with (folder / "summary.csv").open() as file:
        text = list(csv.DictReader(file))
    compared = speedups(points(records))
    assert [row["workers"] for row in stored] == [1, 2, 4, 8]
    for row, line, result in zip(stored, text, compared, strict=True):
        assert result.point.time_to_accuracy
        assert row["time_to_accuracy_s"] == result.point.time_to_accuracy.value
        assert row["time_to_accuracy_s_high"] == result.point.time_to_accuracy.high
        assert row["speedup"] == (result.total.value if result.total else None)
        assert float(line["time_to_accuracy_s"]) == result.point.time_to_accuracy.value
    assert stored[2]["missed"] == records[15].run_id
    assert stored[3]["speedup"] is None and "oversubscribed" in stored[3]["no_speedup"]


def test_metrics_for_a_tracking_store_are_finite_and_step_by_workers(records: list[Record]) -> None:
    metrics = list(aggregates.metrics(grouping.groups(records)))
    assert all(math.isfinite(value) for _, value, _ in metrics)
    assert {workers for _, _, workers in metrics} == {1, 2, 4}  # the oversubscribed point is not compared
    speedup_two = next(value for name, value, workers in metrics if (name, workers) == ("speedup", 2))
    assert speedup_two == aggregates.rows(grouping.groups(records))[1]["speedup"]
    assert len({(name, workers) for name, _, workers in metrics}) == len(metrics)


@pytest.mark.plugin("emulation")
def test_emulated_networks_are_named_wherever_a_result_stands() -> None:
    """A result on an emulated network looks like no other: in titles, answers, tables on disk, metrics."""
    emulated = [
        run.model_copy(update={"key": f"e{run.key}", "run_id": f"e{run.run_id}"})
        for run in studies.study("network=1gbit_1ms", workers=(2, 4), repeats=3)
    ]
    grouped = grouping.groups([*studies.study(workers=(2, 4), repeats=3), *emulated])
    name = "emulated network 1 Gbit/s and 1 ms"
    goal = "top1_accuracy >= 95 %"
    assert [group.title for group in grouped] == [
        f"resnet20, mini: {goal}",
        f"resnet20, mini, {name}: {goal}",
    ]
    sections = sweep_view.answer(grouped)
    assert sections.count(name) == 1 and f"goal {goal}, {name}" in sections
    rows = [(row["network"], row["emulated"]) for row in aggregates.rows(grouped)]
    assert rows == [("host", False)] * 2 + [("1 Gbit/s and 1 ms", True)] * 2
    names = [(metric, step) for metric, _, step in aggregates.metrics(grouped)]
    assert len(names) == len(set(names)) and ("resnet20/mini/emulated/time_to_accuracy_s", 2) in names


def test_where_one_worker_is_fastest_the_answer_says_by_how_much_and_how_sure(
    snapshot: SnapshotAssertion,
) -> None:
    """The quotient of the medians is 12 s over 4 s; three runs each, none of one side among the other's."""
    first = [studies.run(1, seed, T4, time=time) for seed, time in enumerate((3.0, 4.0, 5.0))]
    second = [studies.run(2, seed, T4, time=time) for seed, time in enumerate((11.0, 12.0, 13.0))]
    (group,) = grouping.groups([*first, *second])
    assert "is 1 worker in 4.0 s" in answer(group)[0]
    assert answer(group)[0] == snapshot
    missed = [studies.run(2, seed, T4, time=12, status="goal_not_reached") for seed in range(3)]
    (lost,) = grouping.groups([*first, *missed])
    assert answer(lost)[0] == snapshot


def test_a_summary_s_row_says_why_it_has_no_best_point(records: list[Record]) -> None:
    (group,) = grouping.groups([run for run in records if run.workers == 8])
    assert headline(group)[:2] == ["-", "not comparable"]
    missed = [studies.run(2, seed, T4, time=50, status="goal_not_reached") for seed in range(3)]
    assert headline(*grouping.groups(missed))[:2] == ["-", "goal not reached"]
    (group,) = grouping.groups(records)
    best = headline(group)
    others = ["other processes used 1.6 of the 2 CPUs"]
    busy = [studies.run(16, 7, T4, time=90, disturbances=others)]
    assert headline(*grouping.groups([*studies.study(T4), *busy]))[-1].startswith("1 of 16 runs")
    assert best[0] == "4 workers" and float(best[2]) > 2 and best[3].endswith("USD") and best[4] == "19"


def test_a_quiet_point_is_not_the_fastest_of_rivals_that_were_all_disturbed(
    snapshot: SnapshotAssertion,
) -> None:
    """Quiet runs would be compared with busy ones, in favour of the quiet."""
    others = ["other processes used 1.6 of the 2 CPUs"]
    busy = [studies.run(1, s, T4, time=27.0 + s, disturbances=others, caveats=others) for s in range(3)]
    quiet = [studies.run(2, seed, T4, time=9.0 + seed) for seed in range(3)]
    (group,) = grouping.groups([*busy, *quiet])
    assert answer(group)[0] == snapshot
    assert headline(group)[:2] == ["-", "not comparable"]
    more = [studies.run(4, seed, T4, time=5.0 + seed) for seed in range(3)]
    (group,) = grouping.groups([*busy, *quiet, *more])
    assert "is 4 workers in 6.0 s" in answer(group)[0], "two quiet points may be compared"


def node(cpu_model: str) -> Node:
    return Node(hostname="a", usable_cpus=2, cpu_model=cpu_model)


def test_missed_runs_stand_at_the_top_of_the_times(
    records: list[Record], snapshot: SnapshotAssertion
) -> None:
    chart = drawn(records, "time_to_accuracy")
    missed, singles = (series(chart)[label] for label in ("missed the goal", "single runs"))
    assert looks(chart, "shape")["missed the goal"] == marks.CROSS
    assert column(missed, "text") == snapshot
    assert min(column(missed, "y")) > max(column(singles, "y"))
    assert len(singles) == len(records) - 1
    assert any(records[15].run_id in sentence and "1 of 6 runs" in sentence for sentence in notes(chart))


def test_oversubscribed_points_are_drawn_apart_and_never_joined(records: list[Record]) -> None:
    chart = drawn(records, "speedup")
    joined = [row for row in marked(chart, "line") if not row["series"].startswith("ideal")]
    (apart,) = (rows for label, rows in series(chart).items() if "no speed-up" in label)
    assert column(apart, "x") == [8] and looks(chart, "shape")[apart[0]["series"]] == marks.CROSS
    assert set(column(joined, "series")) == {"total", "compute only"}
    assert all(row["x"] < 8 / 1.5 for row in joined)
    assert any("k = 8 has no speed-up" in sentence for sentence in notes(chart))
    bills = series(drawn(records, "cost"))
    assert [len(rows) for label, rows in bills.items() if "on demand" in label] == [3, 3]


def test_phases_stack_to_the_time_of_an_epoch() -> None:
    records = studies.study(T4, repeats=3)
    chart = drawn(records, "phases")
    bars = list(series(chart).values())
    for index, point in enumerate(points(records)):
        stacked = sum(part[index]["y"] for part in bars)
        assert stacked == pytest.approx(
            0.98 * sum(p / 4 for p in point.times) / 3
        )  # studies.run measures 98 %
        for below, above in zip(bars, bars[1:], strict=False):
            assert above[index]["base"] == pytest.approx(below[index]["base"] + below[index]["y"])
            assert below[index]["top"] == above[index]["base"]


def test_below_the_bars_of_a_family_its_name_stands_once_and_families_stand_apart() -> None:
    made = [*studies.study(T4), *studies.study(T4, "backend=nccl", workers=(1, 2))]
    chart = drawn(made, "phases")
    places = column(next(iter(series(chart).values())), "x")
    assert [after - before for before, after in pairwise(places)] == pytest.approx([1, 1, 1 + APART, 1])
    texts = [
        json.loads(text) for text in re.findall(r"\? (\[.*?\]) :", axis(chart, "x")["axis"]["labelExpr"])
    ]
    assert texts == [["1"], ["2", "gloo"], ["4"], ["1"], ["", "nccl"], ["2"]]


def test_the_cost_is_shown_with_and_without_start_up() -> None:
    chart = drawn([studies.run(k, s, T4, time=90 / k) for k in (1, 2) for s in range(3)], "cost")
    whole, bare = (series(chart)[f"on demand, {what}"] for what in ("with start-up", "training alone"))
    assert column(whole, "y") == pytest.approx([row["y"] * (1 + 12.7 / row["x"]) for row in bare])


def test_the_optimum_is_marked_at_its_cost(records: list[Record]) -> None:
    chart = drawn(records, "cost")
    (ring,) = series(chart)["price-performance optimum"]
    costs = series(chart)["on demand, with start-up"]
    assert (ring["x"], ring["y"]) in [(row["x"], row["y"]) for row in costs]
    assert any("price-performance" in sentence for sentence in notes(chart))


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ([studies.run(2, 0, T4, time=9)], "speedup"),
        ([studies.run(1, 0, time=9)], "cost"),
        ([studies.run(1, 0, time=9, goal=None, status="completed")], "time_to_accuracy"),
        ([nothing_measured(status="failed", error="x")], "phases"),
        ([nothing_measured(status="failed", error="x")], "convergence"),
        ([studies.run(1, 0, time=9, phases={}, exposed_communication_share=None,
                      overlapped_communication=None)], "communication"),
    ],
)  # fmt: skip
def test_a_figure_that_has_nothing_to_show_says_why(
    made: list[Record], name: str, snapshot: SnapshotAssertion
) -> None:
    chart = drawn(made, name)
    assert chart.layer == []
    assert notes(chart) == snapshot


@pytest.mark.parametrize(
    "records",
    [
        [nothing_measured(status="failed", error="no room")],
        [studies.run(k, s, T4, time=9, status="diverged") for k in (1, 2) for s in (0, 1)],
    ],
    ids=["failed", "all missed"],
)
def test_a_study_of_which_little_is_known_still_has_its_report(records: list[Record], tmp_path: Path) -> None:
    paths = writer.write(records, tmp_path, study=STUDY)
    assert sorted(path.name for path in paths) == sorted(writer.FILES)
    assert all(path.exists() for path in paths)


def test_mini_and_official_never_stand_in_one_picture(tmp_path: Path) -> None:
    official = {"experiment": {"scale": "official"}}
    records = studies.study(T4, repeats=2)
    records += [studies.run(k, 9, T4, time=50, key=f"o{k}", **official) for k in (1, 2)]
    groups = grouping.groups(records)
    assert [group.scale for group in groups] == ["mini", "official"]
    assert {
        chart.title.subtitle.split(",")[1].strip() for group in groups[:1] for chart in charts(group)
    } == {"mini"}
    paths = writer.draw(grouping.groups(records), tmp_path, names=["cost"])
    assert [path.name for path in paths] == ["cost.png", "cost-mini.png"]


def test_published_runs_stand_beside_ours_and_apart() -> None:
    archive = {"source": "mlbench-published", "caveats": ["one run"], "mlbench": "original"}
    published = [
        run.model_copy(update={**archive, "key": f"p{run.key}", "run_id": f"p{run.run_id}"})
        for run in studies.study(T4, repeats=1)
    ]
    (group,) = grouping.groups([*published, *studies.study(T4, repeats=2)])
    assert [curve.published for curve in group.curves] == [False, True]
    assert group.curves[1].label.endswith("published")
    assert all(speedup.total for curve in group.curves for speedup in curve.speedups)
    assert "6 runs" in answer(group)[2]  # the answer is about our own


def test_the_answer_has_three_sentences_from_the_data(
    records: list[Record], snapshot: SnapshotAssertion
) -> None:
    (group,) = grouping.groups(records)
    assert answer(group) == snapshot


def test_the_answer_says_when_repeats_are_too_few_and_when_the_machine_was_busy(
    snapshot: SnapshotAssertion,
) -> None:
    (three,) = grouping.groups(studies.study(T4, repeats=3))
    assert "75 % of studies" in answer(three)[2] and "busy" not in answer(three)[2]
    load = ["the load average was 9.0 on 2 CPUs before the run began"]  # as logs of 0.2.0 say
    (loaded,) = grouping.groups(studies.study(T4, repeats=3, warnings=load))
    assert answer(loaded) == answer(three)
    others = ["other processes used 1.6 of the 2 CPUs"]
    (single,) = grouping.groups(studies.study(T4, repeats=1, disturbances=others))
    assert answer(single) == snapshot


def test_a_speed_up_above_the_workers_is_told_in_its_parts(snapshot: SnapshotAssertion) -> None:
    """25 s in 12 epochs against 10 s in 8: 2.5 times, and 25 / 12 over 10 / 8 = 1.67 an epoch."""
    first = [studies.run(1, seed, T4, time=25.0, epochs=12) for seed in range(3)]
    second = [studies.run(2, seed, T4, time=10.0, epochs=8) for seed in range(3)]
    (group,) = grouping.groups([*first, *second])
    assert answer(group)[0] == snapshot


def lrs(count: int) -> list[Record]:
    """A study of so many learning rates with 1, 2 and 4 workers; the curve of the last one is the fastest."""
    task = studies.run(1, 0, time=9).experiment.plain()["task"]
    return [
        studies.run(
            workers,
            seed,
            time=(100 - lr + seed) / workers,
            experiment={"task": task | {"lr": float(lr)}},
            key=f"{workers} {lr}",
            run_id=f"resnet20-w{workers}-{seed}-{lr}",
        )
        for lr in range(1, count + 1)
        for workers in (1, 2, 4)
        for seed in range(3)
    ]


@pytest.mark.parametrize("count", [3, 12])
def test_a_mark_stands_nearest_to_its_own_number_of_workers(count: int) -> None:
    """However many curves there are, and inside the axes; what a mark says tells whose it is."""
    for name in ("speedup", "time_to_accuracy", "communication"):
        chart = drawn(lrs(count), name)
        low, high = axis(chart, "x")["scale"]["domain"]
        places = [
            (row["x"], int(match[1]))
            for row in marked(chart, "point")
            if (match := re.search(r"(\d+) worker", row["text"]))
        ]
        assert places and all(low < x < high for x, _ in places)
        for x, workers in places:
            assert min((1, 2, 4), key=lambda other: abs(math.log(x / other))) == workers, (name, x)


def test_of_many_curves_the_fastest_are_drawn_and_a_sentence_counts_the_others() -> None:
    (group,) = grouping.groups(lrs(40))
    for chart in charts(group):
        if chart.layer and chart.name != "phases":
            labels = {label.partition(",")[0] for label in series(chart) if label.startswith("lr")}
            assert {label.partition(":")[0] for label in labels} == {f"lr {lr}.0" for lr in range(29, 41)}
        assert notes(chart)[0].startswith("12 of 40 curves")
    time, price, _ = answer(group)
    assert "is lr 40.0: 4 workers" in time
    assert "lr 35.0 is not" in time  # of 7,140 pairs
    assert "lr 34.0" not in time and re.search(r"\. \d+ more (is|are) slower", time)
    others = [int(many) for many in re.findall(r"\. (\d+) more (?:is|are)", time)]
    assert sum(others) == 40 - 1 - 5
    assert "lr 36.0" in price and "lr 35.0" not in price and "35 more" in price
    assert len(tables.points(group).rows) == 40 * 3


def test_every_run_of_a_convergence_chart_has_a_line() -> None:
    """Read from the drawn SVG: five runs of one point, one line each, all with a colour; and the goal's."""
    chart = drawn([studies.run(1, seed, time=9 + seed) for seed in range(5)], "convergence")
    picture = render.svg(render.specification(chart))
    lines = re.findall(r'<path aria-label="[^"]*"[^>]*aria-roledescription="line mark"[^>]*>', picture)
    assert len(lines) == 6
    assert [line for line in lines if not re.search(r'stroke="#[0-9A-Fa-f]{6}"', line)] == []


def test_an_open_end_of_a_speed_up_is_not_drawn_and_is_told() -> None:
    missed = studies.run(4, 9, time=50, status="goal_not_reached")
    chart = drawn([*studies.study(repeats=4), missed], "speedup")
    assert [row["low"] is None for row in series(chart)["total"]] == [False, False, True]
    assert any(note.startswith("k = 4: missed goals") for note in notes(chart))
    picture = render.svg(render.specification(chart))
    lower, upper = 2 * 2, 2 * 3  # total and compute only, of 1 and 2 workers; of 4 the upper ends alone
    assert picture.count('aria-roledescription="rule mark"') == lower + upper


def test_a_point_without_a_goal_is_never_the_fastest() -> None:
    (point,) = points([studies.run(1, seed, time=9, goal=None, status="completed") for seed in range(3)])
    assert point.time_to_accuracy is None and point.median_s == math.inf


def test_where_every_run_missed_no_time_and_no_price_are_made_up(snapshot: SnapshotAssertion) -> None:
    runs = [studies.run(1, seed, T4, time=9_000, status="goal_not_reached") for seed in range(3)]
    times, cost = drawn(runs, "time_to_accuracy"), drawn(runs, "cost")
    assert times.layer == [] and "3 of 3 runs missed" in notes(times)[0]
    assert cost.layer == [] and notes(cost) == snapshot


def apart(prefix: str, runs: list[Record]) -> list[Record]:
    """Return runs under keys and names of their own."""
    return [
        run.model_copy(update={"key": f"{prefix} {run.key}", "run_id": f"{prefix} {run.run_id}"})
        for run in runs
    ]


def test_metrics_of_all_kinds_of_curves_have_names_and_curves_have_labels_of_their_own() -> None:
    plain = studies.run(1, 0, time=9).experiment.plain()
    others = {"batch_size": 64, "lr": 0.7, "momentum": 0.5, "weight_decay": 0.01, "dataset": "fashion_mnist"}
    experiments = [{"task": plain["task"] | {name: value}} for name, value in others.items()]
    changes: list[dict[str, Any]] = [{"experiment": experiment} for experiment in experiments]
    changes += [{"experiment": {"backend": plain["backend"] | {"name": "mpi"}}}, {}]
    changes += [{"goal": {"metric": "top1_accuracy", "target": 90.0, "direction": "max"}}]
    runs = [
        run for n, change in enumerate(changes) for run in apart(f"{n}", studies.study(repeats=2, **change))
    ]
    groups = grouping.groups(runs)
    assert sorted(len(group.curves) for group in groups) == [
        1,
        1,
        6,
    ]  # other data, another goal, and the rest
    assert all(len({curve.label for curve in group.curves}) == len(group.curves) for group in groups)
    names = [(name, step) for name, _, step in aggregates.metrics(groups)]
    assert len(set(names)) == len(names)


def test_totals_above_bars_stand_where_there_is_room() -> None:
    few, many = (drawn(studies.study(workers=tuple(range(1, n + 1)), repeats=1), "phases") for n in (4, 24))
    assert [len(marked(chart, "text")) for chart in (few, many)] == [4, 0]


def test_a_best_value_that_misses_its_goal_does_not_read_as_if_it_met_it() -> None:
    run = studies.run(1, 0, time=9, status="goal_not_reached", best=94.996)
    (row,) = tables.runs([run], {}).rows
    assert "94.996 %" in [cell.text for cell in row.cells]
    assert "best 94.996 %" in sweep_view.outcome(run, None)
    assert " 94.996 % " in run_table.text([run_index.shared_values(run) | run_index.own_values(run)])


def test_every_chart_is_plain_json_with_one_colour_a_family(records: list[Record]) -> None:
    for chart in charts(grouping.groups(records)[0]):
        assert altair.LayerChart.from_dict(chart.to_dict())  # held against Vega-Lite's schema
        specification = render.specification(chart)
        assert altair.LayerChart.from_dict(specification)
        text = json.dumps(specification, allow_nan=False)
        assert "usermeta" not in text
        colours = set(re.findall(r"#[0-9A-Fa-f]{6}", text)) - {marks.GREY}
        assert chart.name == "phases" or colours <= set(marks.COLOURS)


def test_labels_below_a_picture_do_not_overlap(records: list[Record]) -> None:
    """Read from the drawn SVG: the texts of an axis end before the next begins."""
    for chart in (drawn(records, name) for name in ("speedup", "phases", "time_to_accuracy")):
        picture = render.svg(render.specification(chart))
        texts = re.findall(r'<g class="mark-text role-axis-label".*?</g>', picture, flags=re.DOTALL)
        places = [
            [
                (float(x), len(text))
                for x, text in re.findall(r"translate\(([-\d.]+),.*?>([^<]+)</text>", axis)
            ]
            for axis in texts
        ]
        horizontal = max(places, key=lambda axis: len({x for x, _ in axis}))
        for (x, letters), (following, more) in pairwise(sorted(horizontal)):
            assert x + 3.5 * letters < following - 3.5 * more


def test_all_runs_are_listed_with_what_became_of_them(records: list[Record]) -> None:
    rows = tables.runs(records, {}).rows
    assert [row.cells[0].text for row in rows] == [record.run_id for record in records]
    assert [row.cells[6].text for row in rows if row.apart] == ["infinite"]


def test_planned_runs_without_a_record_are_told(records: list[Record]) -> None:
    done, lost = (
        writer.Planned("workers=1", records[0].key, records[0].seed),
        writer.Planned("workers=9", "none", 3, "no room"),
    )
    assert tables.missing(records, [done]) is None
    table = tables.missing(records, [done, lost])
    assert table and [[cell.text for cell in row.cells] for row in table.rows] == [
        ["workers=9", "3", "no room"]
    ]


def test_provenance_tells_once_what_the_runs_share(records: list[Record]) -> None:
    rows = dict(provenance_section.provenance(records))
    assert rows["prepared data (hash)"] == ["d" * 64]
    assert len(rows["hardware profile"]) == 1 and "T4" in rows["hardware profile"][0]
    assert "USD per hour" in rows["price"][0] and rows["not official"] == ["scale=mini"]


def test_a_study_of_task_0_shows_its_messages(tmp_path: Path) -> None:
    def table(workers: int) -> list[dict[str, Any]]:
        row = {"kind": "times", "collective": "all_reduce", "dtype": "float32", "wrong_elements": 0}
        row |= {"backend": "gloo", "device": "cpu", "workers": workers}
        sizes = [(size, 1e-3 * workers + size / 1e9) for size in (10, 10_000, 10_000_000)]
        good = [
            row | {"bytes": size, "p50_s": time, "busbw_bytes_per_s": size / time} for size, time in sizes
        ]
        return [*good, row | {"bytes": 99, "p50_s": 1e-9, "busbw_bytes_per_s": 1e15, "wrong_elements": 1}]

    free = {"goal": None, "status": "completed"}
    records = [nothing_measured("task=allreduce", f"workers={k}", key=f"{k}", run_id=f"{k}", table=table(k),
                                workers=k, **free) for k in (2, 4)]  # fmt: skip
    chart = drawn(records, "all_reduce_time")
    two, four = series(chart).values()
    assert column(two, "x") == column(four, "x") == [10, 10_000, 10_000_000]
    assert four[0]["y"] == pytest.approx(4e-3 + 1e-8)
    times, rates, _ = answer(grouping.groups(records)[0])
    assert "2.0 ms with 2 workers" in times and "4.0 ms with 4 workers" in times
    assert "833 MB/s with 2 workers" in rates
    pictures = writer.draw(grouping.groups(records), tmp_path, names=["all_reduce_bandwidth"])
    assert (tmp_path / "all_reduce_bandwidth.png") in pictures and pictures[0].exists()


@pytest.mark.parametrize(
    "row", [{"kind": "decoding", "images": 256}, {"kind": "batches", "share_of_padding": 0.1}]
)
def test_a_table_that_is_not_of_messages_makes_no_task_0(row: dict[str, Any]) -> None:
    """ResNet-50 times its decoding, translation counts its padding: their reports are about the goal."""
    (group,) = grouping.groups(studies.study(repeats=3, table=[row]))
    assert "is 4 workers" in answer(group)[0]
    assert [chart.name for chart in charts(group)] == list(NAMES)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"data_hash": "e" * 16}, "data"),
        ({"nodes": [node("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")]}, "machine"),
    ],
)
def test_a_point_whose_runs_differ_in_data_or_machine_is_told_apart(
    change: dict[str, Any], name: str
) -> None:
    records = studies.study(repeats=2, nodes=[node("AMD EPYC 7B12 64-Core Processor")], data_hash="d" * 16)
    records[-1] = records[-1].model_copy(update=change)
    (group,) = grouping.groups(records)
    labels = [curve.label for curve in group.curves]
    assert len(set(labels)) == 2 and all(label.startswith(f"{name} ") for label in labels)
    assert max(map(len, labels)) < 60
    assert all(render.specification(chart) for chart in charts(group))


SPLIT = ("task=logreg", "division=open", "task.validation=split")
FILES = ("task=logreg", "division=open", "task.train_file=a9a.txt", "task.test_file=a9a.t")


def test_other_data_stands_in_charts_answers_and_metrics_of_its_own() -> None:
    records = [
        run for overrides in (("task=logreg",), SPLIT, FILES) for run in studies.study(*overrides, repeats=3)
    ]
    groups = grouping.groups(records)
    files = "task.test_file=a9a.t task.train_file=a9a.txt"
    assert [group.other_data for group in groups] == ["", files, "task.validation=split"]
    assert [len(group.curves) for group in groups] == [1, 1, 1]
    assert [group.about.rpartition(", data ")[2] for group in groups] == [
        "epsilon_like", files, "epsilon_like task.validation=split",
    ]  # fmt: skip
    assert all("9 runs at 3 points" in answer(group)[2] for group in groups)
    metrics = list(aggregates.metrics(groups))
    assert len({(name, workers) for name, _, workers in metrics}) == len(metrics)
    assert {row["other_data"] for row in aggregates.rows(groups)} == {group.other_data for group in groups}


def test_all_that_a_run_measures_between_its_batches_is_drawn_and_in_the_tables() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "mlbench").rglob("*.py"))
    assert set(re.findall(r'\.outside_steps\("(\w+)"\)', sources)) == set(OUTSIDE)
    (row,) = aggregates.rows(grouping.groups([studies.run(1, 0, time=9)]))
    assert {name for name in row if name.endswith("_s_per_epoch")} == {
        f"{part}_s_per_epoch" for part in (*PHASES, *OUTSIDE)
    }


def test_a_run_on_an_odd_node_is_told_at_its_point_and_in_the_list_of_runs(
    records: list[Record], snapshot: SnapshotAssertion
) -> None:
    def calibrated(seed: int, rate: float) -> Record:
        node = Node(hostname="a", usable_cpus=2, calibration={"cpu_gemm_flops_per_s": rate})
        return studies.run(2, seed, T4, time=60, nodes=[node])

    some = [calibrated(seed, rate) for seed, rate in enumerate((200e9, 205e9, 198e9, 95e9))]
    (group,) = grouping.groups(some)
    reason = "its node computed 52 % slower than those of the other runs"
    (sentence,) = grouping.disturbances(group)
    assert sentence == snapshot
    (counted,) = grouping.groups(some, with_disturbed=True)
    (sentence,) = grouping.disturbances(counted)
    assert sentence == snapshot
    (shown,) = (
        row.cells[-1].text
        for row in tables.runs(some, group.points[0].disturbed).rows
        if reason in row.cells[-1].text
    )
    assert shown == reason


def test_the_report_tells_communication_and_its_stragglers_as_the_card_does(
    snapshot: SnapshotAssertion,
) -> None:
    late = [[LatenessBlock(25, last, s) for _ in range(40)] for last, s in ((2, -0.02), (23, 0.02))]
    some = [*studies.study(T4, workers=(1,), repeats=2), *studies.study(T4, workers=(2,), repeats=2)]
    some[-1] = some[-1].model_copy(update={"lateness": late})
    (group,) = grouping.groups(some)
    (sentence,) = grouping.waiting(group)
    assert sentence == snapshot
    assert str(dict(full_card.rows(some[-1]))["late rank"]) in sentence
    table = tables.points(group)
    cells = dict(zip(table.headings, table.rows[1].cells, strict=True))
    assert cells["exposed communication"].text == cells["of it transfer"].text == "20.0 %"
    assert cells["of it wait for the slowest"].text == "0.0 %"
    assert [row.cells[9].text for row in tables.runs(some, {}).rows][-2:] == snapshot  # fmt: skip
    odd = [
        run.model_copy(
            update={"nodes": [Node(hostname="a", usable_cpus=2, calibration={"cpu_gemm_flops_per_s": rate})]}
        )
        for run, rate in zip(
            studies.study(T4, workers=(4,), repeats=4), (200e9, 205e9, 198e9, 95e9), strict=True
        )
    ]
    text = html.unescape(page.page([*some, *odd], study=STUDY, references=[]))
    assert sentence in text
    assert text.count("52 % slower") == 2  # below the table of points, and beside the run


def test_no_text_in_a_table_is_a_formula(tmp_path: Path) -> None:
    """A spreadsheet computes it, and a name like this comes with an imported run."""
    texts = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "gloo", None]
    aggregates.save([{"hardware": text, "time": -1.5} for text in texts], tmp_path)
    with (tmp_path / "summary.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["hardware"] for row in rows] == [*(f"'{text}" for text in texts[:5]), "gloo", ""]
    assert {row["time"] for row in rows} == {"-1.5"}
    assert pq.read_table(tmp_path / "summary.parquet")["hardware"].to_pylist() == texts
