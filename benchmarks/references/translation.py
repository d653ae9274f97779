"""What both translation scripts share: batches of sentences of like length, smoothed labels, Adam."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from references import Data, Reference, Words, ragged, rows, speed

PAD, BOS, EOS = 0, 2, 3


class Batch(NamedTuple):
    """Sentences as [n, length], padded; lengths of the sources with EOS; what a step's loss is divided by."""

    source: Tensor
    source_lengths: Tensor
    target_in: Tensor
    target_out: Tensor
    source_tokens: int
    target_tokens: int
    step_sentences: float
    step_target_tokens: float


def reference(
    model: nn.Module, config: Any, overrides: Words, *, kernel: SDPBackend | None = None
) -> Reference:
    """Return a model with smoothed labels under Adam."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=config.lr, betas=tuple(config.betas), eps=config.eps, **speed(overrides)
    )

    def loss(net: nn.Module, batch: Any) -> Tensor:
        whole = batch.step_sentences if config.batch_by == "sentences" else batch.step_target_tokens
        with sdpa_kernel(kernel) if kernel is not None else nullcontext():
            logits = net(batch.source, batch.source_lengths, batch.target_in)
        total = F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_out.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=config.label_smoothing,
        )
        return total / whole

    return Reference(model, optimizer, loss, max_grad_norm=config.max_grad_norm)


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return steps of micro-batches; sentences are sorted by length and cut into micro-batches once."""
    sides = [ragged(folder / "train.arrow", name) for name in ("source", "target")]
    lengths = np.array([[len(sentence) + 1 for sentence in side] for side in sides])
    order = np.lexsort((lengths[1], lengths[0]))
    order = order[lengths[:, order].max(0) <= config.max_length + 1]
    most = min(config.batch_size, config.global_batch_size // size)
    cuts, begin, sentences = [], 0, config.batch_by == "sentences"
    for end in range(1, len(order) + 1):
        widest = 1 if sentences else lengths[:, order[begin : end + 1]].max()
        if (end - begin + 1) * widest > most or end == len(order):
            cuts.append(order[begin:end])
            begin = end
    each = max(1, config.global_batch_size // (most * size))  # micro-batches of a rank and step

    def steps(epoch: int) -> Iterator[list[Batch]]:
        # Ranks take neighbours in length, so that they are done together.
        groups = [cuts[at : at + size] for at in range(0, len(cuts) - size + 1, size)]
        random.Random(epoch).shuffle(groups)
        for at in range(0, len(groups) - each + 1, each):
            step = groups[at : at + each]
            together = np.concatenate([part for group in step for part in group])
            tokens = int(lengths[1, together].sum())
            yield [batch(group[rank], len(together), tokens) for group in step]

    def batch(chosen: np.ndarray, count: int, tokens: int) -> Batch:
        source, target = (
            torch.full((len(chosen), int(lengths[side, chosen].max()) + side), PAD) for side in (0, 1)
        )
        target[:, 0] = BOS
        for index, row in enumerate(chosen):
            for matrix, side, skip in ((source, 0, 0), (target, 1, 1)):
                words = sides[side][row]
                matrix[index, skip : skip + len(words)] = torch.from_numpy(words.astype(np.int64))
                matrix[index, skip + len(words)] = EOS
        source_lengths = torch.from_numpy(lengths[0, chosen])
        own = lengths[:, chosen].sum(1)
        whole = (count / size, tokens / size)
        return Batch(source, source_lengths, target[:, :-1], target[:, 1:], int(own[0]), int(own[1]), *whole)

    counted = (lambda each: each.source_tokens + each.target_tokens) if config.name == "gnmt" else None
    return Data(rows(folder / "vocabulary.arrow"), steps, counted or (lambda each: each.target_tokens))
