"""Both translation models: padding is not seen, and a search steps through what training computes."""

from typing import Any

import pytest
import torch

from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.transformer.model import Transformer

LENGTHS = torch.tensor([7, 3, 5])


def sentences(longest: int = 7, *, seed: int = 2) -> torch.Tensor:
    return torch.randint(4, 23, (3, longest), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["gnmt", "transformer"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    if request.param == "gnmt":
        return Gnmt(23, hidden=8, layers=4, dropout=0.0)
    return Transformer(23, d_model=16, ffn=24, heads=4, layers=2, dropout=0.0)


def test_padding_changes_nothing(model: Any) -> None:
    source, target = sentences(), sentences(4, seed=3)
    output = model(source, LENGTHS, target)
    other = source.clone()
    other[torch.arange(7) >= LENGTHS[:, None]] = 1
    longer = torch.cat([source, sentences(5, seed=4)], 1)
    for padded in (other, longer):
        torch.testing.assert_close(model(padded, LENGTHS, target), output)
    for row, length in enumerate(LENGTHS.tolist()):
        rows = slice(row, row + 1)
        torch.testing.assert_close(model(source[rows, :length], LENGTHS[rows], target[rows]), output[rows])


def test_steps_of_the_search_are_the_training_pass(model: Any) -> None:
    """Which sees all of a target at once, so no word sees those behind it either."""
    model.eval()
    targets = [sentences(6, seed=seed) for seed in (3, 4)]
    with torch.no_grad():
        memory = model.encode(sentences(), LENGTHS)
        state = model.init_state(memory, 2)
        whole = [model(sentences(), LENGTHS, target) for target in targets]
        for position in range(6):
            words = torch.stack([target[:, position] for target in targets], 1)
            logits, state, weights = model.step(words, state, memory)
            for beam in range(2):
                torch.testing.assert_close(logits[:, beam], whole[beam][:, position])
            if weights is not None:
                assert torch.allclose(weights.sum(2), torch.ones(3, 2)) and not weights[1, :, 3:].any()
