from typing import Any

import pytest
import torch

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.translation.torch import pair_flops
from mlbench.training.worker import Worker

VOCABULARY = 32_320  # of the original's data set


def official() -> tuple[Any, Gnmt]:
    config: Any = compose(["task=gnmt", "scale=official"]).task
    with torch.device("meta"):
        model = Gnmt(VOCABULARY, hidden=config.hidden, layers=config.layers, dropout=config.dropout)
    return config, model


def test_the_official_configuration_makes_the_originals_model():
    _, model = official()
    assert sum(weight.numel() for weight in model.parameters()) == 160_671_297


@pytest.mark.slow
def test_flops_are_those_of_the_closed_form():
    config, model = official()
    h, layers = config.hidden, config.layers
    encoder = 8 + 8 + 12 + 8 * (layers - 2) + 1  # h^2 multiplications a word; the last are the keys
    decoder = 8 + 12 * (layers - 1) + 1  # the last are the queries
    starts = (2 + layers - 1 + layers) * 4 * h * h  # states before the first word need no gradient

    def expected(source, target):
        products = source * encoder * h * h + target * (decoder * h * h + h * VOCABULARY)
        meetings = source * target * h  # contexts three times, scores forward and back to their weights
        return 6 * products + 10 * meetings - 2 * starts

    assert pair_flops(model, 5, 9) == expected(5, 9)
    # The anchor: 47.2 and 80.3 million multiplications a source and a target token.
    assert encoder * h * h == pytest.approx(47.2e6, rel=1e-3)
    assert decoder * h * h + h * VOCABULARY == pytest.approx(80.3e6, rel=1e-3)
    assert expected(28, 28) / 56 == pytest.approx(382e6, rel=0.01)


@pytest.mark.slow
def test_the_recipe_counts_both_sides_and_has_the_originals_rates(data_root):
    """Rates of 8 epochs of 10 updates: 200 updates of warm-up never end, so they are cut to 4."""
    overrides = [
        "task.epochs=8",
        "task.lr=2e-3",
        "task.warmup_steps=4",
        "task.global_batch_size=1500",
        "task.chunks=15",
    ]
    config: Any = compose(["task=gnmt", "division=open", *overrides, "task.batch_size=100"]).task
    setup = registry.build(config, Worker(data_root=data_root))
    steps = setup.steps(setup.load(), 0)
    batch = next(iter(steps))[0]
    total, rates, group = setup.epochs * len(steps), [], setup.optimizer.param_groups[0]
    for step in range(total):
        setup.before_step(step)
        rates.append(group["lr"])
    assert setup.samples(batch) == batch.source_tokens + batch.target_tokens
    assert setup.sample_unit == "tokens"
    assert total == 80
    assert rates[:5] == pytest.approx([2e-5, 2e-5 * 100**0.25, 2e-4, 2e-4 * 100**0.25, 2e-3])
    assert [index for index in range(5, 80) if rates[index] < rates[index - 1]] == [32, 36, 40, 44]
    assert rates[-1] == pytest.approx(2e-3 / 16)
    assert setup.validate_at == (0.3, 0.6, 0.9, 1.0)
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.999), 1e-8, 0)
