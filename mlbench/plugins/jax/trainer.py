"""Train a jax task data-parallel: one program a step, compiled on the clock as torch's programs are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from mlbench.plugins.jax import devices
from mlbench.training.loss_meter import LossMeter
from mlbench.training.setup import Setup, TrainingSetup
from mlbench.training.worker import Worker

Tree = Any  # arrays in tuples, lists and dicts
UNSEEN = (
    "framework=jax: a step is one compiled program, so computing and communication are not separated, and "
    "sent bytes are not counted"
)


@dataclass(kw_only=True)
class JaxSetup(Setup):
    """A model as functions of its weights, its recipe and its data.

    `loss` and `update` are traced and compiled once, for the shapes of `batch`, at the first step (rule R16).

    - weights, state: initial values of the model and the optimizer, as NumPy arrays, the same on every rank.
    - batch: the shapes and types of `arrays(batch)` of every micro-batch, as jax.ShapeDtypeStruct.
    - micro_batches: number in every step.
    - arrays(batch): a micro-batch as a tree of NumPy arrays, samples along the first axis.
    - loss(weights, batch): the loss of a micro-batch, such that the mean of the gradients over workers is the
      step's gradient (accumulated micro-batches add up).
    - update(weights, gradients, state, rate): the new weights and state, from the mean gradients.
    - rate(): the learning rate of the next step.
    """

    weights: Tree
    state: Tree = ()
    batch: Tree
    micro_batches: int = 1
    arrays: Callable[[Any], Tree] = lambda batch: batch
    loss: Callable[[Tree, Tree], jax.Array]
    update: Callable[[Tree, Tree, Tree, jax.Array], tuple[Tree, Tree]]
    rate: Callable[[], float]
    warnings: tuple[str, ...] = (UNSEEN,)

    def trainer(self, worker: Worker) -> "JaxTrainer":
        """Return the trainer of the model over all workers' devices."""
        return JaxTrainer(self, worker)


def from_torch(
    shared: TrainingSetup,
    worker: Worker,
    *,
    forward: Callable[[dict[str, jax.Array], jax.Array], jax.Array],
    inputs: jax.ShapeDtypeStruct,
    **own: Any,
) -> JaxSetup:
    """Return a setup with the data, order, first weights, learning rates and metrics of a torch task part.

    - forward(weights, inputs): the model output that the torch part's metrics need, from weights by their
      names in torch. It is compiled at the first validation for `inputs`, rows along the first axis. Fewer
      rows are padded.
    - `own`: the fields of JaxSetup that no torch part has: batch, arrays, loss, update, state, micro_batches.
    """
    devices.mesh(worker)  # before jax is used
    model = {name: weight.detach() for name, weight in shared.model.named_parameters()}
    weights = {name: weight.cpu().numpy().copy() for name, weight in model.items()}
    compiled = cache(lambda: jax.jit(forward).lower(weights, inputs).compile())

    def validate(trained: dict[str, jax.Array], data: Any) -> dict[str, float]:
        program = compiled()

        def predicted(rows: torch.Tensor) -> torch.Tensor:
            array = rows.cpu().numpy().astype(inputs.dtype)
            missing = [(0, inputs.shape[0] - len(array))] + [(0, 0)] * (array.ndim - 1)
            outputs = np.asarray(program(trained, np.pad(array, missing)))
            return torch.tensor(outputs[: len(array)], device=rows.device)

        for name, weight in model.items():  # metrics may also read them
            weight.copy_(torch.tensor(np.asarray(trained[name])))
        return shared.validate(predicted, data)  # type: ignore[arg-type]  # a model is what can be called

    copied = {each.name: getattr(shared, each.name) for each in fields(Setup)}
    copied |= {"validate": validate, "warnings": (*shared.warnings, UNSEEN), "weights": weights}
    return JaxSetup(**copied, rate=lambda: shared.optimizer.param_groups[0]["lr"], **own)


class JaxTrainer:
    """A jax model under training. `mlbench.training.setup.Trainer` documents each method."""

    def __init__(self, setup: JaxSetup, worker: Worker) -> None:
        self.setup, self.timer, self.world_size = setup, worker.timer, worker.world_size
        self.mesh = devices.mesh(worker)
        self.losses = LossMeter(torch.device("cpu"))
        self.weights, self.state = self._replicated((setup.weights, setup.state))
        self.rate = (0.0, devices.replicated(np.float32(0), self.mesh))
        self.program = cache(self._compiled)

    def train(self) -> None:
        """Do nothing: a function has no modes."""

    def step(self, step: int, micro_batches: Sequence[Any]) -> int:
        """Run the step's program and wait for it, so that its time counts to no other step."""
        rate = self.setup.rate()
        if rate != self.rate[0]:
            self.rate = (rate, devices.replicated(np.float32(rate), self.mesh))
        parts = list(map(self.setup.arrays, micro_batches))
        # This worker's micro-batches are concatenated, so that a shard is its step.
        whole = parts[0] if len(parts) == 1 else jax.tree.map(lambda *each: np.concatenate(each), *parts)
        arrays = jax.tree.map(lambda part: devices.sharded(part, self.mesh), whole)
        self.weights, self.state, loss = self.program()(self.weights, self.state, self.rate[1], arrays)
        self.losses.add(torch.tensor(np.asarray(devices.local(loss)).item()))
        self.losses.end_step(None, 1)
        self.timer.end_phase("train_step")
        return sum(map(self.setup.samples, micro_batches))

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
        """Return the bytes of all gradients, which are those of the weights."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.setup.weights))

    def stateful(self) -> dict[str, Any]:
        """Return this trainer and the objects that the task adds."""
        return {"trainer": self} | self.setup.stateful

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return the weights and the optimizer's state."""
        leaves = jax.tree.leaves((self.weights, self.state))
        return {"leaves": [torch.tensor(np.asarray(devices.local(leaf))) for leaf in leaves]}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        """Restore weights and state after a restart."""
        structure = jax.tree.structure((self.weights, self.state))
        leaves = [leaf.numpy() for leaf in state["leaves"]]
        self.weights, self.state = self._replicated(jax.tree.unflatten(structure, leaves))

    def _replicated(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: devices.replicated(leaf, self.mesh), tree)

    def _compiled(self) -> Callable[..., tuple[Tree, Tree, jax.Array]]:
        """Return the step for the setup's shapes alone. Another shape is an error, and compiles nothing."""
        loss, update, count = self.setup.loss, self.setup.update, self.setup.micro_batches

        def summed(weights: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
            """Return the loss of all micro-batches and its gradients, one micro-batch at a time."""
            if count == 1:
                return jax.value_and_grad(loss)(weights, batch)
            parts = jax.tree.map(lambda array: array.reshape(count, -1, *array.shape[1:]), batch)
            zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))

            def add(total: Tree, part: Tree) -> tuple[Tree, None]:
                return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(weights, part)), None

            return jax.lax.scan(add, zero, parts)[0]

        def step(weights: Tree, state: Tree, rate: jax.Array, batch: Tree) -> tuple[Tree, Tree, jax.Array]:
            value, gradients = summed(weights, batch)
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
            lambda array: jax.ShapeDtypeStruct(
                (count * array.shape[0] * self.mesh.size, *array.shape[1:]), array.dtype, sharding=sharding
            ),
            self.setup.batch,
        )
        return jitted.lower(self.weights, self.state, self.rate[1], shapes).compile()
