"""Task 1b from class folders to a trained model."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from stand_in_gpu import CUDA, Gpu
from test_resnet50_data import write_images

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.tasks import registry, resnet50
from mlbench.tasks.resnet50 import batches, data
from mlbench.training import loop, precision
from mlbench.training.setup import TrainingSetup
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

TINY = ["task=resnet50", "division=open", "goal=none", "task.stage_blocks=[1,1,1,1]", "task.width=4",
        "task.crop=32", "task.resize=36", "task.epochs=2", "task.warmup_epochs=1"]  # fmt: skip


def train_on(worker: Worker, root: Path, overrides: list[str]) -> Any:
    """Train on a small ImageNet of 18 training and 9 validation images; return what came out."""
    return loop.train(set_up(worker, root, overrides), worker)


def set_up(worker: Worker, root: Path, overrides: list[str]) -> TrainingSetup:
    worker.data_root, worker.seed = root, 1
    with pytest.MonkeyPatch.context() as small:
        small.setattr(data, "IMAGENET_IMAGES", {"train": 18, "val": 9})
        small.setattr(data, "IMAGENET_CLASSES", 3)
        return registry.build(compose(overrides).task, worker)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    write_images(root / "downloads/imagenet/train", each=6)
    write_images(root / "downloads/imagenet/val", each=3)
    return root


@pytest.mark.slow
def test_class_folders_go_from_prepare_to_a_trained_model_on_two_workers(imagenet: Path) -> None:
    overrides = [*TINY, "scale=official", "task.batch_size=4", "task.micro_batch=2"]
    first, second = run_ranks(train_on, 2, imagenet, overrides)
    assert first.status == "completed" and first.unit == "images"
    assert first.steps == 4  # 18 images fill two global batches of 8 an epoch
    assert sum(segment.samples for segment in first.phase_times) == 16
    assert first.flops_per_sample > 0
    for mine, other in zip(first.validations, second.validations, strict=True):
        assert mine["metrics"] == other["metrics"]
        ninths = mine["metrics"]["top1_accuracy"] * 9 / 100  # all nine images are counted once
        assert ninths == pytest.approx(round(ninths)) and mine["metrics"]["top5_accuracy"] == 100
    assert first.table == second.table and [row["rank"] for row in first.table] == [0, 1]
    for row in first.table:
        assert row["kind"] == "decoding" and row["images"] == 9 and row["processes"] == 1
        assert row["images_per_s_per_process"] > 0


def test_a_global_batch_grows_with_the_workers_to_its_limit() -> None:
    config = compose(["task=resnet50", "scale=official"]).task
    assert isinstance(config, resnet50.Config)
    sizes = {k: batches(config, k)[0] * k for k in (1, 2, 8, 32, 64, 1024)}
    assert sizes == {1: 256, 2: 512, 8: 2048, 32: 8192, 64: 8192, 1024: 8192}


@pytest.mark.parametrize(("width", "layout"), [(1, torch.contiguous_format), (2, torch.channels_last)])
def test_its_layout_follows_the_channels_of_the_strided_convolutions(
    imagenet: Path, width: int, layout: torch.memory_format
) -> None:
    made = set_up(Worker(), imagenet, [*TINY, "scale=official", f"task.width={width}"])
    weights = made.model.state_dict()["conv1.weight"]  # [width, 3, 7, 7]
    assert weights.is_contiguous(memory_format=layout)


class Overflowing(precision.LossScaler):
    """Its first two updates overflow."""

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs) * (math.inf if self.skipped_steps() < 2 else 1.0)


def test_updates_that_overflowed_are_counted_in_every_validation(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which computes in full precision but can scale a loss; and the run goes on from its start."""
    scaler = Overflowing(torch.device("cpu"), first=2.0, window=1000, largest=None)
    monkeypatch.setattr(precision, "on_device", lambda *_, **__: precision.Precision(None, scaler))
    outcome = train_on(Worker(), imagenet, [*TINY, "scale=official", "task.batch_size=8"])
    assert outcome.steps == 4 and outcome.status == "completed"
    assert [validation["metrics"]["skipped_steps"] for validation in outcome.validations] == [2.0, 2.0]


def test_more_workers_than_the_images_feed_are_refused(imagenet: Path) -> None:
    with pytest.raises(UserError, match="use fewer workers"):
        train_on(Worker(), imagenet, [*TINY, "scale=official", "task.batch_size=32"])


def test_a_gpu_gets_the_images_and_labels_of_each_batch_and_the_host_does_not_wait(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stand-in, with the CPU's batches; the ring that was decoded into is written again meanwhile."""
    overrides = [*TINY, "scale=official", "task.batch_size=4", "task.dataloader_workers=0"]
    setup = set_up(Worker(), imagenet, overrides)
    expected = [batch for step in setup.steps(None, 0) for batch in step]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # which a GPU sets
    gpu = Gpu()
    gpu.install(monkeypatch)
    with gpu:
        setup = set_up(Worker(device=CUDA), imagenet, overrides)
        gpu.faults.clear()
        batches = [batch for step in setup.steps(None, 0) for batch in step]
        assert all(tensor.is_cuda for batch in batches for tensor in batch)
    assert gpu.faults == [] and not gpu.host
    torch.testing.assert_close(batches, expected, atol=0, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_it_trains_on_a_gpu_in_every_precision(imagenet: Path, precision: str) -> None:
    worker = Worker(device=torch.device("cuda", 0), timer=PhaseTimer("cuda"))
    overrides = [
        *TINY,
        "scale=official",
        "task.batch_size=8",
        f"task.precision={precision}",
        "task.dataloader_workers=2",
        "backend=nccl",
    ]
    outcome = train_on(worker, imagenet, overrides)
    assert outcome.steps == 4 and outcome.status == "completed"
    assert all(validation["train_loss"] > 0 for validation in outcome.validations)
