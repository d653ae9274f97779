"""The Transformer with Adam until the goal or the last epoch."""

from functools import partial

import torch

from mlbench.tasks.transformer import Config
from mlbench.tasks.transformer.model import Transformer
from mlbench.tasks.translation.torch import build_translator
from mlbench.training.schedules import warmup_inverse_sqrt
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains. Target tokens count."""
    # cuDNN plans attention for every new shape, up to 1 s each (a B200, modelscope/FunASR issue 3704, 2026).
    # Almost every batch has different shapes. torch's eager kernels take any.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return build_translator(
        config,
        worker,
        model=partial(
            Transformer,
            d_model=config.d_model,
            ffn=config.ffn,
            heads=config.heads,
            layers=config.layers,
            dropout=config.dropout,
        ),
        factor=lambda steps: warmup_inverse_sqrt(config.warmup_steps),
        counted=lambda source, target: target,
    )
