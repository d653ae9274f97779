"""The documentation builds without a warning, and every page and link can be followed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import doc_pages
import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = doc_pages.build(folder)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in site.rglob("*.html") if "_static" not in path.parts}


@pytest.mark.slow
def test_links_and_their_anchors_lead_somewhere(site: Path) -> None:
    texts, dead = pages(site), []
    for page, text in texts.items():
        for href in re.findall(r'(?:href|src)="([^"]+)"', text):
            link = urlsplit(href)
            if link.scheme or link.netloc or page.name in ("genindex.html", "search.html"):
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            fragment = target in texts and link.fragment
            if not target.exists() or (fragment and f'id="{unquote(link.fragment)}"' not in texts[target]):
                dead.append((str(page.relative_to(site)), href))
    assert dead == []


@pytest.mark.slow
def test_the_reference_is_made_from_the_code_and_notebooks_have_their_outputs(site: Path) -> None:
    page = (site / "docs" / "reference.html").read_text()
    for text in ("--fail-if-slower", "max_usd", "mlbench results mlflow", "workers_per_node", "load_runs"):
        assert text in page
    page = (site / "notebooks" / "scaling.html").read_text()
    assert "Fastest to top1_accuracy" in page and '<table border="1" class="dataframe">' in page
    pictures = re.findall(r'src="([^"]+\.png)"', page)
    assert len(pictures) >= 8
    assert all((site / "notebooks" / picture).resolve().exists() for picture in pictures)


def test_every_group_of_the_configuration_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    groups = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}
    assert set(re.findall(r"^```{configuration} (\w+)$", page, re.M)) == groups | {"config"}


def test_what_the_readme_installs_is_what_ci_installs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install -q -r requirements-dev.txt" in script and "python3 -m venv" in script
    pins = (ROOT / "requirements.txt").read_text()
    for line in doc_pages.commands(ROOT / "README.md"):
        if line.startswith("pip install torch=="):
            assert line.split()[2] in pins


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "docs" / "reference.md"], ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(ROOT / "notebooks" / "sample")
    for block in doc_pages.blocks(page, "python"):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert ended.returncode == 0 and "Fastest to" in ended.stdout, ended.stderr
