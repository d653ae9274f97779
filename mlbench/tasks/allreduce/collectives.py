"""Collectives on buffers whose right content is known element by element."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from mlbench.training.sync.wire import all_gather_single, reduce_scatter_single
from mlbench.training.worker import Worker

LEVELS = 4  # elements are 1..4, so that sums are small integers. 0 is what no element may stay
SHIFT = 101  # elements between the content of two blocks. Prime, so no buffer size hides a mix-up
# A check puts other things into the CPU's caches than a loop finds there that only calls. So up to this many
# bytes a call that is not timed comes first. A larger message does not stay in the caches anyway.
CACHED_BYTES = 2**24
# Work that a GPU does while the host queues what is timed, chosen 2026-11-24: launches take tens of us.
DELAY_S, DELAY_BYTES = 1e-3, 2**26
# Integers up to here are exact: 2 to the significand's bits (IEEE 754 and bfloat16).
EXACT = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}


def values(largest: int, worker: Worker) -> Tensor:
    """Return the numbers that all buffers are cut from: uint8 in 1..LEVELS, the same on every rank."""
    ranks = worker.world_size
    count = largest + ranks + SHIFT * ranks * ranks
    draw = torch.Generator(worker.device).manual_seed(0)
    kind = {"dtype": torch.uint8, "device": worker.device}
    return torch.randint(1, LEVELS + 1, (count,), generator=draw, **kind)


@dataclass
class CollectiveCase:
    """One collective on one buffer size.

    - operation: the collective itself, from `sent` to `received` (the same tensor for all_reduce and
      broadcast).
    - content: what `sent` must hold before, in parts that are cut from the values. `expected` is what
      `received` must hold after.
    - elements: of the larger of the two buffers, which is what nccl-tests counts.
    - align: what brings the ranks together before each call. None: the backend's barrier.
    - errors: how many wrong elements the checks have found so far on this rank, a scalar.
    """

    operation: Callable[[], object]
    sent: Tensor
    received: Tensor
    content: list[Tensor]
    expected: Tensor
    elements: int
    align: "DeviceBarrier | None" = None
    errors: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.errors = torch.zeros((), dtype=torch.int64, device=self.sent.device)

    @classmethod
    def of(
        cls, collective: str, dtype: torch.dtype, size: int, *, base: Tensor, worker: Worker
    ) -> "CollectiveCase":
        """Return the exchange of `size` elements, rounded up to whole blocks if blocks are dealt out."""
        ranks, rank = worker.world_size, worker.rank
        block = -(-size // ranks)
        whole = block * ranks

        def slice_of(key: int, length: int) -> Tensor:
            return base[SHIFT * key : SHIFT * key + length]

        def zeros(length: int) -> Tensor:
            return torch.zeros(length, dtype=dtype, device=worker.device)

        def total(begin: int, length: int) -> Tensor:
            result = zeros(length)
            for key in range(ranks):
                result += slice_of(key, begin + length)[begin:]
            return result

        if collective == "all_reduce":
            buffer = zeros(size)
            return cls(
                partial(dist.all_reduce, buffer), buffer, buffer, [slice_of(rank, size)], total(0, size), size
            )
        if collective == "broadcast":
            buffer = zeros(size)
            own = slice_of(0, size) if rank == 0 else zeros(size)
            return cls(partial(dist.broadcast, buffer, 0), buffer, buffer, [own], slice_of(0, size), size)
        if collective == "all_gather":
            part, gathered = zeros(block), zeros(whole)
            expected = torch.cat([slice_of(key, block) for key in range(ranks)])
            operation = partial(all_gather_single, gathered, part)
            return cls(operation, part, gathered, [slice_of(rank, block)], expected, whole)
        if collective == "reduce_scatter":
            addends, part = zeros(whole), zeros(block)
            operation = partial(reduce_scatter_single, part, addends)
            return cls(operation, addends, part, [slice_of(rank, whole)], total(block * rank, block), whole)
        assert collective == "all_to_all", collective
        sent, received = zeros(whole), zeros(whole)
        content = [slice_of(rank * ranks + to, block) for to in range(ranks)]
        expected = torch.cat([slice_of(sender * ranks + rank, block) for sender in range(ranks)])
        return cls(partial(dist.all_to_all_single, received, sent), sent, received, content, expected, whole)

    @property
    def bytes(self) -> int:
        """The bytes of the larger buffer."""
        return self.elements * self.sent.element_size()

    def seconds(self, repeats: int, worker: Worker) -> list[float]:
        """Return this rank's seconds of `repeats` calls, each from fresh buffers and after a barrier.

        Filling before and checking after every call are not timed, nor is the call that comes before each one
        of a short message.
        """
        self.received.copy_(self.expected)  # for the check before the first call

        def prepare() -> None:
            self.check()
            self.fill()
            if self.bytes <= CACHED_BYTES:
                self.operation()
                self.fill()

        # The backend's barrier, as gloo's leaves the ranks tens of microseconds apart, in which MPI has
        # reduced a small message.
        barrier = self.align or dist.barrier
        times = worker.timer.benchmark(self.operation, repeats, prepare=prepare, barrier=barrier)
        self.check()
        return times

    def fill(self) -> None:
        """Write the content to send, and zeros into the places to receive."""
        if self.received is not self.sent:
            self.received.zero_()
        begin = 0
        for part in self.content:
            self.sent[begin : begin + len(part)].copy_(part)
            begin += len(part)

    def check(self) -> None:
        """Count the elements of `received` that are not what they must be. Does not wait for a GPU."""
        self.errors += (self.received != self.expected).sum()


class DeviceBarrier:
    """Brings the ranks' GPUs together, as the call of a barrier on the host does not.

    It queues an all-reduce of a number behind work of some DELAY_S, in which the host queues what is timed.
    So a rank's time begins when its GPU leaves the all-reduce. It includes neither the launch on this host
    nor the last rank's. nccl-tests instead queues 20 calls at once and takes the mean. These are single
    calls, and the slowest rank counts. So a small message takes longer here.
    """

    def __init__(self, worker: Worker) -> None:
        self.number = torch.zeros(1, device=worker.device)
        self.buffer = torch.zeros(DELAY_BYTES // 4, device=worker.device)
        self.fills = 1
        fill_s = min(worker.timer.benchmark(self._delay, 5))
        self.fills = math.ceil(DELAY_S / fill_s)

    def _delay(self) -> None:
        for _ in range(self.fills):
            self.buffer.zero_()

    def __call__(self) -> None:
        """Queue both. Returns at once."""
        self._delay()
        dist.all_reduce(self.number)


def reason_to_skip(collective: str, dtype: torch.dtype, base: Tensor, worker: Worker) -> str | None:
    """Return why this pair cannot be measured, or None. All ranks decide together.

    A backend reports what it lacks only when it is used, so it sends one small message.
    """
    if LEVELS * worker.world_size > EXACT[dtype]:
        return f"the sum over {worker.world_size} workers is not exact in {dtype}: it cannot be checked"
    refusal = None
    try:
        CollectiveCase.of(collective, dtype, worker.world_size, base=base, worker=worker).operation()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        refusal = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return next((reason for reason in worker.gather(refusal) if reason), None)
