"""Moses tokenisation and the cleaning of pairs, on all cores, in bounded memory.

sacremoses is the Moses project's tokenizer in Python. The original in Perl would be one more thing to
install. A language it has no abbreviations of is tokenised with those of English, as in the original.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain, islice
from typing import NamedTuple

from mlbench.tasks.translation.subwords import CharCounts

CHUNK = 20_000  # pairs that travel to a process at a time, some 5 MB of text
LONGEST_WORD = 1000  # letters, the default of Moses' clean-corpus-n.perl


class Rules(NamedTuple):
    """What a pair must be to be trained on. None sets no limit."""

    source: str  # language
    target: str
    words: tuple[int, int | None]  # least and most on each side, after tokenisation
    ratio: int | None  # of one side's words to the other's, at most
    latin1: bool  # whether letters outside Latin-1 drop the pair


class Cleaned(NamedTuple):
    """What is left of some pairs: tokenised lines, and their letters."""

    read: int  # pairs before
    sources: list[str]
    targets: list[str]
    letters: CharCounts


def tokenise(lines: Iterable[str], language: str) -> list[str]:
    """Return lines as Moses tokens parted by single spaces, with special characters escaped as Moses does."""
    tokenizer, _ = _tools(language)
    return [" ".join(tokenizer.tokenize(line)) for line in lines]


def detokenise(words: list[str], language: str) -> str:
    """Return Moses tokens as a sentence, unescaped."""
    return _tools(language)[1].detokenize(words)


def clean(pairs: list[tuple[str, str]], rules: Rules) -> Cleaned:
    """Tokenise pairs and drop those that break the rules."""
    sides = [tokenise(side, language) for side, language in zip(zip(*pairs), rules[:2])]  # noqa: B905
    fitting = [pair for pair in zip(*sides, strict=True) if _fits(pair, rules)]
    sources, targets = [pair[0] for pair in fitting], [pair[1] for pair in fitting]
    letters = CharCounts()
    letters.add(chain(sources, targets))
    return Cleaned(len(pairs), sources, targets, letters)


def _fits(pair: tuple[str, str], rules: Rules) -> bool:
    words = [side.split(" ") if side else [] for side in pair]
    fewer, more = sorted(map(len, words))
    least, most = rules.words
    if fewer < least or (most is not None and more > most):
        return False
    if rules.ratio is not None and more > rules.ratio * fewer:
        return False
    if max(map(len, chain(*words)), default=0) > LONGEST_WORD:
        return False
    return not rules.latin1 or max(map(max, pair), default="") <= "\xff"


def clean_all(pairs: Iterable[tuple[str, str]], rules: Rules) -> Iterator[Cleaned]:
    """Yield what is left of each chunk of pairs, in order.

    A text of one chunk is cleaned here. More goes to a process a core, two chunks each at a time.
    """
    stream = iter(pairs)
    chunks = iter(lambda: list(islice(stream, CHUNK)), [])
    work = partial(clean, rules=rules)
    first = list(islice(chunks, 2))
    if len(first) < 2:
        yield from map(work, first)
        return
    cores = len(os.sched_getaffinity(0))
    # spawn: a fork of a process with threads (Arrow's, Ray's) may hang
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        waiting = deque()
        for chunk in chain(first, chunks):
            waiting.append(pool.apply_async(work, (chunk,)))
            if len(waiting) > 2 * cores:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


@cache
def _tools(language: str):
    from sacremoses import MosesDetokenizer, MosesTokenizer  # imported here: it takes half a second

    return MosesTokenizer(language), MosesDetokenizer(language)
