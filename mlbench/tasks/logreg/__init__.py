"""Task 2a: L2-regularised logistic regression; convex, tiny updates, bound by latency."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlbench.experiment.config import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.logreg import data

if TYPE_CHECKING:
    from mlbench.training.loop import Outcome
    from mlbench.training.worker import Worker

prepare = data.prepare_dataset

# alpha of rate alpha/sqrt(t) for k workers, MLBench 2018; from 16 workers on it stays (README.md)
STUDY_ALPHA = {1: 200.0, 2: 400.0, 4: 600.0, 8: 700.0, 16: 800.0}


class Config(TrainingConfig):
    """What conf/task/logreg.yaml holds beyond the fields of every training task."""

    OWN_DATA = ("train_file", "test_file")
    DATA_FIELDS = ("validation",)

    train_file: Path | None
    test_file: Path | None
    validation: Literal["test", "split"]
    rate: PositiveFloat
    schedule: Literal["plateau", "sqrt"]
    decay_factor: PositiveFloat
    patience: PositiveInt
    alpha: PositiveFloat | None
    l2: NonNegativeFloat


def run(config: Config, worker: "Worker") -> "Outcome":
    """Train with plain SGD until the goal or the last epoch."""
    import torch

    from mlbench.tasks.logreg import model as logistic
    from mlbench.training import sampling
    from mlbench.training.flops import training_flops
    from mlbench.training.loop import Parts, train
    from mlbench.training.schedules import Plateau, Schedule, inverse_sqrt

    rows, test = data.open_dataset(prepare(config, worker.data_root))
    kept = held = None  # the rows to train on and those to validate on; None: all, and the test rows
    if config.validation == "split":
        kept, held = (part.to(worker.device) for part in data.held_out(len(rows.labels)))

    def load() -> None:
        nonlocal rows, test
        rows, test = (
            data.Rows(split.features.to(worker.device), split.labels.to(worker.device))
            for split in (rows, test)
        )
        if held is not None:
            test = data.Rows(rows.features.index_select(0, held), rows.labels.index_select(0, held))

    features = rows.features.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = logistic.linear(features).to(worker.device)
    if config.schedule == "plateau":
        rate, factor = config.rate * worker.world_size, lambda update: 1.0
        plateau = Plateau(config.decay_factor, config.patience)
    else:
        rate, factor, plateau = study_alpha(config, worker.world_size), inverse_sqrt, None
    # The penalty's gradient, l2 * w, is weight decay. Its value is in the validations' loss only: in every
    # update's it took a tenth of the time and more on a CPU (torch 2.13, 2026-11-21).
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=config.l2, foreach=False)
    schedule = Schedule(optimizer, factor, plateau=plateau)
    count = len(rows.labels) if kept is None else len(kept)

    def fetch(chosen: torch.Tensor) -> data.Rows:
        # A third of the time that indexing with brackets takes on a CPU (torch 2.13, 2026-11-21).
        chosen = chosen if kept is None else kept.index_select(0, chosen)
        return data.Rows(rows.features.index_select(0, chosen), rows.labels.index_select(0, chosen))

    def validate(trained: torch.nn.Module) -> dict[str, float]:
        part = sampling.share(len(test.labels), worker)
        labels = test.labels[part.start : part.stop]
        logits = trained(test.features[part.start : part.stop])
        mean_loss = logistic.entropy(logits, labels).item()
        right = logistic.correct(logits, labels).item()
        entropy, correct, count = worker.sum([mean_loss * len(part), right, len(part)]).tolist()
        penalty = config.l2 / 2 * float(model.weight.double().square().sum())
        return {"accuracy": 100 * correct / count, "loss": entropy / count + penalty}

    outcome = train(
        Parts(
            model=model,
            optimizer=optimizer,
            epochs=config.epochs,
            updates=lambda epoch: sampling.RowUpdates(
                sampling.shuffled_rows(count, batch=config.batch_size, epoch=epoch, worker=worker),
                fetch,
            ),
            forward=lambda net, batch: net(batch.features),
            loss=lambda logits, batch: logistic.entropy(logits, batch.labels),
            validate=validate,
            samples=lambda batch: len(batch.labels),
            load=load,
            before_update=schedule.before_update,
            after_validation=schedule.after_validation,
            stateful={"schedule": schedule},
        ),
        worker,
    )
    outcome.unit = "rows"
    outcome.flops_per_sample = training_flops(
        model,
        [rows.features[:1]],
        lambda logits: logistic.entropy(logits, logits.new_zeros(len(logits))),
    )
    return outcome


def study_alpha(config: Config, workers: int) -> float:
    """Return alpha for k workers: the study's, of the largest studied count that is at most k."""
    if config.alpha is not None:
        return config.alpha
    return STUDY_ALPHA[max(count for count in STUDY_ALPHA if count <= workers)]
