"""Lossy forms of a vector for the wire.

All but QSGD's are deterministic or draw alike on every rank. Each is positively homogeneous, C(a v) = a C(v),
so it does not matter whether a sum or a mean is compressed. The `position` (step, bucket) of what is encoded
fixes what is drawn at random. Payloads of a `summable` codec may be added before they are decoded.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from mlbench.training.sync import compression, decentralised
from mlbench.training.worker import Worker


class Message(NamedTuple):
    """What is sent, and how a payload of that kind, of any rank, is added to a vector in its place."""

    payload: torch.Tensor
    add: Callable[[torch.Tensor, torch.Tensor], object]

    def subtracted(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the vector less what this message has of it."""
        sent = torch.zeros_like(vector)
        self.add(self.payload, sent)
        return vector - sent


def of(
    method: str, settings: compression.Config | decentralised.Config, worker: Worker, *, memory: bool
) -> "Codec":
    """Return the codec of a method. With a memory, those that draw are contractions."""
    if method == "topk":
        return TopK(settings.density)
    if method == "randomk":
        return RandomK(settings.density, not memory, worker)
    if method == "sign":
        return Sign()
    if method == "qsgd":
        return Qsgd(settings.levels, settings.block, memory, worker)
    return Cast(torch.float16 if method == "fp16" else torch.bfloat16)


@dataclass(frozen=True)
class Cast:
    """Half precision: fp16 keeps 10 bits of the mantissa and overflows at 65504, bf16 keeps 7."""

    dtype: torch.dtype
    summable: bool = True

    def encode(self, vector: torch.Tensor, *position: int) -> Message:
        """Return the vector in half precision."""
        half = vector.to(self.dtype, copy=True)  # also if it is one already, as what is sent changes in place
        return Message(half, lambda payload, total: total.add_(payload))


@dataclass(frozen=True)
class TopK:
    """The coordinates of largest magnitude with their numbers (Stich et al. 2018, arXiv 1809.07599)."""

    density: float  # share of the coordinates
    summable: bool = False

    def encode(self, vector: torch.Tensor, *position: int) -> Message:
        """Return values and int32 numbers of the largest coordinates."""
        count = coordinate_count(len(vector), self.density)
        chosen = vector.abs().topk(count, sorted=False).indices
        numbers = chosen.to(torch.int32)
        size = count * vector.element_size()

        def add(payload: torch.Tensor, total: torch.Tensor) -> None:
            chosen = payload[size:].clone().view(torch.int32)  # cloned, so that it is aligned behind halves
            total.index_add_(0, chosen, payload[:size].view(vector.dtype))

        return Message(torch.cat([vector[chosen].view(torch.uint8), numbers.view(torch.uint8)]), add)


@dataclass(frozen=True)
class RandomK:
    """Coordinates drawn at random, the same on all ranks, so that only values travel.

    - scaled: divided by the density, which makes the vector right on average (Wangni et al. 2018, arXiv
      1710.09854). Without, it is a contraction, for error feedback.
    """

    density: float
    scaled: bool
    worker: Worker
    summable: bool = True

    def encode(self, vector: torch.Tensor, *position: int) -> Message:
        """Return the values of the coordinates that `position` and the run's seed choose."""
        generator = self.worker.generator(*position)
        count = coordinate_count(len(vector), self.density)
        chosen = torch.randperm(len(vector), generator=generator, device=vector.device)[:count]
        factor = len(vector) / count if self.scaled else 1.0

        def add(payload: torch.Tensor, total: torch.Tensor) -> None:
            if chosen.is_cuda:  # called on a stream of the backend's, which its payload alone is known on
                chosen.record_stream(torch.cuda.current_stream(chosen.device))
            total.index_add_(0, chosen, payload)

        return Message(vector[chosen] * factor, add)


@dataclass(frozen=True)
class Sign:
    """One bit a coordinate and the mean magnitude (Karimireddy et al. 2019, arXiv 1901.09847)."""

    summable: bool = False

    def encode(self, vector: torch.Tensor, *position: int) -> Message:
        """Return packed signs and ||v||_1 / d. A zero counts as positive."""
        bits = pack(vector >= 0)

        def add(payload: torch.Tensor, total: torch.Tensor) -> None:
            scale = payload[len(bits) :].clone().view(vector.dtype)  # cloned, so that it is aligned
            signs = 2 * unpack(payload[: len(bits)], len(vector)).to(vector.dtype) - 1
            total.add_(signs.mul_(scale))

        return Message(torch.cat([bits, vector.abs().mean().view(1).view(torch.uint8)]), add)


@dataclass(frozen=True)
class Qsgd:
    """Magnitudes rounded at random to whole parts of a block's norm (Alistarh et al. 2017, arXiv 1610.02132).

    Levels travel in 4 bits up to 7 of them, else in 8: without the paper's entropy code.

    - levels: parts of the norm.
    - block: coordinates that share a norm.
    - contraction: divided by 1 + min(block / levels^2, sqrt(block) / levels), so that the error is on average
      smaller than the vector (Koloskova et al. 2019, arXiv 1902.00340). Without, it is right on average.
    """

    levels: int
    block: int
    contraction: bool
    worker: Worker
    summable: bool = False

    def encode(self, vector: torch.Tensor, *position: int) -> Message:
        """Return signed levels and the blocks' norms. Every rank draws its roundings separately."""
        generator = self.worker.generator(self.worker.rank, *position)
        wide = torch.promote_types(vector.dtype, torch.float32)  # a draw in halves rounds small parts to 0
        blocks = F.pad(vector, (0, -len(vector) % self.block)).view(-1, self.block).to(wide)
        norms = blocks.norm(dim=1, keepdim=True).to(vector.dtype)
        exact = torch.where(norms > 0, blocks.abs() / norms, 0.0) * self.levels
        excess = min(self.block / self.levels**2, math.sqrt(self.block) / self.levels)
        parts = self.levels * (1 + excess if self.contraction else 1)
        drawn = torch.rand(blocks.shape, generator=generator, device=vector.device, dtype=wide)
        levels = (torch.floor(exact + drawn).clamp_(max=self.levels) * blocks.sign()).to(torch.int8)
        flat = levels.flatten()
        nibbles = self.levels <= 7 and len(flat) % 2 == 0
        if nibbles:
            flat = (flat[::2] & 15) | (flat[1::2] << 4)

        def add(payload: torch.Tensor, total: torch.Tensor) -> None:
            codes = payload[: len(flat)].view(torch.int8)
            if nibbles:
                codes = torch.stack([(codes << 4) >> 4, codes >> 4], dim=1)
            scale = payload[len(flat) :].clone().view(vector.dtype).view(-1, 1).to(wide) / parts
            total.add_((codes.view(-1, self.block) * scale).flatten()[: len(vector)])

        return Message(torch.cat([flat.view(torch.uint8), norms.flatten().view(torch.uint8)]), add)


Codec = Cast | TopK | RandomK | Sign | Qsgd


def coordinate_count(size: int, density: float) -> int:
    """Return how many of `size` coordinates are sent, at least one."""
    return max(1, math.ceil(density * size))


def pack(bits: torch.Tensor) -> torch.Tensor:
    """Return bools [n] as bytes [ceil(n / 8)], the first in the lowest bit."""
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=bits.device)
    padded = F.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    return (padded * weights).sum(dim=1, dtype=torch.uint8)


def unpack(packed: torch.Tensor, size: int) -> torch.Tensor:
    """Return the first `size` bits of `pack`'s bytes as uint8 of 0 and 1: [..., bytes] -> [..., size]."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> places) & 1).flatten(-2)[..., :size]
