import pytest
import torch
import torch.nn.functional as F

from mlbench.tasks.translation import smoothing
from mlbench.tasks.translation.smoothing import smoothed_cross_entropy


def reference(logits, labels, *, smoothing, padding):
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        label_smoothing=smoothing,
        ignore_index=padding,
        reduction="sum",
    )


def batch(*shape, vocabulary, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(*shape, vocabulary, generator=generator, dtype=dtype)
    labels = torch.randint(vocabulary, shape, generator=generator)
    labels[-1, 1:] = 0
    return logits.requires_grad_(), labels


@pytest.mark.parametrize("chunk", [1, 70, 2**20], ids=["a row", "some rows", "all rows"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_loss_and_gradient_are_torchs(monkeypatch, chunk, epsilon):
    monkeypatch.setitem(smoothing.CHUNK, "cpu", chunk)
    logits, labels = batch(3, 5, vocabulary=23)
    loss = smoothed_cross_entropy(logits, labels, smoothing=epsilon, padding=0)
    expected = reference(logits, labels, smoothing=epsilon, padding=0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    result, wanted = (torch.autograd.grad(3 * part, logits)[0] for part in (loss, expected))
    torch.testing.assert_close(result, wanted)
    assert not result[-1, 1:].any()  # padding pulls nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    wide, labels = batch(4, 6, vocabulary=50)
    half = wide.detach().to(dtype).requires_grad_()
    loss = smoothed_cross_entropy(half, labels, smoothing=0.1, padding=0)
    exact = half.detach().float().requires_grad_()
    expected = reference(exact, labels, smoothing=0.1, padding=0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    (result,) = torch.autograd.grad(loss, half)
    (wanted,) = torch.autograd.grad(expected, exact)
    assert result.dtype == dtype
    torch.testing.assert_close(result, wanted.to(dtype))


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[3e4, 0.0, -3e4]], requires_grad=True)
    loss = smoothed_cross_entropy(logits, torch.tensor([1]), smoothing=0.0, padding=2)
    assert loss.item() == 3e4
    loss.backward()
    assert logits.grad is not None and logits.grad.tolist() == [[1.0, -1.0, 0.0]]
