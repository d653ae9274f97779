import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlbench.tasks.logreg.model import Linear, cross_entropy
from mlbench.tasks.resnet20.model import resnet
from mlbench.training.flops import training_flops


def classification(logits):
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def resnet_macs(depth, width, classes, shortcut):
    """Multiplications of one 32x32 image's forward pass, and those of the first layer alone."""
    n = (depth - 2) // 6
    pixels, first = 32 * 32, 27 * width * 32 * 32
    total = first
    for stage in range(3):
        out = width * 2**stage
        if stage:
            pixels //= 4
            entering = out // 2
            total += 9 * entering * out * pixels
            total += entering * out * pixels if shortcut == "projection" else 0
            total += 9 * out * out * pixels * (2 * n - 1)
        else:
            total += 9 * out * out * pixels * 2 * n
    return total + 4 * width * classes, first


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("depth", "shortcut", "forward_macs", "training"),
    [
        (20, "identity", 40_551_040, 242_421_504),  # He's 40.55 M; 0.2424 G
        (20, "projection", 40_813_184, 243_994_368),
        (56, "projection", 125_747_840, 753_602_304),
    ],
)
def test_resnet_equals_the_closed_form(depth, shortcut, forward_macs, training, batch):
    model = resnet(depth, variant="v1", shortcut=shortcut, width=16)
    macs, first = resnet_macs(depth, 16, 10, shortcut)
    assert macs == forward_macs
    # forward, weight gradients and input gradients cost the same; the images need no gradient
    assert 2 * (3 * macs - first) == training
    assert training_flops(model, [torch.randn(batch, 3, 32, 32)], classification) == training


def test_logistic_regression_needs_four_flops_a_feature():
    """Six would count the gradient of the rows, which nobody needs."""

    def loss(logits):
        rows = torch.zeros(len(logits), device=logits.device)
        return cross_entropy(logits, rows)

    assert training_flops(Linear(2000), [torch.randn(128, 2000)], loss) == 4 * 2000


def test_recurrent_layers_are_counted_by_the_token():
    hidden, length, batch = 64, 7, 5
    model = nn.LSTM(32, hidden, num_layers=2)
    flops = training_flops(
        model,
        [torch.zeros(length, batch, 32)],
        lambda output: output[0].sum(),
        samples=length * batch,
    )
    inputs, recurrent = 4 * hidden * (32 + hidden), 4 * hidden * 2 * hidden
    without = 4 * hidden * 32 + recurrent / length  # the input's and the zero state's gradients
    assert flops == pytest.approx(6 * (inputs + recurrent) - 2 * without, rel=1e-12)


def test_frozen_weights_need_no_gradient_and_tied_ones_count_at_each_use():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    inputs = [torch.zeros(2, 8)]
    assert training_flops(model, inputs, lambda output: output.sum()) == 4 * 64 + 6 * 64
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[0].weight.requires_grad_(False)
    assert training_flops(model, inputs, lambda output: output.sum()) == 2 * 64 + 4 * 64


def test_the_callers_model_and_random_state_stay_as_they_were():
    torch.manual_seed(3)
    model = nn.Sequential(resnet(20, variant="v2", shortcut="projection", width=8), nn.Dropout(0.5)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images, state = torch.zeros(2, 3, 32, 32), torch.get_rng_state()
    training_flops(model, [images], classification)
    assert torch.equal(state, torch.get_rng_state())
    assert not any(module.training for module in model.modules())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_training_pass_is_counted_also_of_a_model_that_is_being_validated():
    class TwiceInTraining(nn.Linear):
        def forward(self, input):
            output = super().forward(input)
            return super().forward(output) if self.training else output

    model = TwiceInTraining(8, 8, bias=False).eval()
    assert training_flops(model, [torch.zeros(2, 8)], lambda output: output.sum()) == 10 * 64
