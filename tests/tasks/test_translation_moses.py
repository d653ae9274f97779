"""Tokenisation as Moses does it, and which pairs are cleaned away."""

import pytest

from mlbench.tasks.translation import moses
from mlbench.tasks.translation.moses import Rules

WMT16 = Rules("en", "de", (1, 80), 9, True)
WMT17 = Rules("en", "de", (1, None), None, False)


@pytest.mark.parametrize(
    ("language", "line", "tokens"),
    [  # what tokenizer.perl prints, by its rules
        ("en", "It's 3.5 % of 10,000.", "It &apos;s 3.5 % of 10,000 ."),
        ("en", 'Mr. Smith said: "No!"', "Mr. Smith said : &quot; No ! &quot;"),
        ("de", "Das ist z.B. am 3. Mai [so] & so.", "Das ist z.B. am 3. Mai &#91; so &#93; &amp; so ."),
        ("de", "Ein  \u00a0 Wort\tund  noch\x85eins", "Ein Wort und noch eins"),
        ("en", "   ", ""),
    ],
)
def test_lines_become_moses_tokens(language: str, line: str, tokens: str) -> None:
    assert moses.tokenise([line], language) == [tokens]


@pytest.mark.parametrize(
    "line", ["Er sagte: „Nein“, und ging.", "Das kostet 3,50 Euro (brutto) & mehr.", "A | B [d] & 'e'"]
)
def test_detokenising_undoes_it(line: str) -> None:
    (tokens,) = moses.tokenise([line], "de")
    assert moses.detokenise(tokens.split(), "de") == line


def words(count: int) -> str:
    return " ".join(["wort"] * count)


@pytest.mark.parametrize(
    ("pair", "kept16", "kept17"),
    [
        (("a b", "c d"), True, True),
        (("", "a"), False, False),
        (("a", " \u2028 "), False, False),
        ((words(80), words(80)), True, True),
        ((words(81), words(80)), False, True),
        ((words(70), words(81)), False, True),
        ((words(9), "a"), True, True),
        (("a", words(10)), False, True),
        (("naïve ÿ", "Größe"), True, True),
        (("a 10 € note", "ein Schein"), False, True),
        (("a", "я"), False, True),
        (("w" * 1001, "a"), False, False),
        (("w" * 1000, "a"), True, True),
    ],
)
def test_pairs_are_kept_by_the_rules(pair: tuple[str, str], kept16: bool, kept17: bool) -> None:
    for rules, expected in ((WMT16, kept16), (WMT17, kept17)):
        cleaned = moses.clean([pair], rules)
        assert cleaned.read == 1 and len(cleaned.sources) == len(cleaned.targets) == expected


def test_many_chunks_on_many_processes_come_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"line {number}, {'x' * (number % 5)}", "" if number % 7 == 0 else f"Zeile {number}.")
             for number in range(230)]  # fmt: skip
    (alone,) = moses.clean_all(pairs, WMT16)
    monkeypatch.setattr(moses, "CHUNK", 20)
    chunks = list(moses.clean_all(iter(pairs), WMT16))
    assert [chunk.read for chunk in chunks] == [20] * 11 + [10]
    assert [line for chunk in chunks for line in chunk.sources] == alone.sources
    assert [line for chunk in chunks for line in chunk.targets] == alone.targets
    letters = moses.CharCounts()
    for chunk in chunks:
        letters.merge(chunk.letters)
    assert letters == alone.letters
    text = "".join(alone.sources + alone.targets).replace(" ", "")
    assert dict(letters.counts) == {letter: text.count(letter) for letter in set(text)}
