import math

import pytest
import torch
from torch import nn

from mlbench.tasks.transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    SelfAttention,
    sinusoids,
)
from mlbench.tasks.transformer.model import Transformer

LENGTHS = torch.tensor([7, 3, 5])
PRESENT = torch.arange(7) < LENGTHS[:, None]  # [sentences, s]


def model(**sizes):
    torch.manual_seed(1)
    standard = {"d_model": 16, "ffn": 24, "heads": 4, "layers": 2, "dropout": 0.0}
    return Transformer(23, **standard | sizes)


def torchs_attention(ours):
    theirs = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    parts = [ours.inputs] if isinstance(ours, SelfAttention) else [ours.query, ours.memory]
    theirs.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    theirs.out_proj.weight.data.copy_(ours.output.weight)
    return theirs


def copy_layer(ours, theirs):
    """Give torch's layer our weights, and zero biases where ours has none."""
    attentions = [(ours.self_attn, theirs.self_attn)]
    if hasattr(ours, "cross_attn"):
        attentions.append((ours.cross_attn, theirs.multihead_attn))
    for mine, other in attentions:
        copy = torchs_attention(mine)
        other.in_proj_weight.data.copy_(copy.in_proj_weight)
        other.out_proj.weight.data.copy_(copy.out_proj.weight)
        other.in_proj_bias.data.zero_()
        other.out_proj.bias.data.zero_()
    theirs.linear1.load_state_dict(ours.ffn[0].state_dict())
    theirs.linear2.load_state_dict(ours.ffn[3].state_dict())
    for number, norm in enumerate(ours.norms, start=1):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_layer_is_torchs(training):
    ours = EncoderLayer(16, 24, 4, 0.0).train(training)
    theirs = nn.TransformerEncoderLayer(16, 4, 24, 0.0, norm_first=True, batch_first=True).train(training)
    copy_layer(ours, theirs)
    x = torch.randn(3, 7, 16)
    output, expected = ours(x, PRESENT[:, None, None]), theirs(x, src_key_padding_mask=~PRESENT)
    torch.testing.assert_close(output[PRESENT], expected[PRESENT])


def test_a_decoder_layer_is_torchs():
    ours = DecoderLayer(16, 24, 4, 0.0)
    theirs = nn.TransformerDecoderLayer(16, 4, 24, 0.0, norm_first=True, batch_first=True)
    copy_layer(ours, theirs)
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    expected = theirs(
        x,
        memory,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5),
        tgt_is_causal=True,
        memory_key_padding_mask=~PRESENT,
    )
    output, _ = ours(x, memory, keep_mask=PRESENT[:, None, None])
    torch.testing.assert_close(output, expected)


def test_places_are_sines_and_cosines_of_geometric_wavelengths():
    table = sinusoids(50, 8)
    for position in (0, 1, 49):
        for channel in range(4):
            angle = position / 10_000 ** (channel / 3)
            assert table[position, channel].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 4 + channel].item() == pytest.approx(math.cos(angle), abs=1e-5)
    torch.testing.assert_close(sinusoids(3, 8, first=20), table[20:23])


def test_one_embedding_reads_both_languages_and_writes_the_target():
    ours = model()
    names = [name for name, weight in ours.named_parameters() if 23 in weight.shape]
    assert names == ["embedding.weight"]
    x = torch.randn(2, 3, 16)
    expected = ours.decoder_norm(x) @ ours.embedding["weight"].t()
    torch.testing.assert_close(ours._classify(x), expected)


def test_a_seed_gives_the_weights_that_an_embedding_module_would_leave() -> None:
    """An nn.Embedding draws numbers of its own first, and a release's seeds stand for what follows."""
    sizes = {"d_model": 32, "ffn": 64, "heads": 4, "layers": 1, "dropout": 0.1}
    torch.manual_seed(3)
    made = Transformer(100, **sizes)
    torch.manual_seed(3)
    weight = nn.Embedding(100, 32).weight
    nn.init.normal_(weight, std=32**-0.5)
    layer = EncoderLayer(32, 64, 4, 0.1)
    assert torch.equal(made.embedding["weight"], weight)
    weights = dict(made.named_parameters())
    assert torch.equal(weights["encoder.0.self_attn.inputs.weight"], layer.self_attn.inputs.weight)
