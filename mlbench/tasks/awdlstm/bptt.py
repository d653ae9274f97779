"""The order in which a text is read: columns side by side, in chunks of changing length.

The text is cut into as many columns as the global batch has. A rank holds its part of them. All ranks read
chunks of the same lengths, and a column's hidden state goes on from chunk to chunk until the epoch ends. So k
workers with b columns each read what one worker with k * b columns reads.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlbench.tasks.awdlstm import SHORTEST, column_tokens
from mlbench.tasks.awdlstm.model import LanguageModelOutput, States, detached
from mlbench.tasks.steps import EpochSteps
from mlbench.training import sampling
from mlbench.training.worker import Worker

DEVIATION = 5.0  # tokens, of a chunk's length (Merity et al. 2017, section 4.1)
HALF = 0.05  # probability that a chunk is about half as long
IGNORED = -100  # the target that is not counted, the default of cross_entropy


class BpttChunk(NamedTuple):
    """A stretch of this rank's columns: words and the words that follow them, [length, columns] int64."""

    inputs: Tensor
    targets: Tensor


@dataclass
class BpttIterator:
    """One rank's way through the training text: its position, and the state of its columns there.

    - text: [rows + 1, columns]. Row i + 1 holds what follows row i. A view of the file until `load`.
    - position: epochs read before this chunk. length: this chunk's, in tokens.
    """

    text: Tensor
    bptt: int
    worker: Worker
    position: float = 0.0
    length: int = 0
    states: States | None = None
    dropout_rng: torch.Generator | None = None

    def load(self) -> None:
        """Read this rank's columns from the file onto its device."""
        self.text = self.text.contiguous().to(self.worker.device)

    def steps(self, epoch: int) -> EpochSteps:
        """Return an epoch's chunks, from the start of every column."""
        rows = len(self.text) - 1
        lengths = bptt_lengths(rows, bptt=self.bptt, generator=self.worker.generator(epoch))
        return EpochSteps(len(lengths), lambda: self._chunks(epoch, lengths))

    def _chunks(self, epoch: int, lengths: list[int]) -> Iterator[list[BpttChunk]]:
        self.states = None
        self.dropout_rng = self.worker.generator(epoch, 1 + self.worker.rank)
        begin = 0
        for length in lengths:
            self.position = epoch + begin / sum(lengths)
            self.length = length
            rows = self.text[begin : begin + length + 1].long()
            yield [BpttChunk(rows[:-1], rows[1:])]
            begin += length

    def forward(self, net: nn.Module, chunk: BpttChunk) -> LanguageModelOutput:
        """Read a chunk with dropout masks of this rank. The next goes on at its end."""
        output = net(chunk.inputs, self.states, self.dropout_rng)
        self.states = detached(output.states)
        return output


def columns(tokens: Tensor, worker: Worker, *, each: int) -> Tensor:
    """Return this rank's columns of a text [tokens], as a view [rows + 1, each]: nothing is read yet.

    The global columns follow one another in the text, and rank r has those from r * each on. The last row
    repeats the first of the next column, as a target. What fills no row is left out. Raises UserError when
    the text is too short for so many columns.
    """
    count = each * worker.world_size
    rows = column_tokens(len(tokens), workers=worker.world_size, each=each)
    whole = tokens.unfold(0, rows + 1, rows)[:count]  # overlapping
    return whole[worker.rank * each : (worker.rank + 1) * each].T


def bptt_lengths(rows: int, *, bptt: int, generator: torch.Generator) -> list[int]:
    """Return lengths that add up to `rows`: normal around `bptt`, seldom around its half, at least 5.

    What is left at the end and shorter than 5 goes to the chunk before it.
    """
    device = generator.device
    count = rows // SHORTEST + 1
    half = torch.rand(count, generator=generator, device=device) < HALF
    mean = torch.where(half, bptt / 2, float(bptt))
    spread = DEVIATION * torch.randn(count, generator=generator, device=device)
    ends = (mean + spread).long().clamp(min=SHORTEST).cumsum(0)
    ends = ends[ends <= rows - SHORTEST].tolist() + [rows]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def rate(position: float, length: int, *, base: float, bptt: int, workers: int, warmup: float) -> float:
    """Return the learning rate of a chunk of `length` tokens, `position` epochs into the run.

    `base` for one worker rises linearly to base * sqrt(k) over `warmup` * k epochs (0: is that at once). It
    is less for shorter chunks, whose gradient is noisier.
    """
    done = min(1.0, position / (warmup * workers)) if warmup else 1.0
    return base * (1 + (math.sqrt(workers) - 1) * done) * length / bptt


@dataclass
class TextValidation:
    """Mean loss over a whole text, cut into a fixed number of columns that are shared out over ranks.

    As the hidden state is carried on in a column, the number of columns decides the value. It is the same for
    every number of workers. Every token but the text's first is predicted once.
    """

    inputs: Tensor
    targets: Tensor
    bptt: int
    worker: Worker

    def __call__(self, net: Callable[..., Any]) -> dict[str, float]:
        """Return loss in nats a token and perplexity, over all workers."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.worker.device)
        states = None
        for begin in range(0, len(self.inputs) if self.inputs.numel() else 0, self.bptt):
            targets = self.targets[begin : begin + self.bptt].flatten()
            output = net(self.inputs[begin : begin + self.bptt], states)
            states = output.states
            losses = F.cross_entropy(
                output.logits.flatten(0, 1), targets, reduction="none", ignore_index=IGNORED
            )
            totals[0] += losses.double().sum()
            totals[1] += (targets != IGNORED).sum()
        totals = self.worker.sum(totals)
        loss = totals[0] / totals[1]
        return {"perplexity": loss.exp().item(), "loss": loss.item()}


def validation(tokens: Tensor, worker: Worker, *, count: int, bptt: int) -> TextValidation:
    """Return the validation of a text [tokens] in `count` columns whose lengths differ by at most one."""
    pairs = len(tokens) - 1
    begins = [pairs * column // count for column in range(count + 1)]
    own = sampling.shard(count, worker)
    rows = -(-pairs // count)
    inputs = torch.zeros(rows, len(own), dtype=torch.int64)
    targets = torch.full((rows, len(own)), IGNORED)
    for index, column in enumerate(own):
        begin, end = begins[column], begins[column + 1]
        inputs[: end - begin, index] = tokens[begin:end]
        targets[: end - begin, index] = tokens[begin + 1 : end + 1]
    return TextValidation(inputs.to(worker.device), targets.to(worker.device), bptt, worker)
