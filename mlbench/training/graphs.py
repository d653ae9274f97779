"""Steps that are captured once as CUDA graphs and then replayed: one launch instead of hundreds.

A graph replays its kernels on the memory that they had when they were captured. So batches are copied into
fixed tensors, gradients stay in place, and what Python decides must not change. Forward, loss and backward,
with the all-reduce of DDP, are captured. The optimizer's step, whose learning rate changes, is not.
"""

from collections.abc import Sequence
from typing import Any

import torch

from mlbench.training.setup import TrainingSetup
from mlbench.training.torch_trainer import PLAIN, TorchTrainer
from mlbench.training.worker import Worker

# Steps before the capture. DDP times some of its first ten itself, which a graph cannot contain (CUDA
# semantics, "Usage with DistributedDataParallel", torch 2.13).
WARM_UP_STEPS = 11
UNSEEN = "compile={}: a step is a replayed CUDA graph, so computing and communication are not separated"


class GraphTrainer(TorchTrainer):
    """Trains like `TorchTrainer`. Its steps are one phase, `train_step`, from the first one on.

    - static: the tensors that a captured micro-batch is read from.
    - graphs: by whether the micro-batch is a step's first, which overwrites gradients, and its last, which
      sends them. Each is stored with the loss that it leaves.
    """

    def __init__(self, setup: TrainingSetup, worker: Worker) -> None:
        # Nothing is captured on the default stream, and DDP adds up gradients on the stream that made it.
        self.stream = torch.cuda.Stream(worker.device)
        self.stream.wait_stream(torch.cuda.current_stream(worker.device))
        torch.cuda.set_stream(self.stream)
        super().__init__(setup, worker)
        setup.warnings = (*setup.warnings, UNSEEN.format(worker.compile))
        self.static: list[torch.Tensor] = []
        self.graphs: dict[tuple[bool, bool], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self.pool: Any = None
        self.steps_made = 0  # since this process began: after a restart steps are captured again

    def step(self, step: int, micro_batches: Sequence[Any]) -> int:
        """Replay forward, loss and backward of each micro-batch, and run the optimizer's step."""
        setup, samples = self.setup, 0
        for number, batch in enumerate(micro_batches, start=1):
            first, last = number == 1, number == len(micro_batches)
            self.losses.add(self._loss(batch, first=first, last=last))
            samples += setup.samples(batch)
        self._update(len(micro_batches))
        self.sync.after_step(step)
        if setup.after_step is not None:
            setup.after_step()
        self.steps_made += 1
        self.timer.end_phase("train_step")
        return samples

    def _loss(self, batch: Any, *, first: bool, last: bool) -> torch.Tensor:
        """Add a micro-batch's gradients. Return its loss."""
        if self.steps_made < WARM_UP_STEPS:
            return self._backward(batch, first=first, last=last)
        if not self.graphs:
            self.static = [part.clone() for part in _parts(batch)]
            self.pool = torch.cuda.graph_pool_handle()
        for static, part in zip(self.static, _parts(batch), strict=True):
            assert static.shape == part.shape, "a graph takes batches of one shape alone"
            static.copy_(part)
        if (first, last) not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            # Of other threads nothing is captured, nor refused: NCCL's watchdog queries events all the time.
            capture = {"pool": self.pool, "stream": self.stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, **capture):
                loss = self._backward(_batch(batch, self.static), first=first, last=last)
            self.graphs[first, last] = graph, loss
        graph, loss = self.graphs[first, last]
        graph.replay()
        return loss.clone()  # the next replay writes another there

    def _backward(self, batch: Any, *, first: bool, last: bool) -> torch.Tensor:
        setup, scaler = self.setup, self.setup.scaler
        if first:
            for weight in self.weights:
                weight.grad = None
        with PLAIN if last else self.sync.accumulating():
            with self.autocast:
                if self.with_loss is not None:
                    loss = self.with_loss(batch)
                else:
                    loss = setup.loss(setup.forward(self.model, batch), batch)
            (loss if scaler is None else scaler.scale(loss)).backward()
        return loss.detach()


def _parts(batch: Any) -> Sequence[torch.Tensor]:
    return [batch] if isinstance(batch, torch.Tensor) else batch


def _batch(like: Any, parts: Sequence[torch.Tensor]) -> Any:
    """Return the parts in the form of a micro-batch: a tensor, a tuple or a named tuple."""
    if isinstance(like, torch.Tensor):
        return parts[0]
    return type(like)._make(parts) if hasattr(like, "_make") else tuple(parts)
