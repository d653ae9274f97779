"""D-PSGD and CHOCO-SGD: averages with the neighbours after the optimizer's step."""

import torch
from torch import nn

from mlbench.training.sync import codecs
from mlbench.training.sync.decentralised import Config
from mlbench.training.sync.decentralised.graphs import receivers, senders
from mlbench.training.sync.strategy import OwnModels
from mlbench.training.sync.wire import Wire, unflatten
from mlbench.training.worker import Worker


def synchronise(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker
) -> "Gossip | Choco":
    """Return the bare model with averages between the optimizer's steps."""
    if config.compression == "none":
        return Gossip(model, config, Wire(worker))
    return Choco(model, config, Wire(worker), codecs.of(config.compression, config, worker, memory=True))


class Gossip(OwnModels):
    """x_i = (1 - c) x_i + c mean of x_i and its neighbours' x_j, c being consensus_lr.

    The models are averaged after the optimizer's step (adapt, then combine). Lian et al. 2017 average what it
    starts from.
    """

    def __init__(self, model: nn.Module, config: Config, wire: Wire) -> None:
        super().__init__(model, wire)
        self.config = config

    def after_step(self, step: int) -> None:
        """Exchange models with the neighbours and average."""
        wire, graph = self.exchange, self.config.graph
        flat = torch.cat([weight.flatten() for weight in self.weights])
        to, sources = (side(graph, wire.rank, wire.workers, step) for side in (receivers, senders))
        with wire.stamped():
            others = wire.exchange(flat, to, sources)
        wire.timer.end_phase("transfer")
        mean = (flat + torch.stack(others).sum(dim=0)) / (len(others) + 1)
        unflatten(flat.lerp_(mean, self.config.consensus_lr), self.weights)
        wire.timer.end_phase("optimizer")


class Choco(OwnModels):
    """CHOCO-SGD, algorithm 2 of Koloskova et al. 2019, with c for its gamma.

    Every worker keeps x'_i, what its neighbours have received of its model, and s_i, the mean of x'_i and its
    neighbours' x'_j. After the optimizer's step q_i = C(x_i - x'_i) is sent, x'_i += q_i, s_i += mean of q_i
    and the neighbours' q_j, and x_i += c (s_i - x'_i). x' begins with the first weights, which all workers
    have, not with 0.
    """

    def __init__(self, model: nn.Module, config: Config, wire: Wire, codec: codecs.Codec) -> None:
        super().__init__(model, wire)
        self.config, self.codec = config, codec
        self.public = torch.cat([weight.flatten() for weight in self.weights])
        self.mean = self.public.clone()

    def after_step(self, step: int) -> None:
        """Exchange what the neighbours do not have yet and move towards them."""
        wire, graph = self.exchange, self.config.graph
        flat = torch.cat([weight.flatten() for weight in self.weights])
        message = self.codec.encode(flat - self.public, step)
        to, sources = (side(graph, wire.rank, wire.workers, step) for side in (receivers, senders))
        with wire.stamped():
            others = wire.exchange(message.payload, to, sources)
        wire.timer.end_phase("transfer")
        message.add(message.payload, self.public)
        change = torch.zeros_like(flat)
        for payload in (message.payload, *others):
            message.add(payload, change)
        self.mean += change / (len(others) + 1)
        flat += self.config.consensus_lr * (self.mean - self.public)
        unflatten(flat, self.weights)
        wire.timer.end_phase("optimizer")
