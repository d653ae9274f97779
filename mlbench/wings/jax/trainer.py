"""Data-parallel training of a jax task: one compiled program a step, and nothing compiled on the clock."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from mlbench.training.loss_meter import LossMeter
from mlbench.training.setup import Setup
from mlbench.training.worker import Worker
from mlbench.wings.jax import devices

Tree = Any  # arrays in tuples, lists and dicts
UNSEEN = (
    "framework=jax: a step is one compiled program, so computing and communication are not told apart, and "
    "the bytes that are sent are not counted"
)


@dataclass(kw_only=True)
class JaxSetup(Setup):
    """A model as functions of its weights, its recipe and its data. A step has one micro-batch.

    `loss` and `update` are traced once, for the shapes of `batch`, before the clock starts.

    - weights, state: of the model and the optimizer at first, as NumPy arrays, the same on every rank.
    - batch: the shapes and types of `arrays(batch)` of every micro-batch, as jax.ShapeDtypeStruct.
    - arrays(batch): a micro-batch as a tree of NumPy arrays, samples along the first axis.
    - loss(weights, batch): the mean loss of a micro-batch, such that the mean of the gradients over workers
      is the step's gradient.
    - update(weights, gradients, state, rate): the new weights and state, from the mean gradients.
    - rate(): the learning rate of the step that comes.
    """

    weights: Tree
    state: Tree = ()
    batch: Tree
    arrays: Callable[[Any], Tree] = lambda batch: batch
    loss: Callable[[Tree, Tree], jax.Array]
    update: Callable[[Tree, Tree, Tree, jax.Array], tuple[Tree, Tree]]
    rate: Callable[[], float]
    warnings: tuple[str, ...] = (UNSEEN,)

    def trainer(self, worker: Worker) -> "JaxTrainer":
        """Return what trains the model over all workers' devices."""
        return JaxTrainer(self, worker)


class JaxTrainer:
    """A jax model under training; `mlbench.training.setup.Trainer` says what each method is for."""

    def __init__(self, setup: JaxSetup, worker: Worker) -> None:
        self.setup, self.timer, self.world_size = setup, worker.timer, worker.world_size
        self.mesh = devices.mesh(worker)
        self.losses = LossMeter(torch.device("cpu"))
        self.weights, self.state = self._replicated((setup.weights, setup.state))
        self.rate = (0.0, devices.replicated(np.float32(0), self.mesh))
        self.program = self._compiled()

    def train(self) -> None:
        """Do nothing: a function has no modes."""

    def step(self, step: int, micro_batches: Sequence[Any]) -> int:
        """Run the step's program and wait for it: what it has not done counts to no other step."""
        (batch,) = micro_batches
        rate = self.setup.rate()
        if rate != self.rate[0]:
            self.rate = (rate, devices.replicated(np.float32(rate), self.mesh))
        arrays = jax.tree.map(lambda part: devices.sharded(part, self.mesh), self.setup.arrays(batch))
        self.weights, self.state, loss = self.program(self.weights, self.state, self.rate[1], arrays)
        self.losses.add(torch.tensor(np.asarray(devices.local(loss)).item()))
        self.losses.end_step(None, 1)
        self.timer.end_phase("train_step")
        return self.setup.samples(batch)

    def stuck(self) -> bool:
        """Return false: there is no loss scale."""
        return False

    @contextmanager
    def validating(self) -> Iterator[Tree]:
        """Yield the weights, which are the same on every rank, on this rank's device."""
        yield jax.tree.map(devices.local, self.weights)

    def bytes_sent(self, steps: int) -> int | None:
        """Return None for several workers: XLA's collectives are not counted."""
        return None if self.world_size > 1 else 0

    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients, which are the weights'."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.setup.weights))

    def stateful(self) -> dict[str, Any]:
        """Return this trainer and what the task adds."""
        return {"trainer": self} | self.setup.stateful

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return the weights and the optimizer's state."""
        leaves = jax.tree.leaves((self.weights, self.state))
        return {"leaves": [torch.tensor(np.asarray(devices.local(leaf))) for leaf in leaves]}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        """Go on after a restart."""
        structure = jax.tree.structure((self.weights, self.state))
        leaves = [leaf.numpy() for leaf in state["leaves"]]
        self.weights, self.state = self._replicated(jax.tree.unflatten(structure, leaves))

    def _replicated(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: devices.replicated(leaf, self.mesh), tree)

    def _compiled(self) -> Callable[..., tuple[Tree, Tree, jax.Array]]:
        """Return the step for the setup's shapes alone: another shape is an error, and compiles nothing."""
        loss, update = self.setup.loss, self.setup.update

        def step(weights: Tree, state: Tree, rate: jax.Array, batch: Tree) -> tuple[Tree, Tree, jax.Array]:
            value, gradients = jax.value_and_grad(loss)(weights, batch)
            weights, state = update(weights, jax.lax.pmean(gradients, devices.AXIS), state, rate)
            return weights, state, value[None]

        whole, part = PartitionSpec(), PartitionSpec(devices.AXIS)
        # Without its check of what is replicated, which would have the gradients summed before `pmean`.
        shards = {
            "in_specs": (whole, whole, whole, part),
            "out_specs": (whole, whole, part),
            "check_vma": False,
        }
        jitted = jax.jit(jax.shard_map(step, mesh=self.mesh, **shards), donate_argnums=(0, 1))
        sharding = NamedSharding(self.mesh, part)
        shapes = jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(
                (one.shape[0] * self.mesh.size, *one.shape[1:]), one.dtype, sharding=sharding
            ),
            self.setup.batch,
        )
        return jitted.lower(self.weights, self.state, self.rate[1], shapes).compile()
