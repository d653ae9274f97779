"""Logistic regression with plain SGD until the goal or the last epoch."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from mlbench.tasks.logreg import Config, data
from mlbench.tasks.logreg import model as logistic
from mlbench.training import precision, sampling
from mlbench.training.flops import training_flops
from mlbench.training.schedules import Plateau, Schedule, inverse_sqrt
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

# alpha of rate alpha/sqrt(t) for k workers, MLBench 2018. From 16 workers on it stays (README.md)
REFERENCE_ALPHA = {1: 200.0, 2: 400.0, 4: 600.0, 8: 700.0, 16: 800.0}

BLOCK = 8_192  # rows whose logits are computed at a time, off the clock
Splits = tuple[data.Rows, data.Rows]  # what is trained on and what is validated on, on the device


class Convergence:
    """The weights at every validation, from which the distance to the optimum follows off the clock."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return what a checkpoint holds."""
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        """Go on after a restart."""
        self.weights = list(state["weights"])

    def table(
        self, train: data.Rows, *, l2: float, optimum: float, worker: Worker
    ) -> list[dict[str, str | int | float]]:
        """Return the training objective at every validation and its distance to `optimum`."""
        if not self.weights:
            return []
        part = sampling.shard(len(train.labels), worker)
        device = train.features.device  # those of before a restart come from the host
        weights = torch.stack([each.to(device) for each in self.weights], dim=1).double()
        entropy = weights.new_zeros(weights.shape[1])
        for begin in range(part.start, part.stop, BLOCK):
            rows = slice(begin, min(begin + BLOCK, part.stop))
            logits = train.features[rows].double() @ weights
            labels = train.labels[rows].double().unsqueeze(1)
            entropy += (F.softplus(logits) - labels * logits).sum(dim=0)
        penalties = l2 / 2 * weights.square().sum(dim=0)
        objectives = worker.sum(entropy) / len(train.labels) + penalties
        return [
            {
                "kind": "convergence",
                "validation": number,
                "objective": objective,
                "distance_to_optimum": objective - optimum,
            }
            for number, objective in enumerate(objectives.tolist(), start=1)
        ]


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains."""
    files = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    count, features = files[0].features.shape
    train_rows = heldout_rows = None
    if config.validation == "split":
        train_rows, heldout_rows = (part.to(worker.device) for part in data.held_out(count))
        count = len(train_rows)

    def load() -> Splits:
        train, test = (
            data.Rows(split.features.to(worker.device), split.labels.to(worker.device)) for split in files
        )
        if heldout_rows is not None:
            # A third of the time that indexing with brackets takes on a CPU.
            test = data.Rows(*(part.index_select(0, heldout_rows) for part in train))
        return train, test

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = logistic.Linear(features).to(worker.device)
    if config.schedule == "plateau":
        lr, factor = config.lr * worker.world_size, lambda step: 1.0
        plateau = Plateau(config.decay_factor, config.patience)
    else:
        lr, factor, plateau = reference_alpha(config, worker.world_size), inverse_sqrt, None
    # The penalty's gradient, l2 * w, is weight decay. Its value is in the validations' loss only: in every
    # step's it takes a tenth of the time and more on a CPU.
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=config.l2, foreach=False)
    schedule = Schedule(optimizer, factor, plateau=plateau)
    mixed = precision.on_device(config.precision, worker.device)
    weight = model.weight
    values = weight.detach()  # one memory. no_grad takes longer than the arithmetic
    # Without autocast the logits have the labels' type, and a look at both is a hundredth of a short step.
    entropy = F.binary_cross_entropy_with_logits if mixed.autocast is None else logistic.cross_entropy

    def step() -> None:
        """Do what the optimizer's step does, without its book-keeping: a sixth of a short step on a CPU."""
        lr = optimizer.param_groups[0]["lr"]
        values.mul_(1 - lr * config.l2).sub_(cast(torch.Tensor, weight.grad), alpha=lr)

    # Of the data that were published, trained on whole, with the penalty of the published optimum.
    match = config.train_file is None and config.validation == "test" and config.l2 == data.OPTIMUM_L2
    optimum = data.OPTIMA.get(config.dataset) if match else None
    convergence = Convergence()

    def steps(splits: Splits, epoch: int) -> sampling.BatchIterator:
        train, _ = splits
        order = sampling.shuffled_rows(count, batch=config.batch_size, epoch=epoch, worker=worker)
        if train_rows is not None:
            order = train_rows[order]
        labels = train.labels.index_select(0, order.flatten()).view_as(order)
        # Memory that every batch takes in turn stays in the cache: a tenth of a short step on a CPU.
        batch = train.features.new_empty(order.shape[1], features)

        def fetch(chosen: tuple[torch.Tensor, torch.Tensor]) -> data.Rows:
            return data.Rows(torch.index_select(train.features, 0, chosen[0], out=batch), chosen[1])

        return sampling.BatchIterator(list(zip(order, labels, strict=True)), fetch)

    def validate(trained: nn.Module, splits: Splits) -> dict[str, float]:
        _, test = splits
        part = sampling.shard(len(test.labels), worker)
        labels = test.labels[part.start : part.stop]
        logits = trained(test.features[part.start : part.stop])
        # A sum, as the mean over the rows of a worker that has none is not a number.
        entropy = logistic.cross_entropy(logits.double(), labels, reduction="sum").item()
        right = logistic.correct(logits, labels).item()
        entropy, correct, count = worker.sum([entropy, right, len(part)]).tolist()
        trained_weights = model.weight.detach().double()
        penalty = config.l2 / 2 * float(trained_weights.square().sum())
        if optimum is not None:
            convergence.weights.append(trained_weights)
        return {"accuracy": 100 * correct / count, "loss": entropy / count + penalty, **mixed.metrics()}

    def flops_per_sample(splits: Splits) -> float:
        return training_flops(
            model,
            [splits[0].features[:1]],
            lambda logits: logistic.cross_entropy(logits, logits.new_zeros(len(logits))),
        )

    def table(splits: Splits) -> list[dict[str, str | int | float]]:
        if optimum is None:
            return []
        return convergence.table(splits[0], l2=config.l2, optimum=optimum, worker=worker)

    return TrainingSetup(
        model=model,
        optimizer=optimizer,
        epochs=config.epochs,
        load=load,
        steps=steps,
        forward=lambda net, batch: net(batch.features),
        loss=lambda logits, batch: entropy(logits, batch.labels),
        validate=validate,
        samples=lambda batch: batch.labels.numel(),  # len() is a function of torch's in Python
        sample_unit="rows",
        before_step=schedule.before_step,
        optimizer_step=step if mixed.scaler is None and not worker.sync.NEEDS_OPTIMIZER else None,
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        one_shape=config.ONE_SHAPE,
        after_validation=schedule.after_validation,
        stateful={"schedule": schedule, "convergence": convergence},
        table=table,
        flops_per_sample=flops_per_sample,
    )


def reference_alpha(config: Config, workers: int) -> float:
    """Return alpha for k workers: the study's, of the largest studied count that is at most k."""
    if config.alpha is not None:
        return config.alpha
    return REFERENCE_ALPHA[max(count for count in REFERENCE_ALPHA if count <= workers)]
