"""Byte-pair encoding against a slow restatement of it, on any order of lines and any letters."""

import json
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

from mlbench.tasks.translation import cipher, subwords
from mlbench.tasks.translation.subwords import SPECIALS, SUFFIX, UNK, CharCounts, VocabSize

LINES = [side.replace(".", " .").replace(",", " ,") for pair in cipher.corpus(300, seed=1) for side in pair]


def learnt(folder: Path, lines: list[str], size: VocabSize) -> Tokenizer:
    file = folder / "text"
    file.write_text("".join(line + "\n" for line in lines))
    letters = CharCounts()
    letters.add(lines)
    return subwords.learn([file], letters, size)


def merges_of(made: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(made.to_str())["model"]["merges"]]


def spelt(word: str) -> list[str]:
    return [*word[:-1], word[-1] + SUFFIX]


def merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    result, index = [], 0
    while index < len(symbols):
        width = 2 if tuple(symbols[index : index + 2]) == pair else 1
        result.append("".join(symbols[index : index + width]))
        index += width
    return result


def test_each_merge_is_of_a_most_frequent_pair(tmp_path: Path) -> None:
    """Sennrich et al. 2016, section 3.2, step by step; ties may go either way."""
    made = learnt(tmp_path, LINES, VocabSize(merges=60))
    words = {word: spelt(word) for line in LINES for word in line.split()}
    counts = Counter(word for line in LINES for word in line.split())
    for pair in merges_of(made):
        pairs = Counter()
        for word, symbols in words.items():
            for two in zip(symbols, symbols[1:], strict=False):
                pairs[two] += counts[word]
        assert pairs[pair] == max(pairs.values()) >= subwords.SEEN
        words = {word: merged(symbols, pair) for word, symbols in words.items()}
    for word, symbols in words.items():
        assert made.encode(word).tokens == symbols


def test_learning_stops_where_no_pair_is_seen_twice(tmp_path: Path) -> None:
    made = learnt(tmp_path, ["abc abd"], VocabSize(merges=1000))
    assert merges_of(made) == [("a", "b")]


def test_rare_letters_become_unknown(tmp_path: Path) -> None:
    lines = ["abcd"] * 5000 + ["яab"]
    made = learnt(tmp_path, lines, VocabSize(merges=10, coverage=0.9999))
    assert made.encode("яb").ids[0] == UNK and UNK not in made.encode("ab").ids
    whole = learnt(tmp_path, lines, VocabSize(merges=10))
    assert UNK not in whole.encode("яb").ids
    assert made.encode("語ab").ids[0] == UNK and whole.encode("語ab").ids[0] == UNK


def test_text_that_looks_like_a_special_token_is_text(tmp_path: Path) -> None:
    lines = ["an <s> and </s> or <unk>"] * 3
    made = learnt(tmp_path, lines, VocabSize(merges=0))
    values, offsets = subwords.encode(made, lines)
    assert min(values) >= len(SPECIALS) and offsets.tolist() == [0, 19, 38, 57]


def test_encoding_keeps_lines_apart_and_joining_undoes_it(tmp_path: Path) -> None:
    made = learnt(tmp_path, LINES, VocabSize(merges=200))
    pieces = subwords.pieces(made)
    lines = [*LINES[:50], "", "a"]
    values, offsets = subwords.encode(made, lines)
    for line, begin, end in zip(lines, offsets[:-1], offsets[1:], strict=True):
        assert subwords.joined(pieces[number] for number in values[begin:end]) == line.split()
    assert subwords.joined(["a", "b"]) == ["ab"] and subwords.joined([]) == []
