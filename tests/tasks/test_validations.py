"""What a task's validation and loss say of answers that are chosen here, so that the truth is known."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ranks import mini_worker
from torch import nn

from mlbench.config.compose import compose
from mlbench.contract.test_task import _tensors
from mlbench.tasks import registry
from mlbench.tasks.awdlstm import bptt
from mlbench.tasks.awdlstm.nt_asgd import Averaging
from mlbench.tasks.logreg import data as logreg_data
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
    test = logreg_data.open_dataset(data_root / compose(["task=logreg"]).task.dataset)[1]
    with torch.no_grad():
        weight = setup.model.get_parameter("weight")
        weight.mul_(1000.0)  # a penalty that is a good part of the loss
        metrics = setup.validate(setup.model, rows)
        margin = (test.features.double() @ weight.double().flatten()) * (2 * test.labels - 1)
    l2 = 2.5e-6
    expected = torch.log1p((-margin).exp()).mean().item() + l2 / 2 * weight.double().square().sum().item()
    assert l2 / 2 * weight.double().square().sum().item() > 0.001 * expected
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(100 * (margin > 0).double().mean().item(), abs=0.1)


class Answers(nn.Module):
    """Says of every image that class 1 is likeliest and class 0 comes second."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 2.0] + [0.0] * 8).repeat(len(images), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "resnet50"])
def test_a_network_that_always_says_one_class_is_right_as_often_as_it_comes(
    name: str, data_root: Path
) -> None:
    setup, data = built(name, data_root)
    folder = data_root / compose([f"task={name}"]).task.dataset
    labels = cifar.open_dataset(folder).test.labels if name == "resnet20" else data[1]
    labels = torch.as_tensor(labels).long()
    metrics = setup.validate(Answers(), data)
    setup.close()
    share = [(labels == label).double().mean().item() for label in (0, 1)]
    normaliser = math.log(math.e + math.e**2 + 8)
    assert metrics["top1_accuracy"] == pytest.approx(100 * share[1])
    assert metrics["loss"] == pytest.approx(normaliser - share[0] - 2 * share[1], rel=1e-5)
    if name == "resnet50":
        assert metrics["top5_accuracy"] > metrics["top1_accuracy"] + 100 * share[0] - 1e-9


@pytest.mark.slow
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

    def photographs(folder: Path) -> cifar.ImageSplits:
        """Every image is white on its left half."""
        files = open_dataset(folder)
        images = torch.zeros_like(files.train.images)
        images[..., : images.shape[-1] // 2] = 255
        return replace(files, train=files.train._replace(images=images), flip=flip)

    monkeypatch.setattr(cifar, "open_dataset", photographs)
    setup, data = built("resnet20", data_root)
    mirrored = []
    for ((images, _),) in setup.steps(data, 0):
        middle = images.shape[-1] // 2
        left, right = (part.mean(dim=(1, 2, 3)) for part in (images[..., :middle], images[..., middle:]))
        mirrored.append(left < right)
    share = torch.cat(mirrored).double().mean().item()
    assert share == (pytest.approx(0.5, abs=0.05) if flip else 0.0)


def identical(folder: Path) -> cifar.ImageSplits:
    """Return the data set with one and the same image in every place: a white dot on black."""
    files = OPEN_CIFAR(folder)
    images = torch.zeros_like(files.train.images)
    images[..., images.shape[-2] // 2, images.shape[-1] // 2] = 255
    return replace(files, train=files.train._replace(images=images), flip=True)


OPEN_CIFAR = cifar.open_dataset


def test_resnet20_cuts_and_mirrors_anew_in_every_epoch_and_with_every_seed(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All images are one, so batches differ by their crops alone."""
    monkeypatch.setattr(cifar, "open_dataset", identical)
    task = compose(["task=resnet20"]).task

    def images(seed: int, epoch: int) -> torch.Tensor:
        setup = registry.build(task, mini_worker(Worker(), data_root, seed=seed))
        return torch.cat([step[0][0] for step in setup.steps(setup.load(), epoch)])

    first = images(1, 0)
    assert torch.equal(first, images(1, 0))
    for other in (images(1, 1), images(2, 0)):
        same = (first == other).flatten(1).all(1).double().mean().item()
        assert same < 0.05, "of 9 x 9 places and two sides one in 162 is the same by chance"


def start(name: str, root: Path, *, seed: int = 1, epoch: int = 0, rank: int = 0) -> tuple[bytes, bytes]:
    """Return the weights that a rank of two begins with and the first three steps of an epoch."""
    worker = mini_worker(Worker(rank=rank, world_size=2), root, seed=seed)
    setup = registry.build(compose([f"task={name}"]).task, worker)
    weights = b"".join(p.detach().contiguous().numpy().tobytes() for p in setup.model.parameters())
    steps = islice(setup.steps(setup.load(), epoch), 3)
    seen = [
        tensor.contiguous().numpy().tobytes() for batches in steps for b in batches for tensor in _tensors(b)
    ]
    setup.close()
    return weights, b"".join(seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logreg", "resnet20", "resnet50", "awdlstm", "gnmt"])
def test_a_seed_fixes_the_start_and_the_order_and_another_seed_epoch_or_rank_changes_them(
    name: str, data_root: Path
) -> None:
    weights, seen = start(name, data_root)
    assert start(name, data_root) == (weights, seen)
    other_weights, other_seen = start(name, data_root, seed=2)
    assert other_seen != seen and (other_weights != weights or name == "logreg")  # which begins with zeros
    same, of_rank_1 = start(name, data_root, rank=1)
    assert same == weights and of_rank_1 != seen
    same, later = start(name, data_root, epoch=1)
    assert same == weights and later != seen


def test_the_ranks_of_a_translation_drop_units_of_their_own(data_root: Path) -> None:
    drawn = []
    for rank, seed in ((0, 1), (1, 1), (0, 1), (0, 2)):
        start("gnmt", data_root, seed=seed, rank=rank)
        drawn.append(torch.rand(5).tolist())
    assert drawn[0] == drawn[2] and len({str(numbers) for numbers in drawn}) == 3


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
        vocabulary = next(len(p) for n, p in setup.model.named_parameters() if "words" in n or "embed" in n)
        with setup.validation_weights():
            after = setup.validate(setup.model, text)["perplexity"]
    assert after == pytest.approx(vocabulary, rel=1e-5)
    assert before != pytest.approx(vocabulary, rel=1e-4)


def test_columns_that_are_filled_up_count_only_their_words() -> None:
    """11 words are 10 to predict, in 4 columns of 2 and 3; zero logits find each of 7 alike likely."""

    def uniform(inputs: torch.Tensor, _: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*inputs.shape, 7), states=None)

    text = torch.arange(11) % 7
    metrics = bptt.validation(text, Worker(), count=4, bptt=2)(uniform)
    assert metrics == {"perplexity": pytest.approx(7.0), "loss": pytest.approx(math.log(7.0))}


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
        result = gradient(factor, scaled=True)
        scaler.update()
        torch.testing.assert_close(result, cut, rtol=1e-3, atol=1e-6)
        setup.model.load_state_dict(before)
    assert plain.norm() > 5.0
