"""Train GPT-2 with AdamW in jax. Data, order, initial weights, rates and metrics come from the torch task."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mlbench.plugins.jax.trainer import JaxSetup, from_torch
from mlbench.tasks.gpt import Config, batches
from mlbench.tasks.gpt import torch as torch_task
from mlbench.training.worker import Worker

Weights = dict[str, jax.Array]  # by their names in torch
NORM_EPS = 1e-5  # added to a variance, as torch.nn.LayerNorm does
CLIP_EPS = 1e-6  # added to the gradients' norm, as torch.nn.utils.clip_grad_norm_ does


def build(config: Config, worker: Worker) -> JaxSetup:
    """Return the setup that the loop trains."""
    batch, micro = batches(config, worker.world_size)
    shared = torch_task.build(config, worker)
    zeros = {name: np.zeros(weight.shape, np.float32) for name, weight in shared.model.named_parameters()}
    forward = partial(logits, config=config)

    def loss(weights: Weights, tokens: jax.Array) -> jax.Array:
        outputs, targets = forward(weights, tokens[:, :-1]), tokens[:, 1:, None]
        chosen = jnp.take_along_axis(outputs, targets, axis=-1)[..., 0]
        return (jax.nn.logsumexp(outputs, axis=-1) - chosen).sum() / (batch * config.context)

    return from_torch(
        shared,
        worker,
        forward=forward,
        inputs=jax.ShapeDtypeStruct((micro, config.context), jnp.int32),
        batch=jax.ShapeDtypeStruct((micro, config.context + 1), jnp.int32),
        micro_batches=batch // micro,
        arrays=lambda tokens: tokens.cpu().numpy().astype(np.int32),
        loss=loss,
        update=partial(adamw, config=config),
        state={"step": np.float32(0), "mean": zeros, "square": zeros},
    )


def logits(weights: Weights, tokens: jax.Array, config: Config) -> jax.Array:
    """Return the logits of the next token [n, t, vocabulary] for `tokens` [n, t]."""

    def linear(x: jax.Array, name: str) -> jax.Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: jax.Array, name: str) -> jax.Array:
        scaled = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + NORM_EPS)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def block(x: jax.Array, name: str) -> jax.Array:
        n, length, d_model = x.shape
        inputs = linear(norm(x, f"{name}.attention_norm"), f"{name}.attention_inputs")
        heads = inputs.reshape(n, length, 3, config.heads, d_model // config.heads)
        mixed = jax.nn.dot_product_attention(heads[:, :, 0], heads[:, :, 1], heads[:, :, 2], is_causal=True)
        x = x + linear(mixed.reshape(n, length, d_model), f"{name}.attention_output")
        hidden = jax.nn.gelu(linear(norm(x, f"{name}.mlp_norm"), f"{name}.mlp_input"), approximate=True)
        return x + linear(hidden, f"{name}.mlp_output")

    if config.activation_checkpointing:
        block = jax.checkpoint(block, static_argnums=1)
    x = weights["tokens"][tokens] + weights["positions"][: tokens.shape[1]]
    for number in range(config.layers):
        x = block(x, f"blocks.{number}")
    return norm(x, "norm") @ weights["tokens"].T


def adamw(
    weights: Weights, gradients: Weights, state: dict, rate: jax.Array, config: Config
) -> tuple[Weights, dict]:
    """Return weights and state after a step of AdamW (Loshchilov and Hutter 2019) on a clipped gradient.

    state: the number of steps, and the running means of the gradients and of their squares.
    """
    size = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
    shortened = jnp.minimum(1.0, config.max_grad_norm / (size + CLIP_EPS))
    first, second = config.betas
    step = state["step"] + 1
    new: dict[str, Weights] = {"weights": {}, "mean": {}, "square": {}}
    for name, weight in weights.items():
        gradient = gradients[name] * shortened
        mean = first * state["mean"][name] + (1 - first) * gradient
        square = second * state["square"][name] + (1 - second) * jnp.square(gradient)
        size = jnp.sqrt(square) / jnp.sqrt(1 - second**step) + config.eps
        decay = config.weight_decay if weight.ndim >= 2 else 0.0  # matrices alone
        new["weights"][name] = weight * (1 - rate * decay) - rate / (1 - first**step) * mean / size
        new["mean"][name], new["square"][name] = mean, square
    return new.pop("weights"), {"step": step, **new}
