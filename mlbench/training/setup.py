"""What a task hands to the timed loop, and what it gets back.

`Setup` is what every framework's tasks return, `Trainer` what the loop needs of a framework. The rest is
torch's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from mlbench.config.experiment import CAPTURED
from mlbench.record.messages import ValidationMessage
from mlbench.record.phases import PhaseTimes
from mlbench.training.loss_meter import LossMeter
from mlbench.training.precision import LossScaler
from mlbench.training.profiler import RankProfile
from mlbench.training.worker import Worker


class Steps(Protocol):
    """One epoch's steps of this rank. A step is the list of micro-batches that it accumulates."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence[Any]]: ...


def _nothing(*_: Any) -> None: ...


class Trainer(Protocol):
    """A model under training: the part of a run that is its framework's.

    - losses: of this rank's micro-batches, since the last validation.
    """

    losses: LossMeter

    def train(self) -> None:
        """Begin to train, or go on after a validation."""
        ...

    def step(self, step: int, micro_batches: Sequence[Any]) -> int:
        """Make the step `step`, counted from 0, and end its phases. Return this rank's samples."""
        ...

    def stuck(self) -> bool:
        """Return whether this rank can train no further though its losses are finite."""
        ...

    def validating(self) -> AbstractContextManager[Any]:
        """Return a context that yields the model to validate, the same on all workers."""
        ...

    def bytes_sent(self, steps: int) -> int | None:
        """Return the bytes that this rank has sent to combine gradients or models. None: unknown."""
        ...

    def gradient_bytes(self) -> int:
        """Return what a worker contributes to a step's all-reduce."""
        ...

    def stateful(self) -> dict[str, Any]:
        """Return by name what has a state that a checkpoint keeps, of tensors and plain values."""
        ...


@dataclass(kw_only=True)
class Setup:
    """A recipe and its data. Times and communication are the loop's job.

    - load(): reads training and validation data, moves them to the device, sorts them: whatever looks at more
      than their numbers of rows. It comes first on the clock, also after a restart. What it returns is `data`
      below.
    - steps(data, epoch): this rank's steps, the same number on every rank. A step is valid until the next.
    - validate(model, data): global metrics from summed counts, identical on every rank.
    - samples(batch): this rank's samples in a micro-batch. `sample_unit` names them.
    - before_step(step): sets the learning rate of step 0, 1, ...
    - after_validation(metrics): e.g. a plateau schedule. metrics has train_loss too.
    - validate_at: fractions of an epoch after which to validate, at the next whole step. The last is 1.
    - stateful: what a checkpoint must hold in addition to the trainer's state, by name.
    - flops_per_sample(data): of training on one sample (mlbench/training/flops.py), off the clock.
    - table(data): rows for the result, of what is no phase and no metric. Every rank calls it, off the clock.
    - warnings: what this task or its framework cannot show, one sentence each.
    - close(): ends what `build` started, also after an error.
    """

    epochs: int
    steps: Callable[[Any, int], Steps]
    validate: Callable[[Any, Any], dict[str, float]]
    samples: Callable[[Any], int]
    sample_unit: str = "samples"
    load: Callable[[], Any] = _nothing
    before_step: Callable[[int], None] = _nothing
    after_validation: Callable[[dict[str, float]], None] = _nothing
    validate_at: tuple[float, ...] = (1.0,)
    stateful: dict[str, Any] = field(default_factory=dict)
    flops_per_sample: Callable[[Any], float | None] = _nothing
    table: Callable[[Any], list[dict[str, Any]]] = lambda _: []
    warnings: tuple[str, ...] = ()
    close: Callable[[], None] = _nothing

    def trainer(self, worker: Worker) -> Trainer:
        """Return what trains the model on this rank. Every rank calls it before the clock starts."""
        raise NotImplementedError


@dataclass(kw_only=True)
class TrainingSetup(Setup):
    """A torch model, its recipe and its data.

    - forward(model, batch) and loss(output, batch): the loss of a micro-batch. It is scaled such that the
      mean of the gradients over workers is the step's gradient (accumulated micro-batches add up).
    - optimizer_step(): clips and steps. The default is optimizer.step() through the scaler.
    - after_step(): e.g. takes the weights into an average. The sync strategy has combined them.
    - validation_weights(): a context in which the model has the weights to validate, if these are not the
      trained ones. Inside it the sync strategy gives all workers one model.
    - autocast, scaler: mixed precision and its loss scale. None and None is full precision.
    - one_shape: whether all micro-batches have one shape, and forward and loss compute with their tensors
      alone. A batch is then a tensor or a tuple of tensors, and one graph can hold both.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[nn.Module, Any], Any]
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer_step: Callable[[], None] | None = None
    after_step: Callable[[], None] | None = None
    validation_weights: Callable[[], AbstractContextManager] = nullcontext
    autocast: torch.dtype | None = None
    scaler: LossScaler | None = None
    one_shape: bool = False

    def trainer(self, worker: Worker) -> Trainer:
        """Return what trains the model under the worker's sync strategy."""
        from mlbench.training import graphs, torch_trainer  # which import this module

        captured = worker.compile in CAPTURED
        return (graphs.GraphTrainer if captured else torch_trainer.TorchTrainer)(self, worker)


@dataclass
class TaskResult:
    """What a run of a task gives back, on every rank: plain values that travel as JSON."""

    status: str  # goal_reached, goal_not_reached, completed (no goal set), diverged
    validations: list[ValidationMessage] = field(default_factory=list)
    phase_times: list[PhaseTimes] = field(default_factory=list)
    time_to_accuracy: float | None = None  # s
    steps: int = 0
    elapsed: float = 0.0  # s from the first touch of data to the end of the last validation
    unit: str = "samples"  # what `samples` counts: images, rows, tokens
    flops_per_sample: float | None = None
    flops_lacking: str | None = None  # why a script has none
    precision: str = ""  # of most of a script's FLOP
    devices: int = 0  # on which a script computes
    gradient_bytes: int | None = None  # what a worker contributes to a step's all-reduce
    peak_memory_bytes: int | None = None  # that torch gave out on this rank's GPU. None: a CPU
    error: str | None = None  # why the status is `failed`
    table: list[dict[str, Any]] = field(default_factory=list)  # of tasks that measure without training
    profile: RankProfile | None = None
    energy_j: dict[str, float] = field(
        default_factory=dict
    )  # of this rank's node by part, to the last validation
    warnings: list[str] = field(default_factory=list)  # what could not be measured, one sentence each
    files: dict[str, bytes] = field(default_factory=dict)  # for the run's folder: gzip by name
