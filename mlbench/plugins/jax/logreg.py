"""Train logistic regression in jax. Data, order, initial weights, rates and metrics are the torch task's."""

import jax
import jax.numpy as jnp

from mlbench.plugins.jax.trainer import JaxSetup, from_torch
from mlbench.tasks.logreg import Config, data
from mlbench.tasks.logreg import torch as torch_task
from mlbench.training import sampling
from mlbench.training.worker import Worker

Weights = dict[str, jax.Array]


def build(config: Config, worker: Worker) -> JaxSetup:
    """Return the setup that the loop trains."""
    train, test = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    count = len(train.labels) // data.HELD_OUT if config.validation == "split" else len(test.labels)
    features = train.features.shape[1]

    def update(weights: Weights, gradients: Weights, state: tuple, rate: jax.Array) -> tuple[Weights, tuple]:
        return {"weight": weights["weight"] * (1 - rate * config.l2) - rate * gradients["weight"]}, state

    return from_torch(
        torch_task.build(config, worker),
        worker,
        forward=logits,
        inputs=jax.ShapeDtypeStruct((len(sampling.shard(count, worker)), features), jnp.float32),
        batch=(
            jax.ShapeDtypeStruct((config.batch_size, features), jnp.float32),
            jax.ShapeDtypeStruct((config.batch_size,), jnp.float32),
        ),
        arrays=lambda batch: (batch.features.numpy(), batch.labels.numpy()),
        loss=cross_entropy,
        update=update,
    )


def logits(weights: Weights, features: jax.Array) -> jax.Array:
    """Return the logits of rows [batch, features] as [batch]."""
    return features @ weights["weight"]


def cross_entropy(weights: Weights, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the mean of the rows' binary cross-entropies in nats, a scalar."""
    features, labels = batch
    z = logits(weights, features)
    return jnp.mean(jax.nn.softplus(z) - labels * z)
