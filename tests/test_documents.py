"""What pages name is there, and the README's answers are those that its commands print."""

import re
import shlex
import tomllib
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import doc_pages
import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

YAML = sorted([*(ROOT / "conf").glob("**/*.yaml"), *ROOT.glob("mlbench/plugins/**/*.yaml")])
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *ROOT.glob("mlbench/**/README.md")])


def of_a_removed_plugin(path: str) -> bool:
    """Return whether a path lies in a folder of mlbench/plugins that is deleted (test_shipped_plugins.py)."""
    parts = Path(path).parts
    return parts[:2] == ("mlbench", "plugins") and not ROOT.joinpath(*parts[:3]).exists()


def test_contributing_names_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where")[2].partition("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 20
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row) if not of_a_removed_plugin(path)]
    assert [path for path in named if not (ROOT / path).exists()] == []


README = ROOT / "README.md"
PRICED = date(2026, 11, 25)  # the day of the README's answers: older prices are no basis for advice


def test_the_readme_is_short_and_begins_with_a_picture() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 110
    first = next(number for number, line in enumerate(lines) if line.startswith(("```", "![")))
    assert lines[first].startswith("![") and first < 8  # lines: title, sentence, picture


def answer(command: str) -> tuple[str, list[str]]:
    """Return the whole of the command that begins so, and the lines that the README shows of its answer."""
    blocks = (block.splitlines() for block in doc_pages.blocks(README, "console"))
    whole, *lines = next(lines for lines in blocks if lines[0].startswith(f"$ {command}"))
    return whole.removeprefix("$ "), [line for line in lines if line not in ("", "...")]


def unprinted(shown: list[str], printed: str) -> list[str]:
    """Return the lines that are not among those printed; `...` in a line stands for what it leaves out."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    patterns = {line: map(str.strip, " ".join(line.split()).split("...")) for line in shown}
    regular = {line: re.compile(".*".join(map(re.escape, parts))) for line, parts in patterns.items()}
    return [line for line, pattern in regular.items() if not any(map(pattern.fullmatch, lines))]


def test_the_readme_s_sweep_is_the_sample_s_and_so_is_its_answer(capsys: Any) -> None:
    from mlbench import results
    from mlbench.record import study

    sample = ROOT / "notebooks" / "sample"
    command, shown = answer("mlbench sweep ")
    name = shlex.split(command)[-1].removeprefix("study=")
    plan = study.load(study.folder(sample, name))
    assert plan is not None and name == plan.name
    overrides = {*plan.invocations[0].overrides, f"repeats={plan.invocations[0].repeats}"}
    assert {*shlex.split(command)[2:]} == overrides
    assert results.main(["show", f"study:{name}", f"output_root={sample}"]) == 0
    assert len(shown) >= 2 and unprinted(shown, capsys.readouterr().out) == []


def test_the_readme_s_prediction_is_what_its_command_prints(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = pytest.importorskip("mlbench.plugins.prediction.command")
    from mlbench import predict
    from mlbench.config import compose

    class Today(date):
        @classmethod
        def today(cls) -> date:
            return PRICED

    monkeypatch.setattr(command, "date", Today)
    whole, shown = answer("mlbench predict ")
    first_words = {line.split()[0] for line in shown}
    named = sorted(first_words & {*compose.choices("hardware")})  # all profiles take 13 s
    monkeypatch.setattr(command.forecast.compose, "choices", lambda group: named)
    assert predict.main(shlex.split(whole)[2:]) == 0
    assert len(named) == 2 and len(shown) >= 4 and unprinted(shown, capsys.readouterr().out) == []


def test_the_readme_s_picture_is_drawn_from_the_tables_of_today() -> None:
    """The values of every mark, as a reader's screen reader has them; else run tools/readme_picture.py."""
    pytest.importorskip("mlbench.plugins.prediction.command")
    from tools import readme_picture

    labels = re.compile(r'aria-label="([^"]*: [^"]*)"')
    stored = labels.findall(readme_picture.PICTURE.read_text())
    assert len(stored) > 20 and stored == labels.findall(readme_picture.svg())


def test_the_diagrams_of_the_concepts_are_those_of_their_script() -> None:
    """Else run tools/concept_diagrams.py."""
    from tools import concept_diagrams

    drawn = {"concept-run.svg": concept_diagrams.run(), "concept-step.svg": concept_diagrams.step()}
    assert {name: (concept_diagrams.IMAGES / name).read_text() for name in drawn} == drawn
    page = (ROOT / "docs" / "concepts.md").read_text()
    assert all(f"(images/{name})" in page for name in drawn)


EXTERNAL = re.compile(r"https?://[^\s<>\"'`|\\)\]]+")
HERE = ("127.0.0.1", "localhost", "mlflow")  # names in examples of a server of one's own


@pytest.mark.parametrize("page", [*PAGES, *YAML], ids=lambda page: page.name)
def test_links_to_other_sites_are_well_formed(page: Path) -> None:
    """Whether they answer is asked where there is a network: CONTRIBUTING.md has the command."""
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
    folders = (ROOT / "conf", *ROOT.glob("mlbench/*"), *ROOT.glob("mlbench/plugins/*"))
    pages = [path for folder in folders if (path := folder / "README.md").exists()]
    assert [page for page in pages if len(list(filter(None, page.read_text().splitlines()))) > 12] == []


def test_the_package_s_dependencies_are_pinned_in_requirements() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().splitlines()
    ]
    pins = [Requirement(line.partition("#")[0].strip()) for line in lines if line and line[0] not in "#-"]
    versions = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    listed = [project["dependencies"], *project["optional-dependencies"].values(), *groups.values()]
    wanted = [Requirement(line) for group in listed for line in group if isinstance(line, str)]
    wanted = [requirement for requirement in wanted if requirement.name != project["name"]]  # its extras
    assert {canonicalize_name(requirement.name) for requirement in wanted} == versions.keys()
    assert [
        str(requirement)
        for requirement in wanted
        if versions[canonicalize_name(requirement.name)] not in requirement.specifier
    ] == []
