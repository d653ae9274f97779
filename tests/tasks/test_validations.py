"""What a task's validation and loss say of answers that are chosen here, so that the truth is known."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ranks import mini_worker
from torch import nn

from mlbench.experiment.config import compose
from mlbench.tasks import registry
from mlbench.tasks.awdlstm import bptt
from mlbench.tasks.awdlstm.nt_asgd import Averaging
from mlbench.tasks.resnet20 import data as cifar
from mlbench.training import precision
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def built(name: str, root: Path) -> tuple[TrainingSetup, Any]:
    setup = registry.build(compose([f"task={name}"]).task, mini_worker(Worker(), root))
    return setup, setup.load()


def test_logreg_s_loss_has_the_penalty_that_is_trained(data_root: Path) -> None:
    """mean log(1 + exp(-y w x)) + l2/2 w^2, y = +-1; accuracy is the share of rows with y w x > 0."""
    setup, rows = built("logreg", data_root)
    with torch.no_grad():
        weight = setup.model.get_parameter("weight")
        weight.mul_(1000.0)  # a penalty that is a good part of the loss
        metrics = setup.validate(setup.model, rows)
        margin = (rows.test.features.double() @ weight.double().flatten()) * (2 * rows.test.labels - 1)
    l2 = 2.5e-6
    expected = torch.log1p((-margin).exp()).mean().item() + l2 / 2 * weight.double().square().sum().item()
    assert l2 / 2 * weight.double().square().sum().item() > 0.001 * expected
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(100 * (margin > 0).double().mean().item(), abs=0.1)


class Answers(nn.Module):
    """Says of every image that class 1 is likeliest and class 0 comes second."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 2.0] + [0.0] * 8).repeat(len(images), 1)


@pytest.mark.parametrize("name", ["resnet20", "resnet50"])
def test_a_network_that_always_says_one_class_is_right_as_often_as_it_comes(
    name: str, data_root: Path
) -> None:
    setup, found = built(name, data_root)
    labels = found.test.labels if name == "resnet20" else found[1]
    labels = torch.as_tensor(labels).long()
    metrics = setup.validate(Answers(), found)
    setup.close()
    share = [(labels == label).double().mean().item() for label in (0, 1)]
    normaliser = math.log(math.e + math.e**2 + 8)
    assert metrics["top1_accuracy"] == pytest.approx(100 * share[1])
    assert metrics["loss"] == pytest.approx(normaliser - share[0] - 2 * share[1], rel=1e-5)
    if name == "resnet50":
        assert metrics["top5_accuracy"] > metrics["top1_accuracy"] + 100 * share[0] - 1e-9


def test_resnet50_s_micro_batches_add_up_to_the_mean_over_the_step(data_root: Path) -> None:
    setup, _ = built("resnet50", data_root)
    setup.close()
    images, labels = torch.zeros(32, 3, 1, 1), torch.arange(32) % 10
    logits = Answers()(images)
    whole = setup.loss(logits, (images, labels))
    parts = [setup.loss(logits[part], (images[part], labels[part])) for part in (slice(8), slice(8, 32))]
    assert float(sum(parts)) == pytest.approx(float(whole))
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    assert float(whole) == pytest.approx(float(smoothed))


@pytest.mark.parametrize("flip", [True, False])
def test_resnet20_mirrors_half_of_the_photographs_and_no_digit(
    flip: bool, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_dataset = cifar.open_dataset

    def photographs(folder: Path) -> cifar.Dataset:
        """Every image is white on its left half."""
        files = open_dataset(folder)
        images = torch.zeros_like(files.train.images)
        images[..., : images.shape[-1] // 2] = 255
        return replace(files, train=files.train._replace(images=images), flip=flip)

    monkeypatch.setattr(cifar, "open_dataset", photographs)
    setup, found = built("resnet20", data_root)
    mirrored = []
    for ((images, _),) in setup.steps(found, 0):
        middle = images.shape[-1] // 2
        left, right = (part.mean(dim=(1, 2, 3)) for part in (images[..., :middle], images[..., middle:]))
        mirrored.append(left < right)
    share = torch.cat(mirrored).double().mean().item()
    assert share == (pytest.approx(0.5, abs=0.05) if flip else 0.0)


def test_awdlstm_validates_the_average_once_it_averages(data_root: Path) -> None:
    """A model whose weights are all 0 finds every word alike likely: its perplexity is their number."""
    setup, text = built("awdlstm", data_root)
    with torch.no_grad():
        setup.model.eval()
        before = setup.validate(setup.model, text)["perplexity"]
        averaging = cast(Averaging, setup.stateful["averaging"])
        averaging._start()
        assert averaging.average is not None
        for weight in averaging.average.values():
            weight.zero_()
        words = next(len(p) for n, p in setup.model.named_parameters() if "words" in n or "embed" in n)
        with setup.validation_weights():
            after = setup.validate(setup.model, text)["perplexity"]
    assert after == pytest.approx(words, rel=1e-5)
    assert before != pytest.approx(words, rel=1e-4)


def test_columns_that_are_filled_up_count_only_their_words() -> None:
    """11 words are 10 to predict, in 4 columns of 2 and 3; zero logits find each of 7 alike likely."""

    def uniform(inputs: torch.Tensor, _: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*inputs.shape, 7), states=None)

    text = torch.arange(11) % 7
    found = bptt.validation(text, Worker(), count=4, bptt=2)(uniform)
    assert found == {"perplexity": pytest.approx(7.0), "loss": pytest.approx(math.log(7.0))}


def test_gradients_are_clipped_in_their_own_unit_also_under_a_loss_scale(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which can scale a loss, too: what the optimizer gets is the gradient cut to a norm of 5."""
    scaler = precision.LossScaler(torch.device("cpu"), first=1024.0, window=1000, largest=None)
    monkeypatch.setattr(precision, "on_device", lambda *_, **__: precision.Precision(None, scaler))
    setup, text = built("gnmt", data_root)
    setup.model.eval()
    batch = next(iter(setup.steps(text, 0)))[0]

    def gradient(factor: float, scaled: bool) -> torch.Tensor:
        setup.optimizer.zero_grad()
        loss = factor * setup.loss(setup.forward(setup.model, batch), batch)
        (scaler.scale(loss) if scaled else loss).backward()
        if scaled and setup.optimizer_step is not None:
            setup.optimizer_step()
        return torch.cat(
            [weight.grad.flatten() for weight in setup.model.parameters() if weight.grad is not None]
        )

    assert setup.optimizer_step is not None
    for factor in (1e-3, 1e3):
        before = {name: value.clone() for name, value in setup.model.state_dict().items()}
        plain = gradient(factor, scaled=False)
        cut = plain * min(1.0, 5.0 / plain.norm().item())
        found = gradient(factor, scaled=True)
        scaler.update()
        torch.testing.assert_close(found, cut, rtol=1e-3, atol=1e-6)
        setup.model.load_state_dict(before)
    assert plain.norm() > 5.0
