"""The site of several studies, made from exports, in a real browser."""

import math
import re
from dataclasses import replace
from pathlib import Path

import chromium
import drawings
import pytest
import sample
import studies
from conftest import ROOT
from driven import Run
from screenshots import save
from test_page import STUDY, axe

from mlbench import results
from mlbench.analysis import marks
from mlbench.analysis.points import MedianEstimate
from mlbench.record import official
from mlbench.report import leaderboard, page, site
from mlbench.report.charts import frontier
from mlbench.report.charts.ranking import ranking
from mlbench.report.leaderboard import LeaderboardEntry

SUBMISSIONS = ROOT / "submissions" / "mlbench"

pytestmark = pytest.mark.slow


def entry(
    entity: str, value: float, low: float | None, high: float | None, usd: float | None = None
) -> LeaderboardEntry:
    """Return a ranked point of two workers."""
    (group,) = site.groups([studies.run(2, 1, time=value)])
    point = replace(group.points[0], time_to_accuracy=MedianEstimate(value, low, high, n=3))
    bill = MedianEstimate(usd, usd, usd, n=3) if usd else None
    submission = replace(site.LOOSE, entity=entity, name="one")
    return LeaderboardEntry(submission, "", "", "", point, bill, leaderboard.COMPLETE, "", rank=1)


def test_exports_become_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    for seed, study in ((7, "one"), (8, "one"), (9, "two")):
        run = Run(runs, "goal=85", "division=open", f"study={study}", seed=seed)
        run.validate(86.5)
        run.end("goal_reached")
    root = f"output_root={runs}"
    assert results.main(["export", "task=logreg", root, f"to={tmp_path / 'zips'}"]) == 0
    damaged = tmp_path / "zips" / "damaged.zip"
    damaged.write_bytes(b"PK")
    assert results.main(["site", str(tmp_path / "zips"), f"to={tmp_path / 'site'}"]) == 2
    assert "damaged.zip" in capsys.readouterr().err
    pages = sorted(path.name for path in (tmp_path / "site").glob("*.html"))
    assert pages == ["hardware.html", "index.html", "one.html", "published.html", "two.html"]
    index = (tmp_path / "site" / "index.html").read_text()
    assert ">one</a>: 2 runs" in index and "4.0 s" in index


@pytest.mark.plugin("emulation")
def test_the_leaderboard_names_emulated_networks_and_repeats_claims_as_claims(tmp_path: Path) -> None:
    """Every run of a site is imported, so what was official where it was measured is a claim here."""
    claims = {"official_reasons": [official.IMPORTED], "imported": True}
    real = studies.study(workers=(2,), repeats=3, **claims)
    emulated = studies.study("network=1gbit_1ms", workers=(2,), repeats=3)
    crowd = [studies.run(4, seed, time=1 + seed, oversubscribed=True) for seed in range(3)]
    text = site.write([*real, *emulated, *crowd], tmp_path)[0].read_text()
    first, second = text.split("<h2>")[1:3]
    assert "emulated" not in first and "1 Gbit/s and 1 ms" in second
    assert "claims eligible" in first and "3 of 3</td>" in first
    assert first.count("3 of 3</td>") == 3 and second.count("0 of 3</td>") == 1
    # What may not be compared is never first, however fast it was.
    assert re.findall(r'<tr( class="apart")?[^>]*>\s*<th scope="row">(\d) x', first) == [
        ("", "2"),
        (' class="apart"', "4"),
    ]


def test_a_study_s_name_is_no_path() -> None:
    names = site._file_names({"../a b": [], "a/b": [], "A-b": [], "index": [], "": []})
    assert len({name.lower() for name in names.values()}) == 5
    assert all(
        "/" not in name and not name.startswith(".") and name != "index.html" for name in names.values()
    )


@pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium on this machine")
def test_the_leaderboard_is_readable_on_every_width(tmp_path: Path) -> None:
    assert results.main(["site", str(sample.SAMPLE), str(SUBMISSIONS), f"to={tmp_path}"]) == 0
    index = tmp_path / "index.html"
    points = "[...r.cells].map(c => c.innerText).find(text => text.includes('gloo, ddp'))[0]"
    rows = f"[...t.tBodies[0].rows].map(r => {points}).join(' ')"
    figures = "[...document.querySelectorAll('.group')].map(s => s.querySelectorAll('figure').length)"
    titles = "[...document.querySelectorAll('.group h2')].map(h => h.innerText)"
    kinds = "[...document.querySelector('.group').children].map(e => e.className || e.tagName).join(' ')"
    # A letter of a picture is 11 units high.
    letters = "[...document.querySelectorAll('.still img')].map(i => 11 * i.clientWidth / i.naturalWidth)"
    with chromium.browse() as browser:
        for width, name in ((1280, "site"), (390, "site-phone")):
            browser.open(index.as_uri(), width=width, height=760)
            assert browser.ask(f"[...document.querySelectorAll('table.points')].map(t => {rows})") == [
                "2 2",  # of the submissions, fastest first: awdlstm, gnmt, gpt
                "2 2",
                "2 2",
                "1 2 2 2",  # logreg
                "2 1 2 2",  # resnet20
                "2 2",  # resnet50, transformer
                "2 2",
                "1 2",  # the sample's
                "2 1",
            ]
            assert browser.ask(figures) == [1] * 9  # the time of each task, as nobody states a price
            assert browser.ask("document.body.innerText").count("No price given.") == 9
            assert all(len(title.split()) <= 5 for title in browser.ask(titles))
            assert browser.ask(kinds) == "H2 words figures answer scroll"
            assert min(browser.ask(letters)) > 9
            assert browser.ask("document.documentElement.scrollWidth") <= width
            assert axe(browser) == [] and browser.errors() == [] and browser.requests() == [index.as_uri()]
            save(browser, name)
            browser.open((tmp_path / f"{sample.STUDY}.html").as_uri(), width=width, height=760)
            assert "Summary" in browser.ask("document.body.innerText")
            browser.until(lambda: browser.ask("document.querySelectorAll('.live svg').length") >= 8)
            save(browser, name.replace("site", "report"))


def test_the_first_page_draws_medians_below_each_other_with_their_intervals() -> None:
    three, open_end = MedianEstimate(9.0, 8.0, 10.0, n=3), MedianEstimate(13.0, 12.5, math.inf, n=3)
    rows = [("a, 2 workers", three), ("b, 1 worker", MedianEstimate(12.0, None, None, n=1)), ("c", open_end)]
    (drawn,) = drawings.series(chart := ranking("time", rows)).values()
    assert [(row["y"], row["x_low"], row["x"], row["x_high"]) for row in drawn] == [
        (0, 8, 9, 10), (-1, None, 12, None), (-2, 12.5, 13, None),
    ]  # fmt: skip
    assert len(drawings.marked(chart, "rule")) == 2 * 3, "an interval has two ends"
    labels, scale = drawings.axis(chart, "y")["axis"]["labelExpr"], drawings.axis(chart, "x")["scale"]
    assert '["9.0 s: a, 2 workers"]' in labels and '["12.0 s: b, 1 worker"]' in labels
    assert scale["domain"][0] == 0 and scale["domain"][1] > 13
    costs = ranking("cost", [("a", None), ("b", three)])
    assert [row["x"] for row in drawings.marked(costs, "point") if row] == [9]
    assert drawings.notes(costs) == ["No price given: a."]
    assert not ranking("cost", [("a", None)]).layer, "no price, no picture"


def test_what_intervals_do_not_separate_is_said() -> None:
    """Of 9 s (8 to 10), 11 s (10 to 12) and 13 s (12.5 to 14) the second may be as fast as the first."""
    some = [entry("a", 9.0, 8.0, 10.0, 4.0), entry("b", 11.0, 10.0, 12.0), entry("c", 13.0, 12.5, 14.0, 2.0)]
    text = site._answer([*zip(site._labels(some), some, strict=True)])
    assert "from b, 2 workers." in text and text.count("separate") == 1
    assert "time: a, 2 workers" in text and "Cheapest: c, 2 workers, 13.0 s" in text
    assert "Fastest: a, 2 workers" in site._answer([("a", some[0]), ("c", some[2])])
    single = entry("a", 9.0, None, None)  # one run has no interval
    assert "from c." in site._answer([("a", single), ("c", some[2])])
    assert site._labels([some[0], single, some[1]]) == [
        "a one, 2 workers",
        "a one, 2 workers",
        "b, 2 workers",
    ]


def test_a_title_has_task_scale_and_goal_and_the_line_below_has_the_rest() -> None:
    (group,) = site.groups(studies.study("network=1gbit_1ms", workers=(2, 4), repeats=2))
    part = site._loose(group)
    assert part.title == f"resnet20, mini: {group.goal}" and "1 Gbit/s and 1 ms" in part.about
    assert part.about.startswith("Image classification")
    assert [row.cells[0].text[0] for row in part.table.rows] == ["4", "2"] and part.chart and part.chart.layer


def test_cost_over_time_joins_the_frontier_and_greys_what_it_dominates() -> None:
    """Of (s, USD) (1, 9), (2, 4), (3, 5) and (4, 1) the third is slower and dearer than the second."""
    points = [("a", 1.0, 9.0), ("b", 2.0, 4.0), ("c", 3.0, 5.0), ("d", 4.0, 1.0)]
    offers = [
        frontier.FrontierPoint(
            name, 2, MedianEstimate(s, 0.9 * s, 1.1 * s, n=3), MedianEstimate(usd, 0.5 * usd, 2 * usd, n=3)
        )
        for name, s, usd in points
    ]
    chart = frontier.frontier(offers, title="Cost over time", about="")
    joined, dominated = (drawings.series(chart)[name] for name in ("on the frontier", "dominated"))
    assert [(row["x"], row["y"]) for row in joined] == [(1, 9), (2, 4), (4, 1)]
    assert [(row["x"], row["y"]) for row in dominated] == [(3, 5)]
    assert [(row["high"], row["x_low"]) for row in joined] == [(18, 0.9), (8, 1.8), (2, 3.6)]
    assert {row["series"] for row in drawings.marked(chart, "line")} == {"on the frontier"}
    named = {row["annotation"] for row in drawings.marked(chart, "text")}
    assert named == {"a, 2 workers", "b, 2 workers", "d, 2 workers"}
    assert drawings.looks(chart, "fill") == {"on the frontier": marks.COLOURS[0], "dominated": marks.GREY}
    assert "c, 2 workers: 3.0 s, 5.00 USD" in chart.description


@pytest.mark.plugin("prediction")
def test_a_study_with_a_price_is_predicted_for_other_hardware_in_its_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forecast = pytest.importorskip("mlbench.plugins.prediction.forecast")
    monkeypatch.setattr(forecast, "DRAWS", 20)  # the intervals' ends are not looked at
    grouped = site.groups(studies.study("hardware=gcp_n1_t4", workers=(1, 2, 4), repeats=2))
    (part,) = page.predicted(grouped)
    names = {row.cells[0].text for row in part.table.rows}
    assert "gcp_n1_t4" in names and len(names) > 3
    assert any(row.apart for row in part.table.rows) and not all(row.apart for row in part.table.rows)
    assert part.chart and part.chart.layer and part.answer.startswith("Fastest: ")
    text = page.page(grouped[0].records, study=STUDY, references=[], grouped=grouped, parts=[part])
    assert "Predicted cost" in text and "in italics" in text
    assert page.predicted(site.groups(studies.study(workers=(1, 2), repeats=2))) == []  # no price
