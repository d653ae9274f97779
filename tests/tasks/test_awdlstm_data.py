"""The generated language's exact entropies; WikiText-2 from archive to numbers; users' own text."""

import hashlib
import io
import math
import zipfile
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mirror import serve

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.datasets import arrow, download
from mlbench.datasets.download import Archive
from mlbench.tasks.awdlstm import data, language

TINY: dict[str, Any] = {
    "topics": 2,
    "nouns": 2,
    "verbs": 1,
    "objects": 1,
    "adverbs": 1,
    "same_topic": 0.7,
    "before_verb": 0.5,
    "before_object": 0.4,
    "more_objects": 0.2,
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES_S", ())


def wanting(dataset: str = "agreement", **values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"dataset": dataset, "train_file": None, "valid_file": None, **values})


def texts(folder: Path) -> dict[str, list[str]]:
    """Return every split as words."""
    words = arrow.read_split(folder, "vocabulary").column("word").to_pylist()
    splits = [split for split in arrow.read_manifest(folder)["splits"] if split != "vocabulary"]
    return {
        split: [words[token] for token in arrow.column(arrow.read_split(folder, split), "token")]
        for split in splits
    }


# The generated language


@pytest.fixture(scope="module")
def agreement() -> language.Language:
    return language.agreement(**data.AGREEMENT["parameters"]["grammar"])


def test_the_optimum_is_the_entropy_rate_of_all_strings_counted_one_by_one():
    """An independent way: probabilities of whole strings, from the chain's occupation after a long time."""
    tiny = language.agreement(**TINY)
    states, words = tiny.probability.shape
    one_word = np.zeros((words, states, states))
    for state, word in product(range(states), range(words)):
        one_word[word, state, tiny.next_state[state, word]] = tiny.probability[state, word]
    move = one_word.sum(0)
    average = np.mean([np.linalg.matrix_power(move, n)[0] for n in range(5_000, 5_060)], axis=0)

    def entropy(length: int) -> float:
        paths = {(): average}
        for _ in range(length):
            longer = {(*s, w): b @ one_word[w] for s, b in paths.items() for w in range(words)}
            paths = {string: belief for string, belief in longer.items() if belief.sum() > 0}
        return -sum(p * math.log(p) for p in (belief.sum() for belief in paths.values()))

    conditional = math.exp(entropy(7) - entropy(6))  # of the seventh word given the six before it
    assert language.optimum(tiny) < conditional < language.optimum(tiny) * 1.02  # from above


def test_the_mini_goals_are_factors_of_the_optimum_and_beat_every_short_memory(agreement):
    goals, optimum = compose(["task=awdlstm", "scale=mini"]).task.goals, language.optimum(agreement)
    assert goals is not None
    assert goals.official == pytest.approx(1.1 * optimum, abs=0.005)
    assert goals.light == pytest.approx(1.2 * optimum, abs=0.005)
    text = language.sample(agreement, 500_000, seed=7).tolist()
    assert goals.light < two_words_of_memory(text[:450_000], text[450_000:]) < 28


def two_words_of_memory(train: list[int], test: list[int]) -> float:
    """Return the perplexity of a trigram model that backs off to bigrams (Witten and Bell 1991)."""
    counts = [Counter(zip(*(train[i:] for i in range(n)), strict=False)) for n in (1, 2, 3)]
    followers = [Counter(gram[:-1] for gram in count) for count in counts]
    totals = [Counter[tuple[int, ...]]() for _ in counts]
    for total, count in zip(totals, counts, strict=True):
        for gram, times in count.items():
            total[gram[:-1]] += times

    def probability(*gram: int) -> float:
        n, context = len(gram), gram[:-1]
        shorter = probability(*gram[1:]) if n > 1 else 1 / 300
        different, total = followers[n - 1][context], totals[n - 1][context]
        return (counts[n - 1][gram] + different * shorter) / (total + different) if total else shorter

    trigrams = zip(test, test[1:], test[2:], strict=False)
    return math.exp(-np.mean([math.log(probability(*gram)) for gram in trigrams]))


def test_the_manifest_tells_the_parameters_and_the_references(data_root, agreement):
    folder = data.prepare_dataset(wanting(), data_root)
    manifest = arrow.read_manifest(folder)
    assert manifest["parameters"] == data.AGREEMENT["parameters"]
    perplexity = dict(manifest["perplexity"])
    valid = arrow.column(arrow.read_split(folder, "valid"), "token")
    state, nats = 0, []
    for word in valid:
        nats.append(-math.log(agreement.probability[state, word]))
        state = agreement.next_state[state, word]
    assert perplexity.pop("optimum_on_valid") == pytest.approx(math.exp(np.mean(nats[1:])), rel=1e-9)
    assert perplexity == pytest.approx({"optimum": 15.1103166})
    assert len(valid) == 40_000 and manifest["splits"]["train"]["rows"] == 400_000
    assert texts(folder)["train"][:400] != texts(folder)["valid"][:400]


# WikiText-2

WIKI = {
    "wiki.train.tokens": " \n = Robert <unk> = \n \n Robert <unk> is an English film @-@ actor . \n"
    " He is 1 @.@ 5 m \n",
    "wiki.valid.tokens": " \n = Homarus gammarus = \n \n It is blue while alive . \n",
    "wiki.test.tokens": " \n = Café = \n It is an “ English ” word \n",
}
ZIP = "wikitext-2-v1.zip"


def expected(name: str) -> list[str]:
    return [word for line in WIKI[name].splitlines() for word in [*line.split(), "<eos>"]]


def pack(files: Mapping[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wikitext-2/", "")
        for name, text in files.items():
            archive.writestr(f"wikitext-2/{name}", text)
    return packed.getvalue()


def small_wikitext(monkeypatch, packed: bytes, urls: tuple[str, ...] = ()) -> None:
    """Let the data set `wikitext2` be the archive `packed` with the texts above."""
    sums: Any = {"sha256": hashlib.sha256(packed).hexdigest(), "md5": hashlib.md5(packed).hexdigest()}
    archive = Archive(tuple(url + ZIP for url in urls), ZIP, **sums, size=len(packed))
    monkeypatch.setattr(data, "WIKITEXT2_ARCHIVE", archive)
    tokens = {split: len(expected(f"wiki.{split}.tokens")) for split in ("train", "valid", "test")}
    monkeypatch.setattr(data, "WIKITEXT2_TOKENS", tokens)
    words = {word for name in WIKI for word in expected(name)}
    monkeypatch.setattr(data, "WIKITEXT2_VOCABULARY", len(words))


def lay_down(root: Path, packed: bytes) -> None:
    (root / "downloads").mkdir()
    (root / "downloads" / ZIP).write_bytes(packed)


def test_wikitext_is_fetched_and_becomes_numbers_of_words(tmp_path, monkeypatch):
    packed = pack(WIKI)
    with serve() as mirror:
        mirror.files = {ZIP: packed}
        small_wikitext(monkeypatch, packed, ("http://127.0.0.1:9/", mirror.url))
        seen: set[str] = set()
        folder = data.prepare_dataset(
            wanting("wikitext2"), tmp_path, progress=lambda step, *_: seen.add(step)
        )
        assert data.prepare_dataset(wanting("wikitext2"), tmp_path) == folder
        assert len(mirror.requests) == 1
    assert texts(folder) == {split: expected(f"wiki.{split}.tokens") for split in ("train", "valid", "test")}
    words = arrow.read_split(folder, "vocabulary").column("word").to_pylist()
    assert len(words) == len(set(words)) == data.WIKITEXT2_VOCABULARY
    assert "Café" in words  # of the test text alone: the vocabulary is that of all three
    opened = data.open_dataset(folder)
    assert opened.vocabulary == len(words) and opened.train.tolist()[:2] == [0, 1]
    assert arrow.verify(folder)["inputs"][0]["sha256"] == hashlib.sha256(packed).hexdigest()
    assert f"fetch {ZIP}" in seen and "write train" in seen
    assert sorted(path.suffix for path in folder.iterdir()) == [".arrow"] * 4 + [".json"] * 2


def test_an_archive_with_other_counts_is_not_wikitext(tmp_path, monkeypatch):
    packed = pack(WIKI)
    lay_down(tmp_path, packed)
    small_wikitext(monkeypatch, packed)
    monkeypatch.setattr(data, "WIKITEXT2_VOCABULARY", 33_278)
    with pytest.raises(UserError, match="instead of .* and 33,278"):
        data.prepare_dataset(wanting("wikitext2"), tmp_path)
    assert not (tmp_path / "wikitext2").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda: pack(WIKI)[:300], "damaged or truncated"),
        (lambda: pack({k: v for k, v in WIKI.items() if "valid" not in k}), "valid.tokens does not exist"),
        (lambda: pack(WIKI | {"wiki.valid.tokens": b"caf\xe9"}), "wiki.valid.tokens is not UTF-8 text"),
    ],
    ids=["truncated", "incomplete", "not UTF-8"],
)
def test_a_damaged_archive_is_told_in_a_sentence(damage, message, tmp_path, monkeypatch):
    packed = damage()
    lay_down(tmp_path, packed)
    small_wikitext(monkeypatch, packed)
    with pytest.raises(UserError, match=message):
        data.prepare_dataset(wanting("wikitext2"), tmp_path)
    assert not (tmp_path / "wikitext2").exists()


def test_the_official_numbers_are_those_of_the_paper():
    assert data.WIKITEXT2_TOKENS == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    assert data.WIKITEXT2_VOCABULARY == 33_278
    assert len(data.WIKITEXT2_ARCHIVE.urls) > 1 and data.WIKITEXT2_ARCHIVE.sha256 is not None


# A user's own text


def own(root: Path, train: str | bytes, valid: str | bytes = "a b\n", min_count: int = 2) -> Path:
    """Prepare two texts as a user's files."""
    files = {}
    for split, text in (("train", train), ("valid", valid)):
        files[f"{split}_file"] = root / f"{split}.txt"
        files[f"{split}_file"].write_bytes(text.encode() if isinstance(text, str) else text)
    return data.prepare_dataset(wanting(**files, min_count=min_count), root / "data")


def test_rare_and_new_words_become_unk(tmp_path):
    folder = own(tmp_path, "a b a\nb a c\n\n", "a c d b\n")
    assert texts(folder) == {
        "train": ["a", "b", "a", "<eos>", "b", "a", "<unk>", "<eos>", "<eos>"],
        "valid": ["a", "<unk>", "<unk>", "b", "<eos>"],
    }
    assert arrow.read_manifest(folder)["parameters"] == {"min_count": 2}


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 22])
@pytest.mark.parametrize("end", ["", "\n", " ", "\r\n"])
def test_words_and_lines_do_not_depend_on_the_blocks_they_are_read_in(block, end, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "BLOCK", block)
    text = "zwölf Boxkämpfer\r\njagen\tViktor  quer\n\nüber den　Deich" + end
    folder = own(tmp_path, text, text, min_count=1)
    lines = text.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    assert texts(folder)["valid"] == [word for line in lines for word in [*line.split(), "<eos>"]]


@pytest.mark.parametrize(
    ("train", "valid"),
    [
        (b"caf\xe9 au lait\n", "a b\n"),
        ("", "a b\n"),
        ("a b\n", ""),
    ],
)
def test_a_text_that_cannot_be_used_is_told_in_a_sentence(train, valid, as_stored: Any, tmp_path):
    with pytest.raises(UserError, check=as_stored):
        own(tmp_path, train, valid)
    assert not [path for path in (tmp_path / "data").iterdir() if not path.name.startswith(".")]
