"""Logistic regression in jax. Data, order, initial weights, rates and metrics are the torch task's own."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from mlbench.tasks.logreg import Config, data
from mlbench.tasks.logreg import torch as torch_task
from mlbench.training import sampling
from mlbench.training.worker import Worker
from mlbench.wings.jax import devices
from mlbench.wings.jax.trainer import JaxSetup


def build(config: Config, worker: Worker) -> JaxSetup:
    """Return what the loop trains."""
    shared = torch_task.build(config, worker)
    weight = next(shared.model.parameters()).detach()
    devices.mesh(worker)
    train, test = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    count = len(train.labels) // data.HELD_OUT if config.validation == "split" else len(test.labels)
    features = jax.ShapeDtypeStruct((config.batch_size, len(weight)), jnp.float32)
    labels = jax.ShapeDtypeStruct((config.batch_size,), jnp.float32)
    shapes = (
        jax.ShapeDtypeStruct(weight.shape, jnp.float32),
        jax.ShapeDtypeStruct((len(sampling.shard(count, worker)), len(weight)), jnp.float32),
    )
    logits_of_shard = jax.jit(logits).lower(*shapes).compile()

    def validate(trained: jax.Array, rows: torch_task.Rows) -> dict[str, float]:
        weight.copy_(torch.tensor(np.asarray(trained)))  # the torch task's metrics look at its own model
        return shared.validate(
            lambda shard: torch.tensor(np.asarray(logits_of_shard(trained, shard.numpy()))), rows
        )

    def update(
        weights: jax.Array, gradients: jax.Array, state: tuple, rate: jax.Array
    ) -> tuple[jax.Array, tuple]:
        return weights * (1 - rate * config.l2) - rate * gradients, state

    return JaxSetup(
        weights=weight.numpy().copy(),
        batch=(features, labels),
        arrays=lambda batch: (batch.features.numpy(), batch.labels.numpy()),
        loss=cross_entropy,
        update=update,
        rate=lambda: shared.optimizer.param_groups[0]["lr"],
        epochs=shared.epochs,
        load=shared.load,
        steps=shared.steps,
        validate=validate,
        samples=shared.samples,
        sample_unit=shared.sample_unit,
        before_step=shared.before_step,
        after_validation=shared.after_validation,
        stateful=shared.stateful,
        table=shared.table,
        flops_per_sample=shared.flops_per_sample,
    )


def logits(weights: jax.Array, features: jax.Array) -> jax.Array:
    """Return the logits of rows [batch, features] as [batch]."""
    return features @ weights


def cross_entropy(weights: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the mean of the rows' binary cross-entropies in nats, a scalar."""
    features, labels = batch
    z = logits(weights, features)
    return jnp.mean(jax.nn.softplus(z) - labels * z)
