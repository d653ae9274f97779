"""ResNet-50 against torchvision's, and its arithmetic against closed forms."""

import pytest
import torch
import torchvision_ops
from torch import nn

from mlbench.tasks.resnet50.model import Bottleneck, resnet
from mlbench.tasks.weight_decay import parameter_groups
from mlbench.training.flops import training_flops
from mlbench.training.schedules import Schedule, warmup_cosine

FULL = {"stage_blocks": (3, 4, 6, 3), "width": 64, "classes": 1000}


@pytest.mark.slow
def test_it_is_torchvisions_resnet50_with_the_same_weights() -> None:
    """Names, shapes and order are torchvision's too, so weights can be exchanged in both directions."""
    reference = torchvision_ops.load().models.resnet50(weights=None)
    ours = resnet(**FULL)
    assert sum(p.numel() for p in ours.parameters()) == 25_557_032
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for mode in (True, False):  # training mode moves the running statistics that the other mode uses
            output, expected = ours.train(mode)(images), reference.train(mode)(images)
            assert torch.allclose(output, expected, atol=1e-5), mode
    for name, value in reference.state_dict().items():
        assert torch.allclose(ours.state_dict()[name].double(), value.double(), atol=1e-6), name


def test_fresh_weights_are_those_of_goyal() -> None:
    torch.manual_seed(5)
    net = resnet(**FULL)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        if isinstance(module, Bottleneck):
            assert not module.bn3.weight.any() and module.bn2.weight.eq(1).all()
    assert net.fc.weight.std().item() == pytest.approx(0.01, rel=0.02) and not net.fc.bias.any()


def test_batch_norms_and_biases_do_not_decay() -> None:
    net = resnet(**FULL)
    decayed, others = parameter_groups(net, 5e-5)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    without = [names[id(p)] for p in others["params"]]  # type: ignore[attr-defined]
    assert (decayed["weight_decay"], others["weight_decay"]) == (5e-5, 0.0)
    assert all(name.endswith(".bias") or "bn" in name or "downsample.1" in name for name in without)
    assert len(without) == 2 * 53 + 1  # scale and shift of each batch norm, and the classifier's bias
    assert len(decayed["params"]) == 53 + 1  # type: ignore[arg-type]  # the matrices


def test_one_image_needs_the_flops_that_its_layers_say() -> None:
    """4.09 G multiply-adds forward, as torchvision states for 224 x 224."""
    multiply_adds, side, channels = 112 * 112 * 64 * 3 * 49, 56, 64
    stem = multiply_adds
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            out = side // 2 if stage and not block else side
            multiply_adds += side**2 * channels * inner + out**2 * inner * (9 * inner + 4 * inner)
            if not block:
                multiply_adds += out**2 * channels * 4 * inner
            side, channels = out, 4 * inner
    multiply_adds += 2048 * 1000
    assert multiply_adds == pytest.approx(4.09e9, rel=2e-3)
    flops = training_flops(resnet(**FULL), [torch.empty(2, 3, 224, 224)], lambda logits: logits.sum())
    # Three products of every layer, but no gradient with respect to the pixels.
    assert flops == 2 * (3 * multiply_adds - stem)


def test_the_rate_rises_for_five_epochs_and_falls_as_a_cosine_to_nothing() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3.2)
    schedule = Schedule(optimizer, warmup_cosine(50, 900))
    rates = []
    for update in range(900):
        schedule.before_step(update)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(3.2 / 50) and rates[24] == pytest.approx(1.6)
    assert rates[49] == rates[50] == pytest.approx(3.2)
    assert rates[475] == pytest.approx(1.6)  # half of the way down
    assert rates[50 + 283] == pytest.approx(3.2 * (1 + 0.5) / 2, rel=5e-3)  # a third: cos 60 degrees
    assert all(later < sooner for sooner, later in zip(rates[50:], rates[51:], strict=False))
    assert 0 < rates[-1] < 1e-4
