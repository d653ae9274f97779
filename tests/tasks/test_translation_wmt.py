"""WMT's archives in their own layout, from a server on this machine to batches, whole and damaged."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mirror import Mirror, serve

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, download
from mlbench.tasks.translation import batches, cipher, data, wmt
from mlbench.training.worker import Worker

SAID = cipher.corpus(260, seed=7)
TRAIN, TEST = SAID[:240], SAID[240:]


def tgz(members: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in members.items():
            content = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def bitext(stem: str, pairs: list[tuple[str, str]]) -> dict[str, str | bytes]:
    english, german = ("".join(pair[side] + "\n" for pair in pairs) for side in (0, 1))
    return {f"{stem}.de": german, f"{stem}.en": english}


def sgml(kind: str, language: str, lines: list[str]) -> str:
    """A test set as WMT 2014 published it, in two documents."""
    documents = ""
    for part, of in enumerate((lines[:5], lines[5:])):
        segments = "".join(
            f'<seg id="{number}">{line.replace("&", "&amp;")}</seg>\n' for number, line in enumerate(of, 1)
        )
        documents += (
            f'<doc sysid="ref" docid="paper.{part}" genre="news" origlang="de">\n<p>\n{segments}</p>\n'
        )
        documents += "</doc>\n"
    head = f'<{kind}set setid="newstest2014-deen" srclang="any" trglang="{language}">\n'
    return f"{head}{documents}</{kind}set>\n"


TESTED = [("Knowledge & power.", "Wissen & Macht."), *TEST]
ARCHIVES: dict[str, dict[str, str | bytes]] = {
    wmt.EUROPARL.archive.file: bitext("training/europarl-v7.cs-en", [("x", "y")])
    | bitext("training/europarl-v7.de-en", TRAIN[:120]),
    wmt.COMMONCRAWL.archive.file: bitext(
        "commoncrawl.de-en",
        [*TRAIN[120:200], ("", "leer"), ("Привет", "Hallo"), ("a", "b " * 81), ("bad \udc80 byte", "Byte")],
    )
    | {"commoncrawl.de-en.annotation": "http://one.example\n"},
    wmt.NEWS_11.archive.file: bitext("training-parallel-nc-v11/news-commentary-v11.de-en", TRAIN[200:]),
    wmt.NEWS_12.archive.file: bitext("training/news-commentary-v12.de-en", TRAIN[200:230]),
    wmt.DEV.file: {
        "dev/newstest2014-deen-ref.en.sgm": sgml("ref", "en", [pair[0] for pair in TESTED]),
        "dev/newstest2014-deen-src.de.sgm": sgml("src", "de", [pair[1] for pair in TESTED]),
        "dev/newstest2013.de": "other\n",
    },
}
# the one line that is not UTF-8
crawled = ARCHIVES[wmt.COMMONCRAWL.archive.file]
crawled["commoncrawl.de-en.en"] = str(crawled["commoncrawl.de-en.en"]).encode(errors="surrogateescape")


def wanting(name: str) -> SimpleNamespace:
    return SimpleNamespace(dataset=name, source="en", target="de", train_files=None, test_files=None)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serve the archives, and let the task's own sources point there."""
    monkeypatch.setattr(download, "PAUSES_S", ())
    with serve() as mirror:
        publish(mirror, monkeypatch)
        yield mirror


def publish(mirror: Mirror, monkeypatch: pytest.MonkeyPatch, **changed: bytes) -> None:
    mirror.files = {name: tgz(members) for name, members in ARCHIVES.items()} | changed

    def here(archive: download.Archive) -> download.Archive:
        content = mirror.files[archive.file]
        sums = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return replace(archive, urls=(mirror.url + archive.file,), **sums)

    for name, parts in wmt.TRAINED_ON.items():
        parts = tuple(part._replace(archive=here(part.archive)) for part in parts)
        monkeypatch.setitem(wmt.TRAINED_ON, name, parts)
    monkeypatch.setattr(wmt, "DEV", here(wmt.DEV))


def test_archives_become_batches(mirror: Mirror, tmp_path: Path) -> None:
    steps = []
    folder = data.prepare_dataset(
        wanting("wmt16_en_de"), tmp_path, progress=lambda step, *_: steps.append(step)
    )
    dataset = data.open_dataset(folder)
    assert dataset.references.to_pylist() == [pair[1] for pair in TESTED] and len(dataset.test) == 21
    assert len(dataset.train) == 240  # empty, Cyrillic, too long and broken lines are dropped
    for number, (_, german) in enumerate(TRAIN):
        begin, end = dataset.train.target_offsets[number : number + 2]
        assert dataset.load_test().detokenise(dataset.train.targets[begin:end]) == german
    manifest = arrow.verify(folder)
    assert manifest["pairs_read"] == 244
    assert [each["file"] for each in manifest["inputs"]] == [
        "training-parallel-europarl-v7.tgz",
        "training-parallel-commoncrawl.tgz",
        "training-parallel-nc-v11.tgz",
        "wmt19-dev.tgz",
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "croissant.json", "manifest.json", "test.arrow", "train.arrow", "vocabulary.arrow",
    ]  # fmt: skip
    assert list(dict.fromkeys(steps))[4:] == [
        "unpack", "tokenise and clean", "learn sub-words", "write train", "write test", "write vocabulary",
    ]  # fmt: skip
    budget = batches.BatchBudget("sentences", 64, 16, 4)
    updates = batches.BucketedSteps(dataset.train, budget, max_length=75, worker=Worker(seed=1))
    assert [[len(batch.source) for batch in update] for update in updates(0)] == [[16] * 4] * 3


def test_the_transformers_data_keep_every_pair_with_two_sides(mirror: Mirror, tmp_path: Path) -> None:
    dataset = data.open_dataset(data.prepare_dataset(wanting("wmt17_en_de"), tmp_path))
    assert len(dataset.train) == 120 + 80 + 3 + 30
    lengths = np.diff(dataset.train.target_offsets)
    assert lengths.max() >= 81
    assert mirror.requests and not any("nc-v11" in name for name, _ in mirror.requests)


def changed(file: str, change: dict[str, str | bytes | None]) -> dict[str, bytes]:
    members = {name: text for name, text in (ARCHIVES[file] | change).items() if text is not None}
    return {file: tgz(members)}


NEWS, CRAWL, DEV = wmt.NEWS_11.archive.file, wmt.COMMONCRAWL.archive.file, wmt.DEV.file
WHOLE = tgz(ARCHIVES[NEWS])
FLIPPED = WHOLE[:400] + bytes([WHOLE[400] ^ 255]) + WHOLE[401:]
DAMAGED = [
    ({NEWS: WHOLE[: len(WHOLE) // 2]}, r"nc-v11\.tgz is damaged or truncated"),
    ({NEWS: FLIPPED}, r"nc-v11\.tgz is damaged or truncated"),
    ({NEWS: b"<html>not an archive</html>"}, r"nc-v11\.tgz is damaged or truncated"),
    (changed(CRAWL, {"commoncrawl.de-en.en": None}), r"commoncrawl\.tgz has no file commoncrawl\.de-en\.en"),
    (
        changed(CRAWL, {"commoncrawl.de-en.en": "one\n"}),
        r"de-en\.en ends before line 2, .*de-en\.de does not",
    ),
    (
        changed(DEV, {"dev/newstest2014-deen-src.de.sgm": "<srcset></srcset>"}),
        r"src\.de\.sgm .* has no <seg>",
    ),
    (
        changed(DEV, {"dev/newstest2014-deen-src.de.sgm": sgml("src", "de", ["nur einer"])}),
        r"src\.de\.sgm ends before line 2",
    ),
]


@pytest.mark.parametrize(("files", "sentence"), DAMAGED)
def test_damaged_archives_fail_with_a_sentence(
    files: dict[str, bytes],
    sentence: str,
    mirror: Mirror,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(mirror, monkeypatch, **files)
    with pytest.raises(UserError, match=sentence):
        data.prepare_dataset(wanting("wmt16_en_de"), tmp_path)
    assert not (tmp_path / "wmt16_en_de").exists()
    assert not list(tmp_path.glob(".wmt16_en_de.writer*"))


def test_an_entry_that_leads_elsewhere_is_written_where_it_belongs(tmp_path: Path) -> None:
    archive = tmp_path / "a.tgz"
    archive.write_bytes(tgz({"../../outside/a.en": "one\n", "/etc/a.de": "eins\n"}))
    (tmp_path / "in").mkdir()
    wmt.unpack(archive, ["a.en", "a.de"], tmp_path / "in")
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["a.de", "a.en"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tgz", "in"]


def test_sources_are_pinned() -> None:
    for archive in (
        wmt.EUROPARL.archive,
        wmt.COMMONCRAWL.archive,
        wmt.NEWS_11.archive,
        wmt.NEWS_12.archive,
        wmt.DEV,
    ):
        assert archive.sha256 and len(archive.sha256) == 64 and archive.size
        assert archive.urls[0].startswith(("http://www.statmt.org/", "http://data.statmt.org/"))
