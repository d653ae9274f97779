import itertools
import math

import pytest
import torch

from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.transformer.model import Transformer
from mlbench.tasks.translation import subwords
from mlbench.tasks.translation.beam import NORM_CONSTANT, Search, translate

PAD, BEGIN, END = subwords.PAD, subwords.BOS, subwords.EOS  # 0, 2, 3; 1 and what follows END are words


class Chain:
    """A random language model whose next word and attention depend on all words before: nothing to exploit.

    The state is a number made of the prefix; it, the source and the word pick rows of a random table.
    """

    def __init__(self, vocabulary: int, *, seed: int, attends: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = 2 * torch.randn(997, vocabulary, generator=generator)
        self.logits[:, [PAD, BEGIN]] = -math.inf
        self.attention = torch.rand(997, 4, generator=generator)
        self.attends = attends

    def encode(self, source, lengths):
        return source.sum(1), torch.arange(source.shape[1]) < lengths[:, None]

    def init_state(self, memory, beams):
        return (memory[0][:, None].expand(-1, beams) % 997,)

    def step(self, words, state, memory):
        index = (state[0] * 31 + words * 7 + 1) % 997
        weights = self.attention[index, : memory[1].shape[1]] * memory[1][:, None]
        weights = weights / weights.sum(2, keepdim=True)
        return self.logits[index], (index,), weights if self.attends else None


def search(beams, *, length_norm=0.6, coverage=0.0):
    return Search(beams, length_norm, coverage)


SOURCE = torch.tensor([[5, 6, 7], [9, 8, 0], [4, 0, 0], [6, 6, 6], [7, 5, 0]])
LENGTHS = torch.tensor([3, 2, 1, 3, 2])
LIMITS = torch.tensor([3, 3, 2, 1, 3])


def scored(model, row, *, how):
    """Yield (score, words) of every translation within the limit, in plain Python."""
    memory = model.encode(SOURCE[row : row + 1], LENGTHS[row : row + 1])
    prefixes = [([], 0.0, model.init_state(memory, 1), torch.zeros(SOURCE.shape[1]))]
    while prefixes:
        words, total, state, seen = prefixes.pop()
        last = torch.tensor([[words[-1] if words else BEGIN]])
        logits, state, weights = model.step(last, state, memory)
        likely = logits[0, 0].log_softmax(0).tolist()
        seen = seen + weights[0, 0]
        norm = ((NORM_CONSTANT + len(words) + 1) / (NORM_CONSTANT + 1)) ** how.length_penalty
        covered = sum(math.log(min(1.0, seen[position])) for position in range(LENGTHS[row]))
        yield (total + likely[END]) / norm + how.coverage_penalty * covered, words
        if len(words) < LIMITS[row]:
            others = (word for word in range(len(likely)) if word not in (PAD, BEGIN, END))
            prefixes += [([*words, word], total + likely[word], state, seen) for word in others]


def ended(words, width):
    return [*words, END] + [PAD] * (width - len(words) - 1)


@pytest.mark.parametrize("coverage", [0.0, 0.3])
@pytest.mark.parametrize("length_norm", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(2))
def test_with_room_for_every_hypothesis_it_is_exhaustive_search(seed, length_norm, coverage):
    model = Chain(7, seed=seed, attends=True)  # four words: 1 + 4 + 16 + 64 translations
    how = search(85, length_norm=length_norm, coverage=coverage)
    result = translate(model, SOURCE, LENGTHS, limits=LIMITS, search=how)
    for row in range(5):
        every = list(scored(model, row, how=how))
        assert len(every) == [1, 5, 21, 85][LIMITS[row]]
        assert result[row].tolist() == ended(max(every)[1], 4)


def narrow(model, row, beams, limit, *, how):
    """The search again for one sentence, with Python lists."""
    memory = model.encode(SOURCE[row : row + 1], LENGTHS[row : row + 1])
    hypotheses = [(0.0, [], model.init_state(memory, 1))]
    complete = []
    for length in range(limit + 1):
        ahead = []
        for total, words, state in hypotheses:
            last = torch.tensor([[words[-1] if words else BEGIN]])
            logits, after, _ = model.step(last, state, memory)
            likely = logits[0, 0].log_softmax(0)
            for word in range(len(likely)):
                if (length < limit or word == END) and likely[word] > -math.inf:
                    ahead.append((total + likely[word].item(), [*words, word], after))
        ahead.sort(key=lambda item: -item[0])
        norm = ((NORM_CONSTANT + length + 1) / (NORM_CONSTANT + 1)) ** how.length_penalty
        complete += [(total / norm, words) for total, words, _ in ahead[:beams] if words[-1] == END]
        if len(complete) >= beams:
            break
        hypotheses = [item for item in ahead[: 2 * beams] if item[1][-1] != END][:beams]
    return max(complete)[1]


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_a_narrow_search_stops_when_as_many_hypotheses_are_complete(beams):
    model, how = Chain(12, seed=6), search(beams)
    limits = torch.tensor([9, 9, 5, 2, 7])
    result = translate(model, SOURCE, LENGTHS, limits=limits, search=how)
    for row in range(5):
        expected = narrow(model, row, beams, int(limits[row]), how=how)
        assert result[row].tolist() == ended(expected[:-1], 10)


def test_a_model_that_never_ends_is_ended_at_each_sentences_limit():
    model = Chain(9, seed=2)
    model.logits[:, END] = -30.0
    result = translate(model, SOURCE, LENGTHS, limits=LIMITS, search=search(3))
    assert ((result == END).long().argmax(1) == LIMITS).all()
    assert ((result != PAD).sum(1) == LIMITS + 1).all()


def network(name):
    torch.manual_seed(8)
    if name == "gnmt":
        made = Gnmt(19, hidden=12, layers=3, dropout=0.2)
    else:
        made = Transformer(19, d_model=12, ffn=20, heads=3, layers=2, dropout=0.2)
    for weight in made.parameters():  # or all words are about as likely
        weight.data.mul_(3.0)
    return made.eval()


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
@torch.no_grad()
def test_a_translation_does_not_depend_on_its_batch(name):
    model, how = network(name), search(4, coverage=0.1)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 9, (8,), generator=generator)
    source = torch.randint(4, 19, (8, 8), generator=generator)
    limits = torch.randint(1, 10, (8,), generator=generator)
    together = translate(model, source, lengths, limits=limits, search=how)
    assert len({tuple(row) for row in together.tolist()}) > 3
    for row in range(8):
        rows, width = slice(row, row + 1), int(limits[row]) + 1
        alone = translate(
            model, source[rows, : int(lengths[row])], lengths[rows], limits=limits[rows], search=how
        )
        assert alone[0].tolist() == together[row, :width].tolist()
        assert not together[row, width:].any()


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
@torch.no_grad()
def test_the_search_follows_the_training_pass(name):
    """The best of all short translations, scored by the pass that training uses."""
    model, how = network(name), search(1 + 18 + 18**2)
    source, lengths = torch.tensor([[5, 9, 4]]), torch.tensor([3])
    result = translate(model, source, lengths, limits=torch.tensor([2]), search=how)
    words = [word for word in range(19) if word != END]
    every, scores = [], []
    for length in range(3):
        some = list(itertools.product(words, repeat=length))
        target = torch.tensor([[BEGIN, *each, END] for each in some])
        likely = model(source.expand(len(some), 3), lengths.expand(len(some)), target[:, :-1])
        total = likely.log_softmax(2).gather(2, target[:, 1:, None]).sum((1, 2))
        norm = ((NORM_CONSTANT + length + 1) / (NORM_CONSTANT + 1)) ** how.length_penalty
        every, scores = every + some, scores + (total / norm).tolist()
    best = every[max(range(len(every)), key=scores.__getitem__)]
    assert result[0].tolist() == ended(best, 3)
