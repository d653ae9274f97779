import copy
import math

import pytest
import torch
import torch.nn.functional as F

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.resnet20.model import resnet
from mlbench.training.worker import Worker

DEPTHS = (20, 32, 44, 56)
KINDS = [(v, s) for v in ("v1", "v2") for s in ("projection", "identity")]


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def restated(x, model, *, depth, variant, shortcut, training):
    """The network written down once more, with plain functions and the model's numbers in order."""
    numbers = iter(copy.deepcopy(model).state_dict().values())

    def conv(x, stride=1):
        weight = next(numbers)
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    def norm(x):
        weight, bias, mean, var = (next(numbers) for _ in range(4))
        next(numbers)  # the count of batches
        return F.batch_norm(x, mean, var, weight, bias, training=training, eps=1e-5)

    def way_round(x, out):
        if x.shape[1] == out:
            return x
        if shortcut == "projection":
            return norm(conv(x, stride=2))
        small = x[:, :, 0::2, 0::2]
        return torch.cat([small, torch.zeros_like(small)], dim=1)

    x = conv(x)
    if variant == "v1":
        x = norm(x).relu()
    width = x.shape[1]
    for out in (width, 2 * width, 4 * width):
        for block in range((depth - 2) // 6):
            stride = 2 if block == 0 and out > width else 1
            if variant == "v1":
                y = norm(conv(norm(conv(x, stride)).relu()))
                x = (y + way_round(x, out)).relu()
            elif block == 0:
                x = norm(x).relu()
                y = conv(norm(conv(x, stride)).relu())
                x = y + way_round(x, out)
            else:
                x = x + conv(norm(conv(norm(x).relu())).relu())
    if variant == "v2":
        x = norm(x).relu()
    y = x.mean(dim=(2, 3)) @ next(numbers).T + next(numbers)
    assert next(numbers, None) is None, "numbers are left over"
    return y


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_parameter_counts_of_the_papers_networks(variant):
    counts = {
        shortcut: [
            parameters(resnet(depth, variant=variant, shortcut=shortcut, width=16)) for depth in DEPTHS
        ]
        for shortcut in ("projection", "identity")
    }
    assert counts["projection"] == [272_474, 466_906, 661_338, 855_770]
    assert counts["identity"] == [269_722, 464_154, 658_586, 853_018]  # He's 0.27 ... 0.85 M


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("variant", "shortcut"), KINDS)
@pytest.mark.parametrize("depth", [20, 32])
def test_output_equals_a_plain_restatement(depth, variant, shortcut, training):
    torch.manual_seed(1)
    model = resnet(depth, variant=variant, shortcut=shortcut, width=16).double()
    for name, values in model.named_buffers():
        if name.endswith("running_mean"):
            values.normal_(std=0.1)
        elif name.endswith("running_var"):
            values.uniform_(0.5, 2)
    with torch.no_grad():  # batch norm's own start of ones and zeros would hide a swap
        for values in model.parameters():
            if values.dim() == 1:
                values.add_(torch.randn_like(values), alpha=0.1)
    images = torch.randn(3, 3, 32, 32, dtype=torch.double)
    expected = restated(images, model, depth=depth, variant=variant, shortcut=shortcut, training=training)
    got = model.train(training)(images)
    assert got.shape == (3, 10)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_convolutions_start_with_variance_two_over_fan_out():
    torch.manual_seed(1)
    model = resnet(56, variant="v1", shortcut="projection", width=16)
    for weight in (p for p in model.parameters() if p.dim() == 4):
        fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
        # five standard errors of a normal sample's standard deviation
        tolerance = 5 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=tolerance)


def test_a_depth_that_is_not_6n_plus_2_is_a_programming_error():
    with pytest.raises(AssertionError, match="21"):
        resnet(21, variant="v1", shortcut="projection", width=16)


def test_the_rate_falls_at_each_epoch_whatever_their_order(data_root):
    """In any other order than the ascending one both falls came at the wrong steps."""
    words = ["task=resnet20", "division=open", "task.decay=steps", "task.decay_factor=0.1"]
    task = compose([*words, "task.decay_epochs=[9,3]"]).task
    registry.load("resnet20").prepare(task, data_root)
    setup = registry.build(task, Worker(data_root=data_root))
    rates = []
    for epoch in (0, 2, 3, 8, 9):
        setup.before_step(epoch * (1_415 // 32))
        rates.append(setup.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])
