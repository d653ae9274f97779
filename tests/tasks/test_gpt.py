"""GPT-2 against torch's own layers, its losses against an independent sum, its goal against counted pairs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import mini_worker
from torch import nn

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.datasets import arrow
from mlbench.tasks import registry
from mlbench.tasks.gpt import batches, check, data
from mlbench.tasks.gpt import model as gpt
from mlbench.tasks.gpt.torch import evaluate, flops_per_token, language_model
from mlbench.training.worker import Worker


def small(**changes: Any) -> gpt.Gpt:
    torch.manual_seed(0)
    return gpt.Gpt(31, context=9, layers=2, d_model=16, heads=4, **changes)


def test_the_official_model_is_gpt_2_with_its_rows_filled_up() -> None:
    config: Any = compose(["task=gpt", "scale=official"]).task
    with torch.device("meta"):
        model = language_model(config)
    assert sum(weight.numel() for weight in model.parameters()) == 124_439_808 + (50_304 - 50_257) * 768


def test_the_model_computes_what_torch_s_own_layers_compute() -> None:
    """nn.TransformerEncoderLayer with norms first, tanh's GELU and a causal mask is a block of GPT-2."""
    model = small().double()
    tokens = torch.randint(31, (3, 9))
    x = model.tokens[tokens] + model.positions
    for block in model.blocks:
        assert isinstance(block, gpt.TransformerBlock)
        theirs = nn.TransformerEncoderLayer(
            16, 4, 64, 0.0, lambda y: F.gelu(y, approximate="tanh"), batch_first=True, norm_first=True
        ).double()
        pairs = (
            (theirs.self_attn.in_proj_weight, block.attention_inputs.weight),
            (theirs.self_attn.in_proj_bias, block.attention_inputs.bias),
            (theirs.self_attn.out_proj.weight, block.attention_output.weight),
            (theirs.self_attn.out_proj.bias, block.attention_output.bias),
            *zip(theirs.linear1.parameters(), block.mlp_input.parameters(), strict=True),
            *zip(theirs.linear2.parameters(), block.mlp_output.parameters(), strict=True),
        )
        for other, own in pairs:
            assert other is not None
            other.data.copy_(own + 0.01)  # no bias is 0
            own.data.add_(0.01)
        x = theirs(x, nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64), is_causal=True)
    expected = model.norm(x) @ model.tokens.T
    torch.testing.assert_close(model(tokens), expected, rtol=1e-10, atol=1e-12)


def test_weights_start_as_gpt_2_s() -> None:
    config: Any = compose(["task=gpt"]).task
    model = language_model(config)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            std = 0.02 / math.sqrt(2 * config.layers) if name.endswith("output.weight") else 0.02
            assert weight.std().item() == pytest.approx(std, rel=0.05), name
        else:
            assert (weight == (0 if name.endswith("bias") else 1)).all(), name


def test_checkpointed_activations_give_the_same_gradients() -> None:
    tokens = torch.randint(31, (2, 9))
    gradients = []
    for checkpointing in (False, True):
        model = small(activation_checkpointing=checkpointing)
        model(tokens).square().sum().backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


@pytest.mark.parametrize("scale", ["official", "mini"])
def test_flops_are_those_of_the_closed_form(scale: str) -> None:
    config: Any = compose(["task=gpt", f"scale={scale}"]).task
    matrices = config.layers * 12 * config.d_model**2 + config.vocabulary * config.d_model
    attention = 12 * config.layers * config.d_model * config.context
    assert flops_per_token(config) == pytest.approx(6 * matrices + attention, rel=1e-9)


@pytest.mark.parametrize(
    ("workers", "most", "expected"), [(1, 32, (512, 32)), (8, 64, (64, 64)), (32, 12, (16, 8))]
)
def test_a_step_has_as_many_sequences_whatever_the_workers(
    workers: int, most: int, expected: tuple[int, int]
) -> None:
    overrides = ["task=gpt", "scale=official", f"task.batch_size={most}", f"workers={workers}"]
    experiment = compose(overrides)
    assert not experiment.deviations  # a free field
    config: Any = experiment.task
    assert batches(config, workers) == expected
    assert config.global_batch(workers) == 512


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary": 49},
        {"context": 200},
        {"context": 99},
    ],
)
def test_a_model_that_does_not_fit_the_text_is_refused_before_workers_start(
    changes: dict[str, int], as_stored: Any, tmp_path: Path
) -> None:
    def write(writer: arrow.DatasetWriter) -> None:
        for split, rows in {"train": 1600, "valid": 99, "vocabulary": 50}.items():
            writer.write(split, [arrow.record_batch({"token": np.ones(rows, np.uint16)})])

    folder = arrow.write_dataset(tmp_path / "text", write, manifest={})
    config: Any = compose(["task=gpt"]).task.model_copy(update={"vocabulary": 50, "context": 98})
    check(config, workers=1, folder=folder)
    with pytest.raises(UserError, check=as_stored):
        check(config.model_copy(update=changes), workers=1, folder=folder)


class Table(nn.Module):
    """Says of every token what a table has for the one before it."""

    def __init__(self, probability: torch.Tensor) -> None:
        super().__init__()
        self.logits = probability.log()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits[tokens]


def tokens_of(folder: Path, split: str) -> np.ndarray:
    return arrow.column(arrow.read_split(folder, split), "token").astype(np.int64)


def pair_probabilities(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return p(next | token) [vocabulary, vocabulary] by interpolated Kneser-Ney smoothing (discount 0.5)."""
    counts = np.zeros((vocabulary, vocabulary))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    unigram = (counts > 0).sum(0) + 1.0
    unigram /= unigram.sum()
    total = counts.sum(1, keepdims=True).clip(1)
    share = 0.5 * (counts > 0).sum(1, keepdims=True) / total
    share[counts.sum(1) == 0] = 1.0
    return (counts - 0.5).clip(0) / total + share * unigram


@pytest.mark.slow
def test_a_model_that_sees_one_token_does_not_reach_the_goal(data_root: Path) -> None:
    """Without attention a token is all there is to predict from: pairs counted in the whole training text.

    Cross-entropy and bits per byte of that model are also summed here token by token.
    """
    config: Any = compose(["task=gpt"]).task
    folder = registry.load("gpt").prepare(config, data_root)
    probability = pair_probabilities(tokens_of(folder, "train"), config.vocabulary)
    text = data.open_dataset(folder, context=config.context).load()
    metrics = evaluate(Table(torch.from_numpy(probability)), text, micro=8, worker=Worker())
    valid = tokens_of(folder, "valid")
    valid = valid[: len(text.valid) * config.context + 1]
    nats = -np.log(probability[valid[:-1], valid[1:]])
    size = text.token_bytes.numpy()[valid[1:]].sum()
    assert metrics["cross_entropy"] == pytest.approx(nats.mean(), rel=1e-9)
    assert metrics["bits_per_byte"] == pytest.approx(nats.sum() / math.log(2) / size, rel=1e-9)
    assert config.goals.official + 0.05 < metrics["cross_entropy"] < 4.3


@pytest.mark.slow
def test_every_sequence_comes_once_an_epoch_and_two_workers_share_each_step(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.Sequences, "gather", lambda _, rows, device: torch.from_numpy(rows))
    config: Any = compose(["task=gpt", "division=open", "task.batch_size=2"]).task
    rows = []
    for rank, workers in ((0, 1), (0, 2), (1, 2)):
        setup = registry.build(config, mini_worker(Worker(rank=rank, world_size=workers), data_root))
        steps: Any = list(setup.steps(setup.load(), 3))
        assert {len(step) for step in steps} == {4 // workers}
        rows.append(torch.stack([torch.cat(step) for step in steps]))
    assert torch.equal(rows[0], torch.cat(rows[1:], 1))
    assert len(rows[0].unique()) == rows[0].numel()
