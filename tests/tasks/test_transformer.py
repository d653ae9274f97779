from typing import Any

import pytest
import torch

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.tasks import registry
from mlbench.tasks.transformer.model import Transformer
from mlbench.tasks.translation.torch import pair_flops
from mlbench.training.worker import Worker

VOCABULARY = 33_712  # of the original's data set


def official() -> tuple[Any, Transformer]:
    config: Any = compose(["task=transformer", "scale=official"]).task
    names = ("d_model", "ffn", "heads", "layers", "dropout")
    with torch.device("meta"):
        model = Transformer(VOCABULARY, **{name: getattr(config, name) for name in names})
    return config, model


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 3}, "task.heads=3 does not divide task.d_model=64"),
        ({"d_model": 5, "heads": 5}, "task.d_model=5 is odd"),
    ],
)
def test_widths_that_do_not_fit_are_refused_before_workers_start(changes, said):
    config = compose(["task=transformer"]).task.model_copy(update=changes)
    with pytest.raises(UserError, match=said):
        registry.check(config, workers=1, folder=None)


def test_the_official_configuration_makes_the_originals_model():
    _, model = official()
    assert sum(weight.numel() for weight in model.parameters()) == 210_808_832


@pytest.mark.parametrize(("source", "target"), [(28, 28), (5, 9)])
def test_flops_are_those_of_the_closed_form(source, target):
    config, model = official()
    d, ffn, layers = config.d_model, config.ffn, config.layers
    each = 4 * d * d + 2 * d * ffn  # multiplications a word of a layer without cross-attention
    layer = (source + target) * each + target * 2 * d * d + source * 2 * d * d
    meetings = 2 * d * (source**2 + target**2 + source * target)  # a causal mask halves nothing
    expected = 6 * (layers * (layer + meetings) + target * d * VOCABULARY)
    assert pair_flops(model, source, target) == expected
    if source == 28:  # the anchor: six times 210.7 million matrix elements a target token
        assert expected / target == pytest.approx(1.264e9, rel=0.01)


def test_attention_is_not_planned_anew_for_every_shape(data_root):
    """As cuDNN does it; no GPU here shows how long that takes."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    registry.build(compose(["task=transformer"]).task, Worker(data_root=data_root))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.slow
def test_the_recipe_counts_target_tokens_and_has_the_originals_rates(data_root):
    overrides = ["division=open", "task.lr=1.976e-3", "task.warmup_steps=1000"]
    config: Any = compose(["task=transformer", *overrides]).task
    setup = registry.build(config, Worker(data_root=data_root))
    batch = next(iter(setup.steps(setup.load(), 0)))[0]
    rates, group = [], setup.optimizer.param_groups[0]
    for step in (0, 1, 500, 1000, 4000):
        setup.before_step(step)
        rates.append(group["lr"])
    assert setup.samples(batch) == batch.target_tokens == int((batch.target_out != 0).sum())
    assert setup.sample_unit == "tokens"
    assert rates == pytest.approx([0, 1.976e-6, 0.988e-3, 1.976e-3, 0.988e-3])
    assert setup.validate_at == (0.3, 0.6, 0.9, 1.0)
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
