"""The task that `--new task=blobs` writes, with framework=jax: its data and metrics, and a step of jax."""

from typing import Any

import jax
import jax.numpy as jnp
from mlbench_blobs import TEST_ROWS, Config  # pyright: ignore[reportMissingImports]  (written by --new)
from mlbench_blobs import torch as torch_part  # pyright: ignore[reportMissingImports]

from mlbench.plugins.jax.trainer import JaxSetup, from_torch
from mlbench.training import sampling
from mlbench.training.worker import Worker


def build(config: Config, worker: Worker) -> JaxSetup:
    """Return a line through the plane, plain SGD and the data."""

    def update(weights: Any, gradients: Any, state: Any, rate: jax.Array) -> tuple[Any, Any]:
        return jax.tree.map(lambda weight, gradient: weight - rate * gradient, weights, gradients), state

    return from_torch(
        torch_part.build(config, worker),
        worker,
        forward=logits,
        inputs=jax.ShapeDtypeStruct((len(sampling.shard(TEST_ROWS, worker)), 2), jnp.float32),
        batch=(
            jax.ShapeDtypeStruct((config.batch_size, 2), jnp.float32),
            jax.ShapeDtypeStruct((config.batch_size,), jnp.float32),
        ),
        arrays=lambda batch: tuple(part.numpy() for part in batch),
        loss=loss,
        update=update,
    )


def logits(weights: Any, points: Any) -> jax.Array:
    """Return one logit a point, [points, 1]."""
    return points @ weights["weight"].T + weights["bias"]


def loss(weights: Any, batch: Any) -> jax.Array:
    """Return the mean cross-entropy of the points."""
    z = logits(weights, batch[0])[:, 0]
    return jnp.mean(jax.nn.softplus(z) - batch[1] * z)
