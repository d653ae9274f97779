"""Forgeries: none is official, and each says why. An untampered run is, against a reference of its own."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from forgeries import FORGERIES, OFFICIAL, WORDS
from test_build_record import FROZEN, RESULT, SOFTWARE, built, log

import mlbench
from mlbench.config import compose
from mlbench.config.errors import UserError, comparable
from mlbench.datasets import arrow, verify
from mlbench.record import official, provenance
from mlbench.record.build_record import build_record
from mlbench.record.official import PublishedDataset
from mlbench.terminal import full_card, result_card
from mlbench.tracking.run_files import result_file
from tools import freeze


def cards(record: Any) -> str:
    where: Any = {"folder": Path("r"), "tracking_uri": "sqlite:///x"}
    lines = [*full_card.full(record), *result_card.short(record, **where, width=400, ascii_only=True)]
    return " ".join(line.plain for line in lines)


def test_an_untampered_run_is_official() -> None:
    record = built(OFFICIAL)
    assert record.eligible and record.official_reasons == []
    assert "eligible yes" in " ".join(cards(record).split())
    named = result_file(record)
    assert named is not None and named[0] == "result.txt" and "not official" not in named[1]


def test_what_the_image_sets_is_no_reason() -> None:
    """The path to the driver of GKE, and what Docker's python image has, on which it is built."""
    environment = {
        "environment": {
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
            "PYTHON_VERSION": "3.11.13",
            "PYTHON_SHA256": "849da87a",
        }
    }
    nodes = [node | environment for node in RESULT["nodes"]]
    record = built(OFFICIAL, begun={"software": SOFTWARE | environment}, result=RESULT | {"nodes": nodes})
    assert record.official_reasons == []


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_not_official_and_its_card_says_why(name: str) -> None:
    run, reason = FORGERIES[name]
    record = built(OFFICIAL, **run)
    assert not record.eligible and len(record.official_reasons) == 1
    shown = " ".join(cards(record).split())
    assert "eligible yes" not in shown and reason in shown
    named = result_file(record)
    assert named is not None and named[0] == "result.txt" and "not official: " in named[1]


@pytest.mark.parametrize(("overrides", "reason"), WORDS)
def test_what_the_command_line_changed_is_a_reason(overrides: list[str], reason: str) -> None:
    record = built(*overrides)
    assert not record.eligible and any(sentence.startswith(reason) for sentence in record.official_reasons)
    assert reason.split(":")[0] in cards(record)


@pytest.mark.parametrize("field", [("task", "lr", 4.0), ("task", "goals", {"official": 60, "light": 50})])
def test_an_edited_recipe_or_goal_in_conf_is_not_official(field: tuple[str, str, Any]) -> None:
    """The closed reference is composed from the same files, so it shows no deviation."""
    whole = log(compose.compose([OFFICIAL]))
    whole[0]["value"]["experiment"][field[0]][field[1]] = field[2]
    record = build_record(whole, FROZEN)
    assert record.status == "goal_reached" and not record.deviations
    assert "recipe or a goal" in cards(record) and not record.eligible


def test_what_the_reference_does_not_know_makes_no_official_result() -> None:
    unknown = FROZEN.model_copy(
        update={
            "sources": None,
            "datasets": {"cifar10": PublishedDataset(rows=None, inputs=None, prepared=None)},
        }
    )
    reasons = built(OFFICIAL, frozen=unknown).official_reasons
    assert len(reasons) == 4 and all(" has no " in reason or "lacks" in reason for reason in reasons)


def test_the_results_of_a_release_are_held_against_its_own_reference() -> None:
    released = official.reference("0.2.0")
    assert released.version == "0.2.0" and released.sources
    assert official.reference("0.2.99").version == mlbench.__version__
    assert official.reference("../official") == official.reference()
    software = SOFTWARE | {"sources": released.sources}
    nodes = [node | {"sources": released.sources} for node in RESULT["nodes"]]
    begun = {"mlbench": "0.2.0", "software": software}
    whole = log(compose.compose([OFFICIAL]), result=RESULT | {"nodes": nodes}, begun=begun)
    reasons = build_record(whole).official_reasons
    assert reasons and all("the published cifar10" in reason for reason in reasons)
    begun["software"] = SOFTWARE | {"sources": "0" * 64}
    whole = log(compose.compose([OFFICIAL]), result=RESULT | {"nodes": nodes}, begun=begun)
    reason = "the sources are not those that mlbench 0.2.0 was released with"
    assert reason in build_record(whole).official_reasons


def prepared(root: Path) -> Path:
    """Write a data set of four rows."""

    def write(writer: arrow.DatasetWriter) -> None:
        source = root / "published.bin"
        source.write_bytes(b"published")
        writer.add_input(source)
        writer.write("train", [pa.record_batch({"x": pa.array([1.0, 2.0, 3.0, 4.0])})])

    return arrow.write_dataset(root / "data", write, manifest={"name": "data"})


def test_data_edited_after_preparation_is_refused_whatever_its_size_and_times(
    tmp_path: Path, as_stored: Any
) -> None:
    folder = prepared(tmp_path)
    first = verify.content(folder)
    assert first == verify.content(folder) and first.data_rows == {"train": 4}
    assert set(first.data_inputs) == {"published.bin"}
    path = folder / "train.arrow"
    before, content = path.stat(), bytearray(path.read_bytes())
    at = content.index(b"\0\0\0\0\0\0\0\x40")  # 2.0
    content[at + 6] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert arrow.read_split(folder, "train").num_rows == 4, "reading alone does not notice"
    with pytest.raises(UserError, check=as_stored):
        verify.content(folder)


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path)
    hashed: list[Path] = []
    digest = arrow.digest
    monkeypatch.setattr(verify.arrow, "digest", lambda path: hashed.append(path) or digest(path))
    verify.content(folder)
    verify.content(folder)
    assert [path.name for path in hashed] == ["train.arrow"]
    (folder / "train.arrow").touch()
    verify.content(folder)
    assert len(hashed) == 2
    (folder / verify.CHECKED).write_text("{")
    verify.content(folder)
    assert len(hashed) == 3


def test_the_frozen_reference_is_of_this_version_and_its_recipes() -> None:
    """`python tools/freeze.py` writes it again; a changed recipe or goal shows in the commit."""
    frozen = official.reference()
    assert frozen.version == mlbench.__version__
    assert frozen.recipes == freeze.recipes()
    assert "allreduce/quick" not in frozen.recipes  # a part of its task is no official result
    assert set(frozen.datasets) == set(freeze.PUBLISHED)


def test_released_sources_change_only_with_the_version() -> None:
    frozen = official.reference()
    assert frozen.sources in (None, provenance.sources()), "raise mlbench.__version__ and run freeze.py"
    released = frozen.measuring.get(comparable(mlbench.__version__))
    assert released in (None, freeze.measuring()), "a number may have moved: raise Major.Minor (rule R9)"


@pytest.mark.parametrize(
    ("released", "sentence"),
    [
        ("0.2.0", "mlbench 0.3.0.dev0 is a development version after 0.2.0"),
        (None, "mlbench 0.3.0.dev0 is a development version, and none is released yet"),
    ],
)
def test_a_development_version_says_after_which_release_it_is(released: str | None, sentence: str) -> None:
    """Card and record have the sentence; its Major.Minor is that of the release to come."""
    frozen = FROZEN.model_copy(update={"version": "0.3.0.dev0", "sources": None, "released": released})
    software = {"begun": {"mlbench": "0.3.0.dev0", "software": SOFTWARE | {"mlbench": "0.3.0.dev0"}}}
    record = built(OFFICIAL, frozen=frozen, **software)
    assert not record.eligible and record.official_reasons == [sentence]
    assert sentence in cards(record) and "not released" not in cards(record)
    assert comparable("0.3.0.dev0") == comparable("0.3.1") == "0.3" != comparable("0.2.0")


def test_a_development_version_is_not_frozen_as_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlbench, "__version__", "0.2.0")
    assert freeze.frozen(None, release=True, data=[]).released == "0.2.0"
    before = FROZEN.model_copy(update={"released": "0.2.0"})
    monkeypatch.setattr(mlbench, "__version__", "0.3.0.dev0")
    again = freeze.frozen(before, release=False, data=[])
    assert (again.version, again.released, again.sources) == ("0.3.0.dev0", "0.2.0", None)
    with pytest.raises(UserError, match="is a development version"):
        freeze.frozen(before, release=True, data=[])
