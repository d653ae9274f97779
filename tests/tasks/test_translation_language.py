"""The phrasebook: one right translation a sentence, and none that a dictionary would find."""

import re
from itertools import chain
from random import Random

import pytest
import sacrebleu

from mlbench.tasks.translation import language, words


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return language.corpus(6000, seed=2016)


def test_no_english_sentence_has_two_translations() -> None:
    speaker, known = language.Speaker(3), dict[str, str]()
    for english, german in (speaker.sentence() for _ in range(40_000)):
        assert known.setdefault(english, german) == german, english


def test_sentences_are_distinct_and_of_the_promised_length(pairs) -> None:
    assert len({english for english, _ in pairs}) == 6000
    lengths = [len(english.split()) for english, _ in pairs]
    assert (min(lengths), max(lengths)) == (language.SHORTEST, language.LONGEST) == (4, 25)


def test_a_seed_says_the_same_everywhere_and_another_seed_something_else(pairs) -> None:
    assert language.corpus(50, seed=2016) == pairs[:50]
    assert language.corpus(50, seed=2017) != pairs[:50]
    # Random.random is the same on every Python; written down on 3.11.
    assert pairs[0] == FIRST


FIRST = (
    "The woman sings and no old girls should often find the coat.",
    "Die Frau singt und keine alten Mädchen sollen oft den Mantel finden.",
)

# Read with a German grammar at hand: case, gender, word order, separable verbs, compounds.
BY_HAND = """
No aunts send the good office door to our teacher. | Keine Tanten schicken unserem Lehrer die gute Bürotür.
On Sunday the teachers buy a box. | Am Sonntag kaufen die Lehrer eine Kiste.
The girl has gone out. | Das Mädchen ist ausgegangen.
The king sells my office shirt because it is small. | Der König verkauft mein Bürohemd, weil es klein ist.
The good dog has painted no chair because it is big. | Der gute Hund hat keinen Stuhl gemalt, weil er groß ist.
Two dogs believe that no dog invites the women. | Zwei Hunde glauben, dass kein Hund die Frauen einlädt.
The child always repairs the bag because it is strong. | Das Kind repariert immer die Tasche, weil sie stark ist.
No gardener has sold the lamps because they are strong. | Kein Gärtner hat die Lampen verkauft, weil sie stark sind.
A dog whom three girls find must look for my summer cups. | Ein Hund, den drei Mädchen finden, muss meine Sommertassen suchen.
Three red daughters whom our aunts thank have gone out. | Drei rote Töchter, denen unsere Tanten danken, sind ausgegangen.
Before three girls sing, the friendly teachers have sung. | Bevor drei Mädchen singen, haben die freundlichen Lehrer gesungen.
A girl invites a queen and a heavy aunt has laughed. | Ein Mädchen lädt eine Königin ein und eine schwere Tante hat gelacht.
The cat whom our sisters help must look at the small teachers. | Die Katze, der unsere Schwestern helfen, muss die kleinen Lehrer ansehen.
"""  # noqa: E501


def test_translations_are_those_of_a_human() -> None:
    speaker = language.Speaker(2016)
    said = dict(speaker.sentence() for _ in range(20_000))
    for line in BY_HAND.strip().splitlines():
        english, german = line.split(" | ")
        assert said[english] == german


DAS = r"(?<!, )\b[Dd]as(?: [a-zß-ü]+)? ([A-ZÄÖÜ]\w+)"  # behind a comma it is a relative pronoun
GENDERS = {noun.eine: noun.gender for noun in chain(words.PEOPLE, words.THINGS)}


def test_articles_agree_with_their_nouns(pairs) -> None:
    """A noun after the article `das` is neuter, whatever adjective stands between, compounds included."""
    articled = [noun for _, german in pairs for noun in re.findall(DAS, german)]
    genders = [{g for eine, g in GENDERS.items() if noun.lower().endswith(eine.lower())} for noun in articled]
    assert len(articled) > 500 and all(found == {"n"} for found in genders)


def test_verbs_close_subordinate_clauses(pairs) -> None:
    finite = {verb.tut for verb in VERBS} | {verb.tun for verb in VERBS}
    finite |= {verb.prefix + form for verb in VERBS for form in (verb.tut, verb.tun)}
    finite |= set(chain(*(modal[2:] for modal in words.MODALS), *words.AUXILIARIES.values()))
    clauses = [re.search(r"\b(?:weil|obwohl|während|bevor) ([^,]*?)[.]$", german) for _, german in pairs]
    endings = [clause[1].split()[-1] for clause in clauses if clause]
    assert len(endings) > 500 and set(endings) <= finite


VERBS = (*words.TRANSITIVE, *words.INTRANSITIVE, *words.DITRANSITIVE, *words.SAYING)


def test_word_by_word_translation_and_right_words_in_the_wrong_order_score_low(pairs) -> None:
    sources, references = zip(*pairs[:400], strict=True)
    by_word = [" ".join(map(translated, re.findall(r"\w+|[.,]", source.lower()))) for source in sources]
    assert bleu(by_word, references) < 15
    random = Random(1)
    shuffled = []
    for reference in references:
        found = re.findall(r"\w+|[.,]", reference)
        random.shuffle(found)
        shuffled.append(" ".join(found))
    assert bleu(shuffled, references) < 15
    assert bleu(references, references) == pytest.approx(100)


def bleu(translations, references) -> float:
    return sacrebleu.corpus_bleu(
        list(translations), [list(references)], lowercase=True, tokenize="intl", force=True
    ).score


def translated(word: str) -> str:
    return DICTIONARY.get(word, word)


DICTIONARY = (
    {noun.one: noun.eine for noun in chain(words.PEOPLE, words.THINGS)}
    | {noun.many: noun.viele for noun in chain(words.PEOPLE, words.THINGS)}
    | {form: de for verb in VERBS for form, de in zip(verb[:3], verb[3:6], strict=True)}
    | {form.split()[0]: de for verb in VERBS for form, de in zip(verb[:3], verb[3:6], strict=True)}
    | {verb.particle: verb.prefix for verb in VERBS if verb.particle}
    | {does: tut for modal in words.MODALS for does, tut in zip(modal[:2], modal[2:], strict=True)}
    | words.HALVES | words.ADJECTIVES | words.CONJUNCTIONS | words.TIMES | words.FREQUENCIES | words.PLACES
    | words.NUMBERS | words.STEMS
    | {"the": "die", "an": "ein", "has": "hat", "have": "haben", "that": "dass", "who": "der", "whom": "den"}
    | {"and": "und", "it": "es", "is": "ist", "they": "sie", "are": "sind", "to": "zu"}
)  # fmt: skip
