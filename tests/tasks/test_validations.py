"""What a task's validation and loss say of answers that are chosen here, so that the truth is known."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ranks import mini_worker
from torch import nn

from mlbench.experiment.config import compose
from mlbench.tasks import registry
from mlbench.tasks.awdlstm.nt_asgd import Averaging
from mlbench.tasks.resnet20 import data as cifar
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
        for weight in averaging.average.module.parameters():
            weight.zero_()
        words = next(len(p) for n, p in setup.model.named_parameters() if "words" in n or "embed" in n)
        after = setup.validate(setup.model, text)["perplexity"]
    assert after == pytest.approx(words, rel=1e-5)
    assert before != pytest.approx(words, rel=1e-4)
