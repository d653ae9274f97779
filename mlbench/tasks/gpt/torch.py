"""GPT-2 with AdamW until the goal or the last epoch."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlbench.tasks.gpt import Config, batches, data
from mlbench.tasks.gpt import model as gpt
from mlbench.tasks.steps import EpochSteps
from mlbench.tasks.weight_decay import parameter_groups
from mlbench.training import precision, sampling, schedules
from mlbench.training.flops import training_flops
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains."""
    text = data.open_dataset(data.prepare_dataset(config, worker.data_root), context=config.context)
    batch, micro = batches(config, worker.world_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = language_model(config).to(worker.device)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
    mixed = precision.on_device(config.precision, worker.device)
    total = config.epochs * (len(text.train) // config.global_batch_size)
    schedule = schedules.Schedule(optimizer, schedules.warmup_cosine(config.warmup_steps, total))

    def steps(_: data.TokenText, epoch: int) -> EpochSteps:
        rows = sampling.shuffled_rows(len(text.train), batch=batch, epoch=epoch, worker=worker)
        cut = rows.cpu().view(len(rows), -1, micro).numpy()  # [steps, micro-batches, sequences]
        gather = partial(text.train.gather, device=worker.device)
        return EpochSteps(len(cut), lambda: (list(map(gather, step)) for step in cut))

    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        total = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        return total / (batch * logits.shape[1])  # micro-batches add up to the mean over the step

    return TrainingSetup(
        model=model,
        optimizer=optimizer,
        epochs=config.epochs,
        load=text.load,
        steps=steps,
        forward=lambda net, tokens: net(tokens[:, :-1]),
        loss=loss,
        validate=partial(evaluate, micro=micro, worker=worker),
        samples=lambda tokens: tokens[:, 1:].numel(),
        sample_unit="tokens",
        before_step=schedule.before_step,
        optimizer_step=partial(mixed.clipped_step, optimizer, config.max_grad_norm),
        validate_at=tuple(
            number / config.validations_per_epoch for number in range(1, config.validations_per_epoch + 1)
        ),
        stateful={"schedule": schedule},
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        one_shape=config.ONE_SHAPE,
        flops_per_sample=lambda _: flops_per_token(config),
    )


def language_model(config: Config) -> gpt.Gpt:
    """Return the untrained model that `config` describes."""
    return gpt.Gpt(
        config.vocabulary,
        context=config.context,
        layers=config.layers,
        d_model=config.d_model,
        heads=config.heads,
        activation_checkpointing=config.activation_checkpointing,
    )


def evaluate(trained: nn.Module, text: data.TokenText, *, micro: int, worker: Worker) -> dict[str, float]:
    """Return cross-entropy (nats a token) and bits per byte of the whole validation text.

    micro: sequences at a time. Bounds memory, changes no result.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=worker.device)  # nats, tokens, bytes
    token_bytes = text.token_bytes.to(worker.device)
    own = sampling.shard(len(text.valid), worker)
    for begin in range(own.start, own.stop, micro):
        rows = torch.arange(begin, min(begin + micro, own.stop)).numpy()
        tokens = text.valid.gather(rows, worker.device)
        logits = trained(tokens[:, :-1]).flatten(0, 1)
        # Summed in float64: the sum over millions of tokens then hides no rounding.
        totals[0] += F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none").double().sum()
        totals[1] += tokens[:, 1:].numel()
        totals[2] += token_bytes[tokens[:, 1:]].sum()
    nats, count, size = worker.sum(totals).tolist()
    return {"cross_entropy": nats / count, "bits_per_byte": nats / math.log(2) / size}


def flops_per_token(config: Config) -> float:
    """Return the model FLOPs of one token in a sequence of `context` tokens (see `training_flops`).

    That is 6 a weight of the blocks' matrices and of the output tokens. Attention adds another
    12 * layers * d_model * context. Its causal mask halves nothing (Chowdhery et al. 2022, appendix B).
    """
    plain = config.model_copy(update={"activation_checkpointing": False})  # which adds no model FLOPs
    with torch.device("meta"):
        model = language_model(plain)
        tokens = torch.zeros(1, config.context, dtype=torch.int64)
    return training_flops(model, [tokens], lambda logits: logits.sum(), samples=config.context)
