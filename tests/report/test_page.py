"""The page in a real browser: figures and rows are there, no script fails, nothing is fetched."""

import csv
import io
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

import chromium
import pytest
import studies

from mlbench.analysis import published
from mlbench.record.record import Record
from mlbench.report import page, tables, writer
from mlbench.report.charts import NAMES

pytestmark = pytest.mark.slow

T4 = "hardware=gcp_n1_t4"
EVIL = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>{{ 7 * 6 }}$x^$"
STUDY = writer.StudyText(
    f"Scaling {EVIL}",
    "How many workers, at what price, and how sure are we?",
    ("python -m mlbench.sweep task=resnet20 workers=1,2,4 repeats=3",),
    (writer.Planned("task=resnet20 workers=16", "none", 5, f"no room {EVIL}"),),
)


def made() -> list[Record]:
    """Return a study with a missed run, whose texts try to break out of the page."""
    records = studies.study(T4, repeats=3)
    evil = {"run_id": f"evil {EVIL}", "error": EVIL, "warnings": [EVIL], "caveats": []}
    records[0] = records[0].model_copy(update={"run_id": "=1+1"})  # a formula to a spreadsheet
    return [*records, studies.run(4, 9, T4, time=40, status="diverged", **evil)]


@pytest.fixture(scope="module")
def html() -> str:
    return page.page(made(), study=STUDY, references=published.load(task="resnet20"))


@pytest.fixture(scope="module")
def path(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Page]:
    if chromium.PROGRAM is None:
        pytest.skip("there is no Chromium on this machine")
    with chromium.browse() as open_page:
        yield open_page


@pytest.fixture(scope="module")
def opened(path: Path) -> Iterator[chromium.Page]:
    """Yield the page with all its figures in a browser of its own; each test leaves it as it was."""
    if chromium.PROGRAM is None:
        pytest.skip("there is no Chromium on this machine")
    with chromium.browse() as page:
        page.open(path.as_uri())
        ready(page)
        yield page


def ready(browser: chromium.Page) -> None:
    """Wait until every figure is drawn."""
    drawn = (
        "[...document.querySelectorAll('.live')].filter(e => e.querySelector('svg .role-mark path')).length"
    )
    browser.until(lambda: browser.ask(drawn) == len(NAMES))


def test_the_browser_draws_every_figure_without_an_error_or_a_request(
    browser: chromium.Page, path: Path
) -> None:
    browser.open(path.as_uri())
    ready(browser)
    assert browser.errors() == []
    assert browser.requests() == [path.as_uri()]
    captions = browser.ask("[...document.querySelectorAll('figcaption strong')].map(e => e.innerText)")
    assert len(captions) == len(NAMES)
    # What is drawn is the data: one mark for each run, by Vega's own paths.
    times = "document.querySelectorAll('#figure-0-time_to_accuracy .mark-symbol.role-mark path').length"
    assert browser.ask(times) == 3 + 9 + 1  # medians, runs that reached the goal, one that missed it
    bars = "document.querySelectorAll('#figure-0-phases .mark-rect.role-mark path').length"
    assert browser.ask(bars) >= 3 * 6  # three points, six phases at least


def test_the_rows_are_in_the_page(opened: chromium.Page) -> None:
    rows = "[...document.querySelectorAll('{} tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    points = opened.ask(rows.format("table.points"))
    assert [row[0] for row in points] == ["1", "2", "4"]
    assert points[2][1] == "3 of 4"
    assert len(opened.ask(rows.format("table.runs"))) == 10
    (lost,) = opened.ask(rows.format("table.missing"))
    assert lost[:2] == ["task=resnet20 workers=16", "5"]
    text = opened.ask("document.body.innerText")
    assert "mlbench.sweep task=resnet20 workers=1,2,4" in text
    assert "Published reference results" in text
    assert opened.ask("document.querySelectorAll('details.published table tbody tr').length") > 10


def test_texts_from_records_stay_texts(opened: chromium.Page) -> None:
    assert opened.ask("window.broken") is None
    assert opened.ask("document.querySelectorAll('img:not(.still img)').length") == 0
    assert EVIL in opened.ask("document.querySelector('h1').textContent")


def test_without_scripts_the_still_pictures_stand_there(browser: chromium.Page, path: Path) -> None:
    browser.open(path.as_uri(), scripts=False)
    shown = "[...document.querySelectorAll('{}')].filter(e => e.getBoundingClientRect().height > 100).length"
    assert browser.ask(shown.format(".still")) == len(NAMES)
    assert browser.ask(shown.format(".live")) == 0


def test_print_has_the_still_pictures(opened: chromium.Page) -> None:
    shown = "[...document.querySelectorAll('{}')].filter(e => e.getBoundingClientRect().height > 100).length"
    assert opened.ask(shown.format(".live")) == len(NAMES)
    opened.send("Emulation.setEmulatedMedia", media="print")
    assert opened.ask(shown.format(".live")) == 0
    assert opened.ask(shown.format(".still")) == len(NAMES)
    opened.send("Emulation.setEmulatedMedia", media="")


def axe(browser: chromium.Page) -> list[str]:
    """Return what axe finds that keeps readers out, with the elements."""
    script = Path(str(files("axe_core_python") / "axe.min.js")).read_text()
    browser.send("Runtime.evaluate", expression=script)
    result = browser.ask(
        "axe.run(document).then(r => JSON.stringify(r.violations.map(v => [v.id, v.nodes[0].html])))"
    )
    return json.loads(result)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_reader_is_kept_out(browser: chromium.Page, path: Path, width: int) -> None:
    browser.open(path.as_uri(), width=width)
    ready(browser)
    assert axe(browser) == []


def test_a_reader_filters_by_workers(opened: chromium.Page) -> None:
    rows = "[...document.querySelectorAll('table.{} tbody tr')].filter(r => r.offsetHeight).length"
    assert opened.ask(rows.format("runs")) == 10
    pick = "(() => {{ const s = document.querySelector('select[name={}]'); s.value = '{}'; "
    pick += "s.dispatchEvent(new Event('change')); }})()"
    opened.ask(pick.format("workers", 2))
    assert opened.ask(rows.format("runs")) == 3 and opened.ask(rows.format("points")) == 1
    opened.ask(pick.format("workers", ""))
    assert opened.ask(rows.format("runs")) == 10


def test_a_figure_s_numbers_and_picture_can_be_saved(opened: chromium.Page) -> None:
    href = "document.querySelector('#figure-0-time_to_accuracy .tools a[download$={}]').href"
    kind, _, text = unquote(opened.ask(href.format("csv"))).partition(",")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert kind.startswith("data:text/csv") and len(rows) == 3 + 9 + 1
    assert {float(row["x"]) > 0 and float(row["y"]) > 0 for row in rows} == {True}
    assert any(value.startswith("'=1+1") for row in rows for value in row.values())
    assert not any(str(value).startswith("=") for row in rows for value in row.values())
    assert opened.ask(href.format("svg")).startswith("data:image/svg+xml;base64,")


def test_an_axis_becomes_logarithmic_and_linear_again(opened: chromium.Page) -> None:
    figure = "#figure-0-time_to_accuracy"
    height = f"document.querySelector('{figure} .mark-symbol.role-mark path').getAttribute('transform')"
    before = opened.ask(height)
    click = f"document.querySelector('{figure} .tools button').click()"
    opened.ask(click)
    opened.until(lambda: opened.ask(height) != before)
    opened.ask(click)
    opened.until(lambda: opened.ask(height) == before)
    assert opened.errors() == []


def test_twelve_runs_print_on_eight_pages(opened: chromium.Page) -> None:
    pdf = b64decode(opened.send("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8


def test_several_tasks_begin_with_a_summary() -> None:
    records = [*studies.study(T4, repeats=3), *studies.study("task=logreg", repeats=1)]
    text = page.page(records, study=STUDY, references=[])
    summary = text[text.index('id="summary"') : text.index('class="group"')]
    rows = re.findall(r"<tr data-task.*?</tr>", summary)
    assert len(rows) == 2 and "too few runs" in rows[0] and "intervals" in rows[1] and "USD" in rows[1]
    assert "<option>logreg</option><option>resnet20</option>" in text


def test_a_caveat_of_several_runs_is_written_once() -> None:
    long = "the machine of this run computed at another speed than the others"
    records = [run.model_copy(update={"caveats": [long]}) for run in studies.study(T4, repeats=3)]
    table = tables.runs(records, {})
    assert table.notes == [long] and {row.cells[-1].text for row in table.rows} == {"[1]"}


def test_on_a_phone_the_tables_scroll_and_the_page_does_not(browser: chromium.Page, path: Path) -> None:
    browser.open(path.as_uri(), width=360, height=740)
    ready(browser)
    assert browser.ask("document.documentElement.scrollWidth") <= 360
    assert browser.ask("document.querySelector('table.points').parentNode.scrollWidth") > 360
    assert browser.errors() == []


def test_the_page_is_small(html: str) -> None:
    assert len(html.encode()) < 1.5e6  # bytes; 0.9 MB of them are Vega


def test_the_page_asks_nothing_of_any_network(html: str) -> None:
    class Addresses(HTMLParser):
        found: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [
                value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")
            ]

    parser = Addresses()
    parser.feed(re.sub(r"<script>.*?</script>", "", html, flags=re.S))
    assert parser.found and all(address.startswith(("data:", "#")) for address in parser.found)
    assert "default-src 'none'" in html  # the browser refuses what the library might ask for


def test_the_embedded_numbers_are_json_that_ends_no_element(html: str) -> None:
    block = re.search(r'<script type="application/json" id="figures-data">(.*?)</script>', html, re.S)
    assert block
    assert not set("<>&") & set(block.group(1))
    figures = json.loads(block.group(1))
    assert sorted(figures) == sorted(f"figure-0-{name}" for name in NAMES)


def test_a_study_without_runs_has_a_page_that_says_so() -> None:
    text = page.page([], study=STUDY, references=[])
    assert "No run of" in text
    assert "no room" in text


def test_published_results_stand_beside_the_tasks_own_data_alone() -> None:
    """A user's own files and the 80/20 split are other data sets than the published one."""
    split = studies.study("task=logreg", "division=open", "task.validation=split", repeats=1)
    references = published.load(task="logreg")
    alone = page.page(split, study=STUDY, references=references)
    assert "logreg, mini, task.validation=split: " in alone
    assert "Published reference results" not in alone
    both = page.page([*split, *studies.study("task=logreg", repeats=1)], study=STUDY, references=references)
    assert both.count("Published reference results") == 1
    assert both.index("Published reference results") < both.index("<h2>logreg, mini, task.validation=split: ")
