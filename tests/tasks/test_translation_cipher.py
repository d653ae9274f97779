"""The generated language pair: one right translation a sentence, and none that a dictionary would find."""

from random import Random

import pytest
import sacrebleu

from mlbench.config.compose import compose
from mlbench.tasks.translation import cipher


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return cipher.corpus(15_400, seed=2016)


def test_a_seed_gives_the_same_text_everywhere_and_another_seed_another(pairs):
    assert cipher.corpus(50, seed=2016) == pairs[:50]
    assert cipher.corpus(50, seed=2017) != pairs[:50]
    assert [" | ".join(pair) for pair in pairs[:40] if len(pair[0]) < 42][:4] == SHORT


# Random.random is the same on every Python; written down on 3.11.
SHORT = """
Bepe gupi rasi bepe lida vigo. | Knacue schoschi quazischat knacuom xizitri wuziom.
Mapufa nabibe fatela mesa fatuve mosalos. | Keschio knepfuzu cawet zakukniim woknin jaknischiim.
Sipele vubos mamite mesa gupis. | Knohazui hatron wewant zakukniim schoschin.
Mapufa relu fefu pomo mesa vide. | Keschio xixice knozao xakicut zakukniom zuxi.
""".strip().splitlines()


def test_a_source_sentence_has_one_translation(pairs):
    assert len({source for source, _ in pairs}) == len(pairs)
    translations = dict(pairs)
    others = [pair for seed in range(3) for pair in cipher.corpus(15_400, seed=seed)]
    repeated = [(source, target) for source, target in others if source in translations]
    assert len(repeated) >= 10 and all(translations[source] == target for source, target in repeated)


@pytest.mark.slow
def test_the_light_goal_is_out_of_reach_without_learning(pairs):
    """Neither a dictionary, nor the right words in any order, nor the most similar training sentence."""
    goals = compose(["task=gnmt"]).task.goals
    assert goals
    test, train = pairs[:100], pairs[400:]
    references = [target for _, target in test]
    source, target = (cipher._lexicon(side) for side in ("source", "target"))
    dictionary = {word: target[kind][i] for kind in source for i, word in enumerate(source[kind])}
    dictionary |= {f"{word}s": target["noun"][i] + "n" for i, word in enumerate(source["noun"])}
    endings = {"article": "i", "adjective": "i", "verb": "t"}  # the likeliest of each kind
    dictionary |= {w: target[kind][i] + endings[kind] for kind in endings for i, w in enumerate(source[kind])}
    by_word = [" ".join(dictionary[word] for word in line.lower()[:-1].split()) + "." for line, _ in test]
    assert bleu(by_word, references) < goals.light / 2
    random = Random(1)
    shuffled = [" ".join(random.sample(words := line[:-1].split(), len(words))) + "." for line in references]
    assert bleu(shuffled, references) < goals.light / 2
    sets = [(set(line.lower()[:-1].split()), translation) for line, translation in train]
    memory = []
    for line, _ in test:
        words = set(line.lower()[:-1].split())
        memory.append(max(sets, key=lambda pair: len(pair[0] & words) / len(pair[0] | words))[1])
    assert bleu(memory, references) < goals.light / 2
    assert bleu(references, references) == pytest.approx(100)


def bleu(translations: list[str], references: list[str]) -> float:
    return sacrebleu.corpus_bleu(
        translations, [references], lowercase=True, tokenize="intl", force=True
    ).score
