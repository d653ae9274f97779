"""The task that `--new task=blobs` writes, with framework=jax: its data and metrics, and a step of jax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from mlbench_blobs import Config  # pyright: ignore[reportMissingImports]  (written by --new)
from mlbench_blobs import torch as torch_part  # pyright: ignore[reportMissingImports]

from mlbench.training.worker import Worker
from mlbench.wings.jax.trainer import JaxSetup


def build(config: Config, worker: Worker) -> JaxSetup:
    """Return a line through the plane, plain SGD and the data."""
    shared = torch_part.build(config, worker)
    model = shared.model

    def validate(trained: Any, data: Any) -> dict[str, float]:
        def forward(points: torch.Tensor) -> torch.Tensor:
            return torch.tensor(np.asarray(logits(trained, points.numpy())))[:, None]

        return shared.validate(forward, data)  # type: ignore[arg-type]

    def update(weights: Any, gradients: Any, state: Any, rate: jax.Array) -> tuple[Any, Any]:
        return jax.tree.map(lambda weight, gradient: weight - rate * gradient, weights, gradients), state

    return JaxSetup(
        weights={name: value.detach().numpy().copy() for name, value in model.named_parameters()},
        batch=(
            jax.ShapeDtypeStruct((config.batch_size, 2), jnp.float32),
            jax.ShapeDtypeStruct((config.batch_size,), jnp.float32),
        ),
        arrays=lambda batch: tuple(part.numpy() for part in batch),
        loss=loss,
        update=update,
        rate=lambda: config.lr,
        epochs=shared.epochs,
        load=shared.load,
        steps=shared.steps,
        validate=validate,
        samples=shared.samples,
        sample_unit=shared.sample_unit,
    )


def logits(weights: Any, points: Any) -> jax.Array:
    """Return one logit a point."""
    return (points @ weights["weight"].T + weights["bias"])[:, 0]


def loss(weights: Any, batch: Any) -> jax.Array:
    """Return the mean cross-entropy of the points."""
    z = logits(weights, batch[0])
    return jnp.mean(jax.nn.softplus(z) - batch[1] * z)
