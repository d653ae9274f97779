"""A phrasebook: English sentences and their one German translation, made by a small grammar.

It has what makes translation hard, so that a model must learn more than a dictionary: case, gender and
number agree across a noun phrase and beyond it (a relative pronoun, an "it" far from its noun); verbs go to
the end of subordinate clauses, and infinitives and participles to the end of main ones; prefixes split off;
a fronted adverb or clause turns subject and verb round; receivers stand before what they receive; two English
nouns become one German word. The German is a function of the English: a translation is right or wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from mlbench.tasks.translation import words
from mlbench.tasks.translation.words import Noun, Verb

T = TypeVar("T")


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: English, German by case, and what agrees with it."""

    english: str
    german: dict[str, str]
    gender: str  # m, f, n; p for all plurals


@dataclass(frozen=True)
class Predicate:
    """A verb with all that belongs to it but the subject.

    German: the finite verb, what stands between, what closes a main clause (a prefix, an infinitive), and
    what closes a subordinate one.
    """

    english: str
    finite: str
    between: str
    main_end: str
    sub_end: str


class Speaker:
    """Says random sentences; only `Random.random`, whose stream Python guarantees, decides."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.random.random() * len(items))]

    def entry(self, table: dict[str, str]) -> tuple[str, str]:
        """Pick an English word and its German one."""
        return self.pick(list(table.items()))

    def sentence(self) -> tuple[str, str]:
        """Return an English sentence and its translation."""
        kinds: list[Callable[[], tuple[str, str]]] = [
            self.main,
            self.fronted_time,
            self.then_clause,
            self.clause_first,
            self.saying,
            self.two,
            self.about_it,
        ]
        english, german = self.pick(kinds)()
        return _written(english), _written(german)

    # Sentences

    def main(self) -> tuple[str, str]:
        subject = self.phrase(person=True, relative=0.3)
        return _main(subject, self.predicate(subject, relative=0.3))

    def fronted_time(self) -> tuple[str, str]:
        english, german = self.entry(words.TIMES)
        subject = self.phrase(person=True, relative=0.2)
        predicate = self.predicate(subject, relative=0.2)
        return (
            f"{english} {subject.english} {predicate.english}",
            f"{german} {_inverted(subject, predicate)}",
        )

    def then_clause(self) -> tuple[str, str]:
        subject = self.phrase(person=True)
        english, german = _main(subject, self.predicate(subject))
        clause = self.clause()
        return f"{english} {clause[0]}", f"{german} , {clause[1]}"

    def clause_first(self) -> tuple[str, str]:
        clause = self.clause()
        subject = self.phrase(person=True)
        predicate = self.predicate(subject)
        return (
            f"{clause[0]} , {subject.english} {predicate.english}",
            f"{clause[1]} , {_inverted(subject, predicate)}",
        )

    def saying(self) -> tuple[str, str]:
        subject = self.phrase(person=True)
        verb = self.pick(words.SAYING)
        many = subject.gender == "p"
        inner = self.phrase(person=True, relative=0.2)
        predicate = self.predicate(inner)
        says, sagt = (verb.do, verb.tun) if many else (verb.does, verb.tut)
        return (
            f"{subject.english} {says} that {inner.english} {predicate.english}",
            f"{subject.german['nom']} {sagt} , dass {_subordinate(inner, predicate)}",
        )

    def two(self) -> tuple[str, str]:
        first, second = self.phrase(person=True), self.phrase(person=True)
        one = _main(first, self.predicate(first))
        other = _main(second, self.predicate(second))
        return f"{one[0]} and {other[0]}", f"{one[1]} und {other[1]}"

    def about_it(self) -> tuple[str, str]:
        """Something is done to a thing because it is as it is: its pronoun has the noun's German gender."""
        subject, thing = self.phrase(person=True), self.phrase(person=False)
        verb = self.pick([verb for verb in words.TRANSITIVE if verb.object != "person"])
        english, german = _main(subject, self.with_verb(verb, subject, [thing]))
        adjective = self.entry(words.ADJECTIVES)
        many = thing.gender == "p"
        return (
            f"{english} because {'they are' if many else 'it is'} {adjective[0]}",
            f"{german} , weil {words.PRONOUNS[thing.gender]} {adjective[1]} {'sind' if many else 'ist'}",
        )

    # TrainingSetup of sentences

    def clause(self) -> tuple[str, str]:
        english, german = self.entry(words.CONJUNCTIONS)
        subject = self.phrase(person=True)
        predicate = self.predicate(subject)
        return (
            f"{english} {subject.english} {predicate.english}",
            f"{german} {_subordinate(subject, predicate)}",
        )

    def phrase(self, *, person: bool, relative: float = 0.0) -> Phrase:
        """Return a noun phrase, with a relative clause at the probability `relative`."""
        noun, many = self.pick(words.PEOPLE if person else words.THINGS), self.chance(0.35)
        if not person and self.chance(0.35):
            noun = _compound(noun, *self.entry(words.HALVES))
        adjective = self.entry(words.ADJECTIVES) if self.chance(0.4) else ("", "")
        phrase = _declined(noun, self.determiner(many), adjective, many=many)
        return self.with_relative(phrase, person=person) if self.chance(relative) else phrase

    def determiner(self, many: bool) -> str:
        if self.chance(0.45):
            return "the"
        return self.pick(["my", "our", "no", *words.NUMBERS] if many else ["a", "a", "my", "our", "no"])

    def with_relative(self, phrase: Phrase, *, person: bool) -> Phrase:
        """Add "who sees it" or "that they see"; the pronoun agrees with its noun and its clause."""
        if person and self.chance(0.6):
            predicate = self.predicate(phrase)
            english = f"who {predicate.english}"
            german = f"{words.THE['nom'][phrase.gender]} {_closed(predicate)}"
        else:
            kind = "person" if person else "thing"
            verb = self.pick([verb for verb in words.TRANSITIVE if verb.object in (kind, "any")])
            subject = self.phrase(person=True)
            predicate = self.with_verb(verb, subject, [])
            pronoun = words.THE[verb.case][phrase.gender]
            if verb.case == "dat" and phrase.gender == "p":
                pronoun = words.RELATIVE_DATIVE_PLURAL
            english = f"{'whom' if person else 'that'} {subject.english} {predicate.english}"
            german = f"{pronoun} {_subordinate(subject, predicate)}"
        declined = {case: f"{form} , {german} ," for case, form in phrase.german.items()}
        return Phrase(f"{phrase.english} {english}", declined, phrase.gender)

    def predicate(self, subject: Phrase, *, relative: float = 0.0) -> Predicate:
        kind = self.random.random()
        if kind < 0.25:
            return self.with_verb(self.pick(words.INTRANSITIVE), subject, [])
        if kind < 0.4:
            things = [self.phrase(person=False), self.phrase(person=True)]
            return self.with_verb(self.pick(words.DITRANSITIVE), subject, things)
        verb = self.pick(words.TRANSITIVE)
        person = verb.object == "person" or (verb.object == "any" and self.chance(0.5))
        # A particle behind a relative clause would be bad English.
        thing = self.phrase(person=person, relative=0.0 if verb.particle else relative)
        return self.with_verb(verb, subject, [thing], place=0.0 if "," in thing.german["acc"] else 0.2)

    def with_verb(
        self, verb: Verb, subject: Phrase, objects: list[Phrase], *, place: float = 0.0
    ) -> Predicate:
        """Put a verb into the present, the perfect or behind a modal, with its objects."""
        many = subject.gender == "p"
        often = self.entry(words.FREQUENCIES) if self.chance(0.2) else ("", "")
        where = self.place() if self.chance(place) else ("", "")
        if len(objects) == 2:
            behind = f"{objects[0].english} to {objects[1].english}"
            between = f"{objects[1].german['dat']} {objects[0].german['acc']}"
        else:
            behind = f"{objects[0].english if objects else ''} {verb.particle}"
            between = objects[0].german[verb.case] if objects else ""
        between = f"{often[1]} {between} {where[1]}"
        behind = f"{behind} {where[0]}"
        tense = self.random.random()
        if tense < 0.2:
            must, have_to, muss, muessen = self.pick(words.MODALS)
            infinitive, finite = verb.prefix + verb.tun, muessen if many else muss
            english = f"{have_to if many else must} {often[0]} {verb.do} {behind}"
            return Predicate(english, finite, between, infinitive, f"{infinitive} {finite}")
        if tense < 0.4:
            participle = verb.prefix + verb.getan
            finite = words.AUXILIARIES[verb.auxiliary][many]
            english = f"{'have' if many else 'has'} {often[0]} {verb.done} {behind}"
            return Predicate(english, finite, between, participle, f"{participle} {finite}")
        finite = verb.tun if many else verb.tut
        english = f"{often[0]} {verb.do if many else verb.does} {behind}"
        return Predicate(english, finite, between, verb.prefix, verb.prefix + finite)

    def place(self) -> tuple[str, str]:
        english, german = self.entry(words.PLACES)
        phrase = self.phrase(person=False)
        return f"{english} {phrase.english}", f"{german} {phrase.german['dat']}"


def corpus(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Return `count` pairs of lines; no English sentence comes twice."""
    speaker, pairs = Speaker(seed), dict[str, str]()
    while len(pairs) < count:
        english, german = speaker.sentence()
        if SHORTEST <= len(english.split()) <= LONGEST:
            pairs[english] = german
    return list(pairs.items())


SHORTEST, LONGEST = 4, 25  # English words


def _main(subject: Phrase, predicate: Predicate) -> tuple[str, str]:
    german = f"{subject.german['nom']} {predicate.finite} {predicate.between} {predicate.main_end}"
    return f"{subject.english} {predicate.english}", german


def _inverted(subject: Phrase, predicate: Predicate) -> str:
    return f"{predicate.finite} {subject.german['nom']} {predicate.between} {predicate.main_end}"


def _subordinate(subject: Phrase, predicate: Predicate) -> str:
    return f"{subject.german['nom']} {_closed(predicate)}"


def _closed(predicate: Predicate) -> str:
    return f"{predicate.between} {predicate.sub_end}"


def _compound(noun: Noun, first: str, german: str) -> Noun:
    one, many = (german + word.lower() for word in (noun.eine, noun.viele))
    return Noun(f"{first} {noun.one}", f"{first} {noun.many}", one, many, noun.gender)


def _declined(noun: Noun, determiner: str, adjective: tuple[str, str], *, many: bool) -> Phrase:
    gender = "p" if many else noun.gender
    forms = {}
    for case in ("nom", "acc", "dat"):
        if determiner == "the":
            article, endings = words.THE[case][gender], words.AFTER_THE
        elif determiner in words.NUMBERS:
            article, endings = words.NUMBERS[determiner], words.AFTER_NUMBER
        else:
            article = words.STEMS[determiner] + words.STEM_ENDINGS[case][gender]
            endings = words.AFTER_STEM
        described = adjective[1] and adjective[1] + endings[case][gender]
        word = noun.viele if many else noun.eine
        if many and case == "dat" and not word.endswith("n"):
            word += "n"
        forms[case] = f"{article} {described} {word}"
    english = (
        f"{_article(determiner, adjective[0] or noun.one)} {adjective[0]} {noun.many if many else noun.one}"
    )
    return Phrase(english, forms, gender)


def _article(determiner: str, following: str) -> str:
    return "an" if determiner == "a" and following[0] in "aeio" else determiner


def _written(spoken: str) -> str:
    """Return words as a sentence: single commas, none at the end, a capital and a full stop."""
    sentence = " ".join(spoken.split())
    while ", ," in sentence:
        sentence = sentence.replace(", ,", ",")
    sentence = sentence.removesuffix(" ,").replace(" ,", ",")
    return sentence[0].upper() + sentence[1:] + "."
