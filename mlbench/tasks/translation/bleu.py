"""Corpus BLEU of translations that several workers made: counts are summed, then scored, by sacreBLEU."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER

from mlbench.training.worker import Worker


class Bleu(NamedTuple):
    """The scores of a corpus, 0 to 100.

    - score: lower-cased, tokenizer `intl`, as in `signature`, in sacreBLEU's format.
    - tokenised: what the original Transformer task reports, sacreBLEU's `raw_corpus_bleu` of the lower-cased
      sentences, split by mteval-v14's rules. These are the rules of `intl` too, so the counts are the same.
      The scores differ only if no n-gram of some length matches, which the two smooth differently.
    """

    score: float
    tokenised: float
    signature: str


def corpus_bleu(translations: Sequence[str], references: Sequence[str], worker: Worker) -> Bleu:
    """Return BLEU of the whole corpus, of which this worker has `translations` and their references.

    It is exactly sacreBLEU's score of all sentences at once, whatever the number of workers. BLEU is a
    function of sums over sentences (Papineni et al. 2002).
    """
    metric = BLEU(lowercase=True, tokenize="intl")
    # A worker without a sentence scores an empty one, which adds nothing to any count.
    own = metric.corpus_score(translations or [""], [references or [""]])
    # float64 counts exactly up to 2^53
    sums = worker.sum([*own.counts, *own.totals, own.sys_len, own.ref_len]).tolist()
    *grams, hypothesis_length, reference_length = map(int, sums)
    matched, total = grams[:MAX_NGRAM_ORDER], grams[MAX_NGRAM_ORDER:]
    counts = (matched, total, hypothesis_length, reference_length)
    score = BLEU.compute_bleu(*counts, smooth_method="exp")
    tokenised = BLEU.compute_bleu(*counts, smooth_method="floor", effective_order=True)
    return Bleu(score.score, tokenised.score, signature=str(metric.get_signature()))
