"""What pages name is there."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

YAML = sorted([*(ROOT / "conf").glob("**/*.yaml"), *ROOT.glob("mlbench/wings/**/*.yaml")])
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *ROOT.glob("mlbench/**/README.md")])


def of_a_removed_wing(path: str) -> bool:
    """Return whether a path lies in a folder of mlbench/wings that is not there (tests/test_wings.py)."""
    parts = Path(path).parts
    return parts[:2] == ("mlbench", "wings") and not ROOT.joinpath(*parts[:3]).exists()


def test_contributing_names_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where")[2].partition("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 20
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row) if not of_a_removed_wing(path)]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


EXTERNAL = re.compile(r"https?://[^\s<>\"'`|\\)\]]+")
HERE = ("127.0.0.1", "localhost", "mlflow")  # names in examples of a server of one's own


@pytest.mark.parametrize("page", [*PAGES, *YAML], ids=lambda page: page.name)
def test_links_to_other_sites_are_well_formed(page: Path) -> None:
    """Whether they answer is asked where there is a network: the README has the command."""
    for match in EXTERNAL.findall(page.read_text()):
        link = urlsplit(match.rstrip(".,;:"))
        if link.hostname in HERE:
            continue
        assert link.scheme == "https", match
        assert link.hostname and re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", link.hostname), match
        assert link.port is None and link.username is None, match
        assert re.fullmatch(r"[\w./~%@:=+,()#-]*", link.path + link.fragment), match


def test_every_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.glob("**/*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_a_folder_s_readme_is_short() -> None:
    folders = (ROOT / "conf", *ROOT.glob("mlbench/*"), *ROOT.glob("mlbench/wings/*"))
    pages = [path for folder in folders if (path := folder / "README.md").exists()]
    assert [page for page in pages if len(list(filter(None, page.read_text().splitlines()))) > 12] == []


def test_the_package_s_dependencies_are_pinned_in_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [Requirement(line.partition("#")[0].strip()) for line in lines if line and line[0] not in "#-"]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    wanted = [Requirement(line) for group in (project["dependencies"], *extras.values()) for line in group]
    assert {canonicalize_name(one.name) for one in wanted} == versions.keys()
    assert [str(one) for one in wanted if versions[canonicalize_name(one.name)] not in one.specifier] == []
