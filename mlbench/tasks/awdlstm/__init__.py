"""Task 3a: language modelling with the AWD-LSTM; recurrent, with a large word matrix and long gradients."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mlbench.experiment.config import Model, NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.awdlstm import data

if TYPE_CHECKING:
    from mlbench.training.loop import Outcome
    from mlbench.training.worker import Worker

prepare = data.prepare_dataset
Probability = Annotated[float, Field(ge=0, lt=1)]


class Dropouts(Model):
    """Probabilities of dropping: units of the output, between layers, of the input; words; weights."""

    output: Probability
    hidden: Probability
    input: Probability
    embedding: Probability
    recurrent: Probability


class Config(TrainingConfig):
    """What conf/task/awdlstm.yaml holds beyond the fields of every training task."""

    OWN_DATA = ("train_file", "valid_file")
    DATA_FIELDS = ("min_count",)

    train_file: Path | None
    valid_file: Path | None
    min_count: PositiveInt
    embedding: PositiveInt
    hidden: PositiveInt
    layers: PositiveInt
    dropouts: Dropouts
    bptt: PositiveInt
    validation_columns: PositiveInt
    rate: PositiveFloat
    warmup: NonNegativeFloat
    weight_decay: NonNegativeFloat
    gradient_norm: PositiveFloat
    activation: NonNegativeFloat
    slowness: NonNegativeFloat
    patience: PositiveInt


def run(config: Config, worker: "Worker") -> "Outcome":
    """Train with SGD, later with its average, until the goal or the last epoch."""
    import torch

    from mlbench.tasks.awdlstm import model as awd
    from mlbench.tasks.awdlstm import reading
    from mlbench.tasks.awdlstm.averaging import Averaging
    from mlbench.training.loop import Parts, train

    text = data.open_dataset(prepare(config, worker.data_root))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = build(config, text.vocabulary).to(worker.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.rate, weight_decay=config.weight_decay, fused=True
    )
    averaging = Averaging(model, patience=config.patience)
    columns = reading.columns(text.train, worker, each=config.batch_size)
    way = reading.Reading(columns, config.bptt, worker)

    @cache
    def measure() -> reading.Validation:
        return reading.validation(text.valid, worker, count=config.validation_columns, bptt=config.bptt)

    def load() -> None:
        way.load()
        measure()

    def before_update(_: int) -> None:
        now = reading.rate(
            way.position,
            way.length,
            base=config.rate,
            bptt=config.bptt,
            workers=worker.world_size,
            warmup=config.warmup,
        )
        for group in optimizer.param_groups:
            group["lr"] = now

    def loss(output: awd.Output, piece: reading.Piece) -> torch.Tensor:
        return awd.loss(output, piece.targets, activation=config.activation, slowness=config.slowness)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_norm, foreach=True)
        optimizer.step()
        averaging.after_update()

    outcome = train(
        Parts(
            model=model,
            optimizer=optimizer,
            epochs=config.epochs,
            updates=way.updates,
            forward=way.forward,
            loss=loss,
            validate=lambda trained: measure()(averaging.validated(trained)),
            samples=lambda piece: piece.inputs.numel(),
            load=load,
            before_update=before_update,
            after_validation=averaging.after_validation,
            step=step,
            stateful={"averaging": averaging},
        ),
        worker,
    )
    outcome.unit = "tokens"
    outcome.flops_per_sample = flops_per_token(config, text.vocabulary)
    return outcome


def build(config: Config, vocabulary: int, *, dropouts: Dropouts | None = None):
    """Return the untrained model that `config` describes."""
    from mlbench.tasks.awdlstm.model import AwdLstm

    return AwdLstm(
        vocabulary,
        embedding=config.embedding,
        hidden=config.hidden,
        layers=config.layers,
        dropouts=dropouts or config.dropouts,
    )


def flops_per_token(config: Config, vocabulary: int) -> float:
    """Return the model FLOPs of one token in a piece of `bptt` tokens (see `training_flops`).

    That is 6 a weight of the layers and of the output words, less the gradient of the first token's
    state, where back-propagation is truncated; looking up the input words is no arithmetic.
    """
    import torch

    from mlbench.training.flops import training_flops

    none = Dropouts(output=0, hidden=0, input=0, embedding=0, recurrent=0)
    with torch.device("meta"):
        model = build(config, vocabulary, dropouts=none)
        tokens = torch.zeros(config.bptt, 1, dtype=torch.int64)
    return training_flops(model, [tokens], lambda output: output.logits.sum(), samples=config.bptt)
