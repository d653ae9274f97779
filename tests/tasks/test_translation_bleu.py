"""Corpus BLEU is sacreBLEU's of all sentences at once, however many workers hold them."""

import re
from random import Random

import pytest
import sacrebleu
from ranks import run_ranks
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International

from mlbench.tasks.translation import bleu, cipher
from mlbench.training.worker import Worker


def translations(sentences: int) -> tuple[list[str], list[str]]:
    """References with words lost, doubled, exchanged and in capitals."""
    random = Random(sentences)
    references = [german for _, german in cipher.corpus(sentences, seed=11)]
    hypotheses = []
    for reference in references:
        words = reference.split()
        for _ in range(random.randrange(1, 4)):
            index = random.randrange(len(words))
            words[index : index + 1] = random.choice(([], [words[index]] * 2, [words[index - 1].upper()]))
            words = words or ["nichts"]
        hypotheses.append(" ".join(words))
    return hypotheses, references


SENTENCES = (100, 2)  # neither divides by 3; with 2 the third worker has none


def shared(worker: Worker) -> list[bleu.Bleu]:
    own = slice(worker.rank, None, worker.world_size)
    sides = [translations(count) for count in SENTENCES]
    return [bleu.corpus_bleu(hypotheses[own], references[own], worker) for hypotheses, references in sides]


@pytest.mark.parametrize("workers", [1, 3])
def test_bleu_is_that_of_the_whole_corpus_whatever_the_number_of_workers(workers: int) -> None:
    ranks = run_ranks(shared, workers) if workers > 1 else [shared(Worker())]
    for number, count in enumerate(SENTENCES):
        hypotheses, references = translations(count)
        whole = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True, tokenize="intl")
        assert 5 < whole.score < 95
        for rank in ranks:
            assert rank[number].score == whole.score
            assert rank[number].tokenised == pytest.approx(whole.score)


def original(hypotheses: list[str], references: list[str]) -> float:
    """The original Transformer task's score of one batch: split by mteval-v14, lower-cased, raw."""
    split = TokenizerV14International()
    sides = [[split(line.lower()) for line in side] for side in (hypotheses, references)]
    return sacrebleu.raw_corpus_bleu(sides[0], [sides[1]]).score


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        translations(60),
        (["Der Hund schläft."], ["Eine Katze schläft nie."]),  # no word pair in common
        (["„Ja“, sagte er: 3.5%!"], ["„Nein“, sagte sie: 3.5 %!"]),
        (["ja"], ["ja nein"]),
        (["nichts"], ["gar niemand"]),
    ],
)
def test_the_tokenised_score_is_the_originals_of_the_whole_corpus(
    hypotheses: list[str], references: list[str]
) -> None:
    scored = bleu.corpus_bleu(hypotheses, references, Worker())
    assert scored.tokenised == pytest.approx(original(hypotheses, references))
    whole = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True, tokenize="intl")
    assert scored.score == whole.score


def test_the_signature_says_how_it_was_scored() -> None:
    signature = bleu.corpus_bleu(["a"], ["b"], Worker()).signature
    assert re.fullmatch(r"nrefs:1\|case:lc\|eff:no\|tok:intl\|smooth:exp\|version:[\d.]+", signature)
