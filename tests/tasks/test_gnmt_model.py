import math

import pytest
import torch

from mlbench.tasks.gnmt import attention
from mlbench.tasks.gnmt.attention import additive_scores
from mlbench.tasks.gnmt.model import SPREAD, Gnmt

LENGTHS = torch.tensor([7, 3, 5])


def model(hidden=8, **sizes):
    torch.manual_seed(1)
    return Gnmt(23, **{"hidden": hidden, "layers": 4, "dropout": 0.0} | sizes)


def sentences(longest=7, *, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 23, (3, longest), generator=generator)


def test_weights_start_as_spread_as_the_originals_tenth_at_its_width():
    assert pytest.approx(0.1) == SPREAD / math.sqrt(1024)
    start = model(hidden=64)
    for name, weight in start.named_parameters():
        if "bias_hh" in name or name == "decoder.attention.key.bias":
            assert not weight.any(), name
        elif name == "decoder.attention.scale":
            assert weight.item() == pytest.approx(1 / 8)
        else:
            bound = 1 / 8 if name == "decoder.attention.direction" else 0.4
            assert bound / 2 < weight.abs().max() <= bound, name


def test_the_model_is_what_its_description_says_sentence_by_sentence():
    """GNMT again, for one unpadded sentence, from torch's own layers in the order of the paper."""
    ours, source, target = model(), sentences(), sentences(4, seed=3)
    encoder, decoder = ours.encoder, ours.decoder
    output = ours(source, LENGTHS, target)
    for row, length in enumerate(LENGTHS.tolist()):
        x = ours.embedding(source[row, :length])
        there, back = encoder.forward_lstm(x)[0], encoder.backward_lstm(x.flip(0))[0].flip(0)
        second = encoder.layers[0](torch.cat([there, back], 1))[0]
        third = encoder.layers[1](second)[0] + second
        memory = encoder.layers[2](third)[0] + third
        first = decoder.first(ours.embedding(target[row]))[0]
        asking = decoder.attention
        sums = asking.query(first)[:, None] + asking.key(memory)
        direction = asking.scale * asking.direction / asking.direction.norm()
        context = (torch.tanh(sums) @ direction).softmax(1) @ memory
        y = decoder.layers[0](torch.cat([first, context], 1))[0]
        for layer in (1, 2):
            y = decoder.layers[layer](torch.cat([y, context], 1))[0] + y
        torch.testing.assert_close(output[row], ours.classifier(y))


@pytest.mark.parametrize("chunk", [1, 200, 2**22], ids=["a place", "some places", "all places"])
def test_scores_and_their_gradients_do_not_depend_on_the_parts(monkeypatch, chunk):
    monkeypatch.setitem(attention.CHUNK, "cpu", chunk)
    generator = torch.Generator().manual_seed(3)
    sizes = ((2, 5, 6), (2, 4, 6), (6,))
    inputs = [
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes
    ]
    queries, keys, direction = inputs
    plain = torch.tanh(queries[:, :, None] + keys[:, None]) @ direction
    torch.testing.assert_close(additive_scores(queries, keys, direction), plain)
    assert torch.autograd.gradcheck(additive_scores, inputs)
