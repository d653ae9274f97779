"""The site of several studies, made from exports, in a real browser."""

import re
from pathlib import Path

import chromium
import pytest
import sample
import studies
from conftest import ROOT
from driven import Run
from screenshots import save
from test_page import STUDY, axe

from mlbench import results
from mlbench.analysis.chart import GREYED
from mlbench.analysis.points import MedianEstimate
from mlbench.record import official
from mlbench.report import page, site
from mlbench.report.charts import frontier

SUBMISSIONS = ROOT / "submissions" / "mlbench"

pytestmark = pytest.mark.slow


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
    assert '<a href="one.html">one</a>: 2 runs' in index and "4.0 s" in index


def test_points_of_two_curves_are_told_apart_in_the_leaderboard() -> None:
    task = studies.run(1, 0, time=9).experiment.plain()["task"]
    other = studies.study(workers=(4,), repeats=3, experiment={"task": task | {"lr": 0.7}})
    other = [run.model_copy(update={"key": "lr", "run_id": f"lr {run.run_id}"}) for run in other]
    (group,) = site.groups([*studies.study(workers=(4,), repeats=3), *other])
    cells = [row.cells[0] for row in site._table(group).rows]
    assert {cell.text for cell in cells} == {"4 x gloo, ddp"} and "lr 0.7" in {cell.below for cell in cells}
    assert len({cell.below for cell in cells}) == 2


@pytest.mark.wing("emulation")
def test_the_leaderboard_names_emulated_networks_and_repeats_claims_as_claims(tmp_path: Path) -> None:
    """Every run of a site is imported, so what was official where it was measured is a claim here."""
    claims = {"official_reasons": [official.IMPORTED], "imported": True}
    real = studies.study(workers=(2,), repeats=3, **claims)
    emulated = studies.study("network=1gbit_1ms", workers=(2,), repeats=3)
    crowd = [studies.run(4, seed, time=1 + seed, oversubscribed=True) for seed in range(3)]
    text = site.write([*real, *emulated, *crowd], tmp_path)[0].read_text()
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert "emulated" not in titles[0] and "emulated network 1 Gbit/s and 1 ms" in titles[1]
    first, second = text.split("<h2>")[1:3]
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
@pytest.mark.parametrize(("width", "name"), [(1100, "site"), (390, "site-phone")])
def test_the_leaderboard_is_readable_on_every_width(tmp_path: Path, width: int, name: str) -> None:
    assert results.main(["site", str(sample.SAMPLE), str(SUBMISSIONS), f"to={tmp_path}"]) == 0
    index = tmp_path / "index.html"
    with chromium.browse() as browser:
        browser.open(index.as_uri(), width=width, height=760)
        points = "[...r.cells].map(c => c.innerText).find(text => text.includes(' x gloo, ddp'))[0]"
        rows = f"[...t.tBodies[0].rows].map(r => {points}).join(' ')"
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
        figures = "[...document.querySelectorAll('.group')].map(s => s.querySelectorAll('figure').length)"
        assert browser.ask(figures)[:7] == [0, 0, 0, 1, 1, 0, 0]  # two points of one count are in the table
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert axe(browser) == [] and browser.errors() == [] and browser.requests() == [index.as_uri()]
        save(browser, name)
        browser.open((tmp_path / f"{sample.STUDY}.html").as_uri(), width=width, height=760)
        assert "Summary" in browser.ask("document.body.innerText")
        browser.until(lambda: browser.ask("document.querySelectorAll('.live svg').length") >= 8)
        save(browser, name.replace("site", "report"))


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
    drawn = {trace.label: trace for trace in chart.traces}
    assert [(list(trace.x), list(trace.y)) for trace in (drawn["on the frontier"], drawn["dominated"])] == [
        ([1, 2, 4], [9, 4, 1]),
        ([3], [5]),
    ]
    assert list(drawn["on the frontier"].high) == [18, 8, 2] and list(drawn["on the frontier"].x_low) == [
        0.9,
        1.8,
        3.6,
    ]
    named = {text for trace in chart.traces for text in trace.annotations}
    assert named == {"a, 2 workers", "b, 2 workers", "d, 2 workers"}
    assert drawn["dominated"].style == GREYED and not drawn["dominated"].low
    assert "c, 2 workers: 3.0 s, 5.00 USD" in page.picture(chart).alternative


@pytest.mark.wing("prediction")
def test_a_study_with_a_price_is_predicted_for_other_hardware_in_its_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forecast = pytest.importorskip("mlbench.wings.prediction.forecast")
    monkeypatch.setattr(forecast, "DRAWS", 20)  # the intervals' ends are not looked at
    grouped = site.groups(studies.study("hardware=gcp_n1_t4", workers=(1, 2, 4), repeats=2))
    (part,) = page.predicted(grouped)
    names = {row.cells[0].text for row in part.table.rows}
    assert "gcp_n1_t4" in names and len(names) > 3
    assert any(row.apart for row in part.table.rows) and not all(row.apart for row in part.table.rows)
    assert part.chart and not part.chart.empty and part.answer.startswith("Fastest: ")
    text = page.page(grouped[0].records, study=STUDY, references=[], grouped=grouped, parts=[part])
    assert "Predicted cost over time to accuracy" in text and "in italics" in text
    assert page.predicted(site.groups(studies.study(workers=(1, 2), repeats=2))) == []  # no price
