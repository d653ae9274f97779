"""Moses tokenisation and the cleaning of pairs, on all cores, in bounded memory.

sacremoses is the Moses project's tokenizer in Python; the perl original would be one more thing to install.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

from mlbench.tasks.common.translation.subwords import Letters

CHUNK = 20_000  # lines that travel to a process at a time, some 3 MB
RATIO = 9  # words of one side a word of the other, at most: the default of Moses' clean-corpus-n.perl
LONGEST_WORD = 1000  # letters; the same script's default


class Rules(NamedTuple):
    """What a pair must be to be trained on."""

    source: str  # language
    target: str
    words: tuple[int, int]  # least and most, on either side, after tokenisation
    latin1: bool  # whether letters outside Latin-1 drop the pair


class Cleaned(NamedTuple):
    """What is left of some pairs: tokenised lines, and their letters."""

    sources: list[str]
    targets: list[str]
    letters: Letters


def tokenise(lines: Iterable[str], language: str) -> list[str]:
    """Return lines as Moses tokens parted by single spaces; special characters escaped as Moses does."""
    tokenizer = _tokenizer(language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def detokenise(tokens: list[str], language: str) -> str:
    """Return tokens as a sentence, unescaped."""
    return _detokenizer(language).detokenize(tokens)


def clean(pairs: list[tuple[str, str]], rules: Rules) -> Cleaned:
    """Tokenise pairs and drop those that break the rules."""
    least, most = rules.words
    sources, targets, letters = [], [], Letters()
    sides = zip(*(tokenise(side, language) for side, language in zip(zip(*pairs), rules[:2])))  # noqa: B905
    for source, target in sides:
        counts = [len(source.split()), len(target.split())]
        fits = least <= min(counts) and max(counts) <= most and max(counts) <= RATIO * min(counts)
        if fits and _plain(source, rules.latin1) and _plain(target, rules.latin1):
            sources.append(source)
            targets.append(target)
    letters.add(sources)
    letters.add(targets)
    return Cleaned(sources, targets, letters)


def clean_all(pairs: Iterable[tuple[str, str]], rules: Rules) -> Iterator[tuple[int, Cleaned]]:
    """Yield the pairs read so far and what is left of each chunk of them, in order.

    A text of one chunk is cleaned here; more go to a process a core, each at most two chunks ahead.
    """
    stream = iter(pairs)
    chunks = iter(lambda: list(islice(stream, CHUNK)), [])
    work = partial(clean, rules=rules)
    first = list(islice(chunks, 2))
    done = 0
    for count, cleaned in _ordered(work, first, chunks):
        done += count
        yield done, cleaned


def _ordered(work: Callable, first: list, chunks: Iterator[list]) -> Iterator[tuple[int, Cleaned]]:
    if len(first) < 2:
        yield from ((len(chunk), work(chunk)) for chunk in first)
        return
    cores = len(os.sched_getaffinity(0))
    # spawn: a fork of a process with threads (Arrow's, Ray's) may hang.
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        waiting = []
        for chunk in (*first, *chunks):
            waiting.append((len(chunk), pool.apply_async(work, (chunk,))))
            if len(waiting) > 2 * cores:
                count, answer = waiting.pop(0)
                yield count, answer.get()
        for count, answer in waiting:
            yield count, answer.get()


def _plain(line: str, latin1: bool) -> bool:
    if latin1:
        try:
            line.encode("latin-1")
        except UnicodeEncodeError:
            return False
    return max(map(len, line.split())) <= LONGEST_WORD


@cache
def _tokenizer(language: str):
    from sacremoses import MosesTokenizer  # imported here: it takes half a second

    return MosesTokenizer(language)


@cache
def _detokenizer(language: str):
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(language)
