"""The part of a run that is torch's: a step with autograd under a sync strategy, and what is validated."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlbench.training import compilation
from mlbench.training.loss_meter import LossMeter
from mlbench.training.setup import TrainingSetup
from mlbench.training.sync import strategy
from mlbench.training.worker import Worker

PLAIN = nullcontext()  # made once: a short step lasts 100 us


class WithLoss(nn.Module):
    """A model and its task's loss as one module, so that one graph has both.

    A model compiled alone writes its whole output to memory, and the loss reads it there: of a language model
    most of a step's traffic.
    """

    def __init__(self, model: nn.Module, setup: TrainingSetup) -> None:
        super().__init__()
        self.model, self._forward, self._loss = model, setup.forward, setup.loss

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the loss of a micro-batch."""
        return self._loss(self._forward(self.model, batch), batch)


class TorchTrainer:
    """A torch model under training. `mlbench.training.setup.Trainer` describes each method.

    - model: under the sync strategy, so not `setup.model`.
    - with_loss(batch): compiled, the loss of a micro-batch. None: model and loss run one after the other.
    """

    def __init__(self, setup: TrainingSetup, worker: Worker) -> None:
        self.setup, self.timer = setup, worker.timer
        self.sync = strategy.synchronise(setup.model, setup.optimizer, worker)
        self.model: Any = self.sync.module
        self.with_loss: Any = None
        options = compilation.options(worker.compile)
        if options is not None and setup.one_shape:  # validations run the bare model, which has other shapes
            if isinstance(self.model, DistributedDataParallel):  # outermost: it sends while backward runs
                self.model.module = WithLoss(self.model.module, setup)
            else:
                self.model = WithLoss(self.model, setup)
            self.with_loss = torch.compile(self.model, **options)
        elif options is not None:
            self.model = torch.compile(self.model, **options)
        self.autocast: AbstractContextManager = PLAIN  # entered in every batch
        if setup.autocast is not None:
            self.autocast = torch.autocast(worker.device.type, dtype=setup.autocast)
        self.weights = [weight for group in setup.optimizer.param_groups for weight in group["params"]]
        self.losses = LossMeter(worker.device)
        self.bytes_sent = self.sync.bytes_sent

    def train(self) -> None:
        """Put the model into training mode."""
        self.model.train()

    def step(self, step: int, micro_batches: Sequence[Any]) -> int:
        """Run forward, backward and the optimizer's step over one step's micro-batches."""
        setup, scaler, samples = self.setup, self.setup.scaler, 0
        end_phase = self.timer.end_phase
        for number, batch in enumerate(micro_batches, start=1):
            with PLAIN if number == len(micro_batches) else self.sync.accumulating():
                with self.autocast:
                    if self.with_loss is not None:
                        loss = self.with_loss(batch)
                        end_phase("forward")
                    else:
                        output = setup.forward(self.model, batch)
                        end_phase("forward")
                        loss = setup.loss(output, batch)
                        end_phase("loss")
                        del output  # which may be large, and which backward rarely needs
                (loss if scaler is None else scaler.scale(loss)).backward()
                end_phase("backward")
            self.losses.add(loss.detach())
            samples += setup.samples(batch)
        self._update(len(micro_batches))
        for weight in self.weights:  # as zero_grad does, without its range for the profiler
            weight.grad = None
        end_phase("optimizer")
        self.sync.after_step(step)
        if setup.after_step is not None:
            setup.after_step()
            end_phase("optimizer")
        return samples

    def _update(self, micro_batches: int) -> None:
        """Make the optimizer's step and count it."""
        setup, scaler = self.setup, self.setup.scaler
        if setup.optimizer_step is not None:
            setup.optimizer_step()
        elif scaler is not None:
            scaler.step(setup.optimizer)
        else:
            setup.optimizer.step()
        if scaler is not None:
            scaler.update()
        self.losses.end_step(scaler, micro_batches)

    def stuck(self) -> bool:
        """Return whether the loss scale skips every step."""
        return self.setup.scaler is not None and self.setup.scaler.stuck()

    @contextmanager
    def validating(self) -> Iterator[nn.Module]:
        """Yield the bare model in evaluation mode, with the weights to validate."""
        self.model.eval()
        with torch.no_grad(), self.autocast, self.setup.validation_weights():
            self.sync.before_validation()
            yield self.setup.model
            self.sync.after_validation()

    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients."""
        trained = [weight for weight in self.setup.model.parameters() if weight.requires_grad]
        return sum(weight.numel() * weight.element_size() for weight in trained)

    def stateful(self) -> dict[str, Any]:
        """Return model, optimizer, loss scale and what the task adds."""
        scaler = {} if self.setup.scaler is None else {"scaler": self.setup.scaler}
        own = {"model": self.setup.model, "optimizer": self.setup.optimizer}
        return own | scaler | self.setup.stateful
