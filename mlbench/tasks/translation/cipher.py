"""A generated language pair: every source sentence has one translation, which must be learnt.

Each source word has a separate target word, in no way alike. Beyond the dictionary, the translation needs

- gender, number and case: the endings of articles and adjectives depend on their noun and its role. The
  noun's form does not show its gender. The verb's ending depends on the number of its subject.
- order: adjectives follow their noun. The verb comes first after a fronted adverb, last after a conjunction,
  and second otherwise. A place comes before the object.
"""

from collections.abc import Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

# Words of each kind. The earlier of a kind are the more frequent.
SIZES = {
    "article": 4,
    "adjective": 30,
    "noun": 70,
    "verb": 40,
    "preposition": 6,
    "adverb": 8,
    "conjunction": 5,
}
GENDERS = "aeo"  # the vowel that a noun's gender gives to the endings that agree with it. "i" in the plural
LEXICON_SEED = 2016  # of the words themselves, the same in every corpus: the year of the WMT it replaces
ONSETS = {
    "source": ("b", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v"),
    "target": ("c", "h", "j", "k", "qu", "w", "x", "z", "sch", "tr", "kn", "pf"),
}


class Phrase(NamedTuple):
    """An article, perhaps an adjective, and a noun: numbers of words, and whether it is plural."""

    article: int
    adjective: int | None
    noun: int
    plural: bool


class Clause(NamedTuple):
    subject: Phrase
    verb: int
    object: Phrase
    place: tuple[int, Phrase] | None  # a preposition and its phrase


def corpus(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Return `count` pairs of lines. No source sentence comes twice.

    Only `Random.random` decides, whose stream Python guarantees.
    """
    random, pairs = Random(seed), dict[str, str]()
    source, target = (_lexicon(side) for side in ("source", "target"))
    while len(pairs) < count:
        adverb = _draw(random, "adverb") if random.random() < 0.3 else None
        first = _clause(random)
        second = (_draw(random, "conjunction"), _clause(random)) if random.random() < 0.3 else None
        sentence = _source(source, adverb, first, second)
        pairs[sentence] = _target(target, adverb, first, second)
    return list(pairs.items())


def _lexicon(side: str) -> dict[str, list[str]]:
    """Return the words of one language by kind: two or three syllables, all different."""
    random, words = Random(f"{side} {LEXICON_SEED}"), dict[str, None]()
    while len(words) < sum(SIZES.values()):
        syllables = 2 + int(random.random() * 2)
        words["".join(_pick(random, ONSETS[side]) + _pick(random, "aeiou") for _ in range(syllables))] = None
    rest = iter(words)
    return {kind: [next(rest) for _ in range(size)] for kind, size in SIZES.items()}


def _pick(random: Random, items: Sequence[str]) -> str:
    return items[int(random.random() * len(items))]


def _draw(random: Random, kind: str) -> int:
    return int(random.random() ** 2 * SIZES[kind])


def _phrase(random: Random) -> Phrase:
    adjective = _draw(random, "adjective") if random.random() < 0.4 else None
    return Phrase(_draw(random, "article"), adjective, _draw(random, "noun"), random.random() < 0.35)


def _clause(random: Random) -> Clause:
    location = (_draw(random, "preposition"), _phrase(random)) if random.random() < 0.25 else None
    return Clause(_phrase(random), _draw(random, "verb"), _phrase(random), location)


Words = dict[str, list[str]]
Second = tuple[int, Clause] | None


def _source(words: Words, adverb: int | None, first: Clause, second: Second) -> str:
    def phrase(part: Phrase) -> list[str]:
        adjective = [] if part.adjective is None else [words["adjective"][part.adjective]]
        return [words["article"][part.article], *adjective, words["noun"][part.noun] + "s" * part.plural]

    def clause(part: Clause) -> list[str]:
        location = [words["preposition"][part.place[0]], *phrase(part.place[1])] if part.place else []
        return [*phrase(part.subject), words["verb"][part.verb], *phrase(part.object), *location]

    return _written(words, adverb, clause(first), second and (second[0], clause(second[1])))


def _target(words: Words, adverb: int | None, first: Clause, second: Second) -> str:
    def phrase(part: Phrase, case: str) -> list[str]:
        ending = ("i" if part.plural else GENDERS[part.noun % len(GENDERS)]) + case
        adjective = [] if part.adjective is None else [words["adjective"][part.adjective] + ending]
        return [
            words["article"][part.article] + ending,
            words["noun"][part.noun] + "n" * part.plural,
            *adjective,
        ]

    def clause(part: Clause, verb_at: int) -> list[str]:
        location = [words["preposition"][part.place[0]], *phrase(part.place[1], "r")] if part.place else []
        parts = [phrase(part.subject, ""), [*location, *phrase(part.object, "m")]]
        parts.insert(verb_at, [words["verb"][part.verb] + ("nt" if part.subject.plural else "t")])
        return list(chain.from_iterable(parts))

    main = clause(first, verb_at=1 if adverb is None else 0)
    return _written(words, adverb, main, second and (second[0], clause(second[1], verb_at=2)))


def _written(words: Words, adverb: int | None, first: list[str], second: tuple[int, list[str]] | None) -> str:
    """Return perhaps an adverb, a clause, and perhaps a conjunction and a clause as a line."""
    sentence = [*([] if adverb is None else [words["adverb"][adverb]]), *first]
    if second:
        sentence += [words["conjunction"][second[0]], *second[1]]
    line = " ".join(sentence)
    return line[0].upper() + line[1:] + "."
