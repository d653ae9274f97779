"""A site of submissions: what strangers wrote is text on it, and its folder is a data set for archives."""

import json
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import chromium
import pyarrow.parquet as pq
import pytest
import sample
import yaml
from conftest import ROOT
from test_page import axe

from mlbench import results
from mlbench.report import publication
from submissions import hand_in

pytestmark = pytest.mark.slow
PRICES = {"lab-a": 36.0, "lab-b": 20.0}  # USD an hour


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two submissions and the notebooks' sample as a site."""
    root = tmp_path_factory.mktemp("site")
    for index, (entity, usd) in enumerate(PRICES.items()):
        times = [time + index * 0.75 for time in (4.0, 4.5, 5.0)]
        price = {"usd_per_hour": usd, "date": "2026-11-24"}
        hand_in(
            root / "submissions", root / "runs", entity=entity, times=times, first_seed=1 + 10 * index,
            price=price, hardware=f"{entity}'s box & more",
        )  # fmt: skip
    arguments = [str(root / "submissions"), str(sample.SAMPLE), f"to={root / 'site'}"]
    assert results.main(["site", *arguments]) == 0
    return root / "site"


def test_a_submission_is_on_the_leaderboard_in_the_index_and_in_parquet(site: Path) -> None:
    index = json.loads((site / "index.json").read_text())
    first, second = index["points"]
    assert (first["entity"], first["rank"], second["entity"], second["rank"]) == ("lab-a", 1, "lab-b", 2)
    assert (
        first["name"] == f"lab-a/2026-11-24-two-cores/{first['key'][:12]}"
        and first["tier"] == "logs complete"
    )
    assert first["cost_usd"] == pytest.approx(9.0 * 36 / 3600)
    assert second["cost_usd"] == pytest.approx(10.5 * 20 / 3600)
    table = pq.read_table(site / "runs.parquet").to_pylist()
    assert len(table) == 6 + len(list(sample.SAMPLE.glob("*/record.json")))
    of_a = [row for row in table if row["entity"] == "lab-a"]
    assert sorted(row["time_to_accuracy"] for row in of_a) == [8.0, 9.0, 10.0]
    assert {row["tier"] for row in table if row["entity"] is None} == {"self-reported"}
    text = (site / "index.html").read_text()
    assert '<a href="lab-a-2026-11-24-two-cores.html">lab-a</a>' in text
    assert "time: lab-a, " in text and "9.0 s (8.0 s to 10.0 s), 0.0900 USD" in text
    assert "Cheapest: lab-b, " in text and "10.5 s (9.5 s to 11.5 s), 0.0583 USD" in text
    page = (site / "lab-a-2026-11-24-two-cores.html").read_text()
    assert "lab-a&#39;s box &amp;" in page and "licence CC-BY-4.0" in page and "tier: logs complete" in page
    hardware = (site / "hardware.html").read_text()
    assert "frontier: lab-b&#39;s box" in hardware
    others = (site / "published.html").read_text()
    assert (
        "MLPerf Training v0.5" in others and "read off a chart" in others and publication.TITLE not in others
    )


def test_the_folder_is_a_data_set_of_the_hub_and_a_deposit(site: Path) -> None:
    card = pytest.importorskip("huggingface_hub").DatasetCard.load(site / "README.md")
    assert card.data.license == "cc-by-4.0" and card.data.pretty_name == publication.TITLE
    (config,) = card.data.to_dict()["configs"]
    assert (site / config["data_files"]).is_file()
    deposit = json.loads((site / ".zenodo.json").read_text())
    assert deposit["upload_type"] == "dataset" and deposit["creators"] == [{"name": "A Laboratory"}]
    assert {"name": "Martin Jaggi", "type": "Other"} in deposit["contributors"]
    citation = yaml.safe_load((site / "CITATION.cff").read_text())
    (origin,) = citation["references"]
    own = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"][0]
    assert [" ".join(author.values()) for author in own["authors"]] == [
        author["name"] for author in origin["authors"]
    ]


def test_a_badge_is_an_image_whatever_its_words_are(site: Path) -> None:
    for path in sorted((site / "badges").iterdir()):
        assert (
            xml.etree.ElementTree.fromstring(path.read_text()).get("aria-label") == "mlbench: logs complete"
        )
    made = publication.badge("a", "<script>&", "#000")
    assert xml.etree.ElementTree.fromstring(made).get("aria-label") == "a: <script>&"


@pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("width", [1100, 390])
def test_every_page_is_readable_offline_by_everybody(site: Path, width: int) -> None:
    with chromium.browse() as page:
        for file in ("index.html", "hardware.html", "published.html", "lab-a-2026-11-24-two-cores.html"):
            page.open((site / file).as_uri(), width=width, height=760)
            assert page.ask("document.documentElement.scrollWidth") <= width
            assert axe(page) == [] and page.errors() == []
            assert page.requests() == [(site / file).as_uri()]
            links = page.ask("[...document.querySelectorAll('nav a, td a')].map(a => a.href)")
            assert all(Path(re.sub("^file://", "", link)).is_file() for link in links)
        page.open((site / "hardware.html").as_uri(), width=width, height=760)
        order = page.ask("[...document.querySelector('section').children].map(e => e.tagName).join(' ')")
        assert order.startswith("H2 DIV DIV DIV"), "the chart, then the sentence, then the table"
        page.ask("document.querySelector('nav a').focus()")
        assert page.ask("document.activeElement.innerText") == "Leaderboard"


def test_what_is_refused_is_on_no_page(tmp_path: Path, capsys: Any) -> None:
    hand_in(tmp_path / "submissions", tmp_path / "a", times=(4.0,))
    folder = hand_in(tmp_path / "submissions", tmp_path / "b", entity="lab-b", times=(4.25,), first_seed=11)
    (folder / "notes.html").write_text("<script>")
    assert results.main(["site", str(tmp_path / "submissions"), f"to={tmp_path / 'site'}"]) == 2
    output = capsys.readouterr()
    assert "two-cores: 'notes.html' is " in output.err
    assert "lab-b" not in (tmp_path / "site" / "index.html").read_text()
