"""Beam search over a batch of sentences on the model's device, without a loop over sentences or beams.

A sentence keeps its `beams` likeliest open hypotheses. In each step these are continued with every word. The
likeliest 2 * beams continuations hold at least `beams` that stay open. A continuation with the end mark that
is among the first `beams` becomes complete and is scored. A sentence is done when `beams` hypotheses are
complete (the early stop of fairseq, Ott et al. 2019) or its limit of words is reached, after which only the
end mark may follow. Its answer is the complete hypothesis of best score.

    log p(words) / ((5 + length) / 6) ** length_norm + coverage * sum over the source of log min(1, attention)

(Wu et al. 2016, equation 14), in which length counts the end mark and attention is summed over the steps.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from mlbench.tasks.translation.subwords import BOS, EOS, PAD

NORM_CONSTANT = 5.0  # words, of the length norm (Wu et al. 2016, and the READMEs of gnmt and transformer)

Tensors = tuple[torch.Tensor, ...]


class Translator(Protocol):
    """What a model shows to the search. The first dimension of every tensor is the sentence."""

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> Tensors:
        """Return what stays the same while a sentence is translated."""
        ...

    def init_state(self, memory: Tensors, beams: int) -> Tensors:
        """Return the state before the first word. The second dimension is the beam."""
        ...

    def step(
        self, words: torch.Tensor, state: Tensors, memory: Tensors
    ) -> tuple[torch.Tensor, Tensors, torch.Tensor | None]:
        """Return logits [sentences, beams, vocabulary] after words [sentences, beams], the state after
        them, and the attention. The attention is [sentences, beams, s], zero after the end of the source,
        or None."""
        ...


@dataclass(frozen=True)
class Search:
    """How to search. One beam is greedy decoding."""

    beam_size: int  # hypotheses a sentence
    length_penalty: float  # exponent
    coverage_penalty: float  # weight


@dataclass
class BeamState:
    """Sentences whose search goes on, with their hypotheses. Default shapes: [sentences, beams, ...]."""

    row: torch.Tensor  # [sentences], their places in the batch
    limit: torch.Tensor  # [sentences], words
    present: torch.Tensor  # [sentences, 1, s], true at words of the source
    words: torch.Tensor  # [sentences, beams, longest]
    score: torch.Tensor  # log p
    coverage: torch.Tensor  # [sentences, beams, s], attention so far
    complete: torch.Tensor  # [sentences], number of complete hypotheses
    best_score: torch.Tensor  # [sentences], of the best complete hypothesis
    best_words: torch.Tensor  # [sentences, longest]


def translate(
    model: Translator,
    source: torch.Tensor,
    lengths: torch.Tensor,
    *,
    limits: torch.Tensor,
    search: Search,
) -> torch.Tensor:
    """Return the best translations, int64 [sentences, longest], each ended and then filled with padding.

    source is int64 [sentences, s] and lengths [sentences], as the model takes them. limits, int64
    [sentences], is the most words of each translation before its end mark.
    """
    memory = model.encode(source, lengths)
    state = model.init_state(memory, search.beam_size)
    beam = _initial(source, lengths, limits, search.beam_size)
    answers = beam.best_words.clone()
    last = torch.full_like(beam.words[:, :, 0], BOS)
    for length in range(beam.words.shape[2]):
        logits, state, attention = model.step(last, state, memory)
        origin, last = _advance(beam, logits, attention, length=length, search=search)
        done = (beam.complete >= search.beam_size) | (beam.limit <= length)
        active = (~done).nonzero().squeeze(1)  # the one moment of a step in which a GPU is waited for
        if len(active) < len(done):
            finished = done.nonzero().squeeze(1)
            answers[beam.row[finished]] = beam.best_words[finished]
            if len(active) == 0:
                break
            beam = BeamState(**{name: part[active] for name, part in vars(beam).items()})
            memory = tuple(part[active] for part in memory)
            origin, last = origin[active], last[active]
        state = tuple(_reorder(part, origin) for part in state)
    return answers


def _initial(source: torch.Tensor, lengths: torch.Tensor, limits: torch.Tensor, beams: int) -> BeamState:
    """Return one hypothesis without words a sentence. The other beams are impossible."""
    (sentences, width), device = source.shape, source.device
    words = torch.full((sentences, beams, int(limits.max()) + 1), PAD, device=device)
    score = torch.full((sentences, beams), -math.inf, device=device)
    score[:, 0] = 0.0
    return BeamState(
        row=torch.arange(sentences, device=device),
        limit=limits,
        present=(torch.arange(width, device=device) < lengths[:, None])[:, None],
        words=words,
        score=score,
        coverage=torch.zeros(sentences, beams, width, device=device),
        complete=torch.zeros(sentences, dtype=torch.int64, device=device),
        best_score=score[:, 0] - math.inf,
        best_words=words[:, 0],
    )


def _advance(
    beam: BeamState,
    logits: torch.Tensor,
    attention: torch.Tensor | None,
    *,
    length: int,
    search: Search,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Continue hypotheses of `length` words by one. Return which went on as which and their new words.

    origin [sentences, beams] are rows of tensors whose first two dimensions are made one.
    """
    sentences, beams, vocabulary = logits.shape
    likely = logits.float().log_softmax(2)
    others = torch.arange(vocabulary, device=logits.device) != EOS
    likely.masked_fill_((beam.limit <= length)[:, None, None] & others, -math.inf)
    scores, places = (beam.score[:, :, None] + likely).flatten(1).topk(2 * beams)
    parents = places.div(vocabulary, rounding_mode="floor")
    words = places - parents * vocabulary
    ended = words == EOS

    penalty = torch.zeros_like(beam.score)
    if attention is not None and search.coverage_penalty:
        beam.coverage = beam.coverage + attention
        seen = beam.coverage.clamp(torch.finfo(beam.coverage.dtype).tiny, 1.0).log()
        penalty = search.coverage_penalty * seen.masked_fill(~beam.present, 0.0).sum(2)
    norm = ((NORM_CONSTANT + length + 1) / (NORM_CONSTANT + 1)) ** search.length_penalty
    final = (scores / norm + penalty.gather(1, parents)).masked_fill(~ended, -math.inf)[:, :beams]
    beam.complete = beam.complete + final.isfinite().sum(1)
    value, which = final.max(1)
    better = value > beam.best_score
    best = beam.words[torch.arange(sentences, device=words.device), parents.gather(1, which[:, None])[:, 0]]
    best[:, length] = EOS
    beam.best_score = torch.where(better, value, beam.best_score)
    beam.best_words = torch.where(better[:, None], best, beam.best_words)

    beam.score, best_open = scores.masked_fill(ended, -math.inf).topk(beams)
    words, parents = words.gather(1, best_open), parents.gather(1, best_open)
    origin = parents + beams * torch.arange(sentences, device=words.device)[:, None]
    beam.words, beam.coverage = _reorder(beam.words, origin), _reorder(beam.coverage, origin)
    beam.words[:, :, length] = words
    return origin, words


def _reorder(part: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    """Return the hypotheses `origin` [n, beams] of part [sentences, beams, ...], in one gather."""
    return part.flatten(0, 1).index_select(0, origin.flatten()).unflatten(0, origin.shape)
