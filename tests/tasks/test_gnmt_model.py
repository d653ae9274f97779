import math

import pytest
import torch
from torch import nn

from mlbench.tasks.gnmt import attention
from mlbench.tasks.gnmt.attention import AdditiveAttention, additive_scores
from mlbench.tasks.gnmt.model import SPREAD, Encoder, Gnmt

LENGTHS = torch.tensor([7, 3, 5])


def model(hidden=8, **sizes):
    torch.manual_seed(1)
    return Gnmt(23, **{"hidden": hidden, "layers": 4, "dropout": 0.0} | sizes)


def sentences(longest=7, *, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 23, (3, longest), generator=generator)


def test_the_official_model_has_the_originals_parameters():
    with torch.device("meta"):
        network = Gnmt(32_320, hidden=1024, layers=4, dropout=0.2)
    assert sum(weight.numel() for weight in network.parameters()) == 160_671_297


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


def test_the_first_layer_in_both_directions_is_torchs_packed_one():
    encoder = Encoder(8, layers=1, dropout=0.0)
    both = nn.LSTM(8, 8, bidirectional=True)
    for name, weight in encoder.forward_lstm.named_parameters():
        getattr(both, name).data.copy_(weight)
    for name, weight in encoder.backward_lstm.named_parameters():
        getattr(both, f"{name}_reverse").data.copy_(weight)
    x = torch.randn(7, 3, 8)
    packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0])
    output = encoder(x, LENGTHS)
    present = torch.arange(7)[:, None] < LENGTHS
    torch.testing.assert_close(output[present], expected[present])


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


def test_padding_changes_nothing():
    ours, source, target = model(), sentences(), sentences(4, seed=3)
    output = ours(source, LENGTHS, target)
    other = source.clone()
    other[torch.arange(7) >= LENGTHS[:, None]] = 1
    torch.testing.assert_close(ours(other, LENGTHS, target), output)
    longer = torch.cat([source, sentences(5, seed=4)], 1)
    torch.testing.assert_close(ours(longer, LENGTHS, target), output)
    for row, length in enumerate(LENGTHS.tolist()):
        rows = slice(row, row + 1)
        torch.testing.assert_close(ours(source[rows, :length], LENGTHS[rows], target[rows]), output[rows])


def test_a_word_does_not_see_the_words_behind_it():
    ours, source, target = model(), sentences(), sentences(6, seed=3)
    other = target.clone()
    other[:, 3:] = 4
    first, second = ours(source, LENGTHS, target), ours(source, LENGTHS, other)
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert not torch.allclose(first[:, 3:], second[:, 3:])


def test_steps_of_the_search_are_the_training_pass():
    ours, source = model().eval(), sentences()
    targets = [sentences(6, seed=seed) for seed in (3, 4)]
    with torch.no_grad():
        memory = ours.encode(source, LENGTHS)
        state = ours.init_state(memory, 2)
        for position in range(6):
            words = torch.stack([target[:, position] for target in targets], 1)
            logits, state, weights = ours.step(words, state, memory)
            assert weights is not None
            assert torch.allclose(weights.sum(2), torch.ones(3, 2))
            assert not weights[1, :, 3:].any()
            for beam, target in enumerate(targets):
                whole = ours(source, LENGTHS, target[:, : position + 1])
                torch.testing.assert_close(logits[:, beam], whole[:, -1])


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


def test_the_attention_spares_the_large_tensor(monkeypatch):
    """With parts of one place never more than [sentences, sources, hidden] exists."""
    sizes = []
    plain = attention._active

    def watched(queries, keys):
        sizes.append(queries.shape[1])
        return plain(queries, keys)

    monkeypatch.setattr(attention, "_active", watched)
    monkeypatch.setitem(attention.CHUNK, "cpu", 3 * 5 * 8)
    asking = AdditiveAttention(8, spread=0.1)
    memory = torch.randn(3, 5, 8, requires_grad=True)
    contexts, _ = asking(
        torch.randn(3, 6, 8), asking.keys(memory), memory, torch.zeros(3, 5, dtype=torch.bool)
    )
    contexts.sum().backward()
    assert sizes == [1] * 12  # six places forwards, six again backwards


def test_every_weight_gets_a_gradient():
    ours = model(dropout=0.2)
    ours(sentences(), LENGTHS, sentences(4, seed=3)).logsumexp(2).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in ours.parameters())
