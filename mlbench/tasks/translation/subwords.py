"""Sub-words: byte-pair encoding over both languages together (Sennrich et al. 2016), learnt and applied.

The `tokenizers` library merges as the original subword-nmt does, in Rust and on all cores. A piece that ends
a word carries `</w>`. Two things are done here so that one text gives one vocabulary everywhere. The alphabet
is spelt out in order (the library numbers word-final letters in hash order). The result is built again from
vocabulary and merges, so that no text is taken for a special token.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from mlbench.config.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SUFFIX = "</w>"
SEEN = 2  # times a pair must be seen to be merged, as in subword-nmt


@dataclass
class CharCounts:
    """How often each letter comes in a text, and which letters end a word."""

    counts: Counter[str] = field(default_factory=Counter)
    finals: set[str] = field(default_factory=set)

    def add(self, lines: Iterable[str]) -> None:
        """Count the letters of lines whose words are parted by single spaces."""
        for line in lines:
            words = line.split()
            self.counts.update("".join(words))
            self.finals.update(word[-1] for word in words)

    def merge(self, other: "CharCounts") -> None:
        """Add the counts of another part of the text."""
        self.counts.update(other.counts)
        self.finals |= other.finals

    def alphabet(self, coverage: float) -> list[str]:
        """Return the fewest letters, by count, that make up the share `coverage` of the text, sorted.

        Letters as frequent as the rarest of them belong to it too, so that ties decide nothing.
        """
        ranked = sorted(self.counts.items(), key=lambda item: -item[1])
        needed, covered, rarest = math.ceil(coverage * sum(self.counts.values())), 0, 0
        for _, count in ranked:
            if covered >= needed:
                break
            covered, rarest = covered + count, count
        return sorted(letter for letter, count in ranked if count >= rarest)


@dataclass(frozen=True)
class VocabSize:
    """How large a vocabulary is to be: a number of merges, or of pieces in all with the special ones."""

    merges: int | None = None
    pieces: int | None = None
    coverage: float = 1.0  # share of the text whose letters are in the alphabet. The others become UNK


def learn(files: Sequence[Path], letters: CharCounts, size: VocabSize) -> Tokenizer:
    """Learn merges from files of tokenised text, a sentence a line, in memory bounded by their words.

    Raises UserError when the text is empty. Fewer merges come out if no pair that is seen twice is left.
    """
    alphabet = letters.alphabet(size.coverage)
    if not alphabet:
        raise UserError("no training sentences remain to learn sub-words from", hint="give other files")
    finals = sorted(letter + SUFFIX for letter in letters.finals & set(alphabet))
    start = [*SPECIALS, *alphabet, *finals]
    wanted = len(start) + (size.merges or 0) if size.pieces is None else max(size.pieces, len(start))
    learner = Tokenizer(models.BPE(end_of_word_suffix=SUFFIX))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=wanted,
        special_tokens=start,  # not special: this is how to give them numbers in this order
        limit_alphabet=len(alphabet),
        end_of_word_suffix=SUFFIX,
        min_frequency=SEEN,
        show_progress=False,
    )
    learner.train([str(file) for file in files], trainer)
    learnt = json.loads(learner.to_str())["model"]
    merges: list[tuple[str, str]] = [tuple(merge) for merge in learnt["merges"]]
    made = Tokenizer(
        models.BPE(learnt["vocab"], merges, unk_token=SPECIALS[UNK], end_of_word_suffix=SUFFIX, fuse_unk=True)
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def pieces(made: Tokenizer) -> list[str]:
    """Return the vocabulary in the order of its numbers."""
    numbers = made.get_vocab()
    return sorted(numbers, key=lambda piece: numbers[piece])


def encode(made: Tokenizer, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of tokenised lines as flat int32 values and int64 offsets, on all cores."""
    encodings = made.encode_batch_fast(lines, add_special_tokens=False)
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    numbers = chain.from_iterable(encoding.ids for encoding in encodings)
    return np.fromiter(numbers, np.int32, int(offsets[-1])), offsets


def joined(pieces: Iterable[str]) -> list[str]:
    """Return the words that pieces make. A last piece without `</w>` ends a word too."""
    return "".join(pieces).replace(SUFFIX, " ").split()
