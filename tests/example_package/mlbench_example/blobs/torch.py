"""What the loop trains."""

import torch
import torch.nn.functional as F
from torch import nn

from mlbench.datasets import arrow
from mlbench.training import sampling
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker
from mlbench_example.blobs import Config, prepare


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return a line through the plane, plain SGD and the data."""
    folder = prepare(config, worker.data_root)
    tables = [arrow.read_split(folder, split) for split in ("train", "test")]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)
        model = nn.Linear(2, 1).to(worker.device)

    def load() -> list[list[torch.Tensor]]:
        return [[arrow.tensor(table, name).clone() for name in ("points", "labels")] for table in tables]

    def steps(data: list[list[torch.Tensor]], epoch: int) -> sampling.BatchIterator:
        order = sampling.shuffled_rows(config.rows, batch=config.batch_size, epoch=epoch, worker=worker)
        return sampling.BatchIterator(order, lambda rows: [column[rows] for column in data[0]])

    def validate(trained: nn.Module, data: list[list[torch.Tensor]]) -> dict[str, float]:
        part = sampling.shard(len(data[1][1]), worker)
        points, labels = (column[part.start : part.stop] for column in data[1])
        logits = trained(points)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").item()
        right = ((logits > 0) == (labels > 0.5)).sum().item()
        loss, right, count = worker.sum([loss, right, len(part)]).tolist()
        return {"accuracy": 100 * right / count, "loss": loss / count}

    return TrainingSetup(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=config.lr),
        epochs=config.epochs,
        load=load,
        steps=steps,
        forward=lambda net, batch: net(batch[0])[:, 0],
        loss=lambda logits, batch: F.binary_cross_entropy_with_logits(logits, batch[1]),
        validate=validate,
        samples=lambda batch: len(batch[1]),
        sample_unit="points",
    )
