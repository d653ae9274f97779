"""Who was last: exposed communication is split into waiting for the slowest rank's gradients and transfer."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from mlbench.record.phases import PhaseTimes, lateness_blocks
from mlbench.training.stamps import Arrivals


def split(
    measured: Sequence[tuple[PhaseTimes, Arrivals]],
    *,
    ranks: int,
    to_common: Callable[[np.ndarray], np.ndarray],
    group: dist.ProcessGroup | None,
) -> None:
    """Move from `transfer` to `wait` what this rank waited for the others, and note how late it was.

    Two sums over the ranks of one number a stamped step. Every rank must call this with as many steps.
    to_common: brings times on this rank's clock to that of rank 0.
    """
    arrivals = [each for _, each in measured]
    own = to_common(np.concatenate([np.frombuffer(each.launched) for each in arrivals] or [np.zeros(0)]))
    if ranks == 1 or not len(own):
        return
    latest, total = torch.from_numpy(own.copy()), torch.from_numpy(own.copy())
    dist.all_reduce(latest, dist.ReduceOp.MAX, group=group)
    # Sums of times since the first launch: float64 keeps nanoseconds of a month, not of a month times ranks.
    zero = latest[0].item()
    total -= zero
    dist.all_reduce(total, group=group)
    mine = own - zero
    lateness = mine - (total.numpy() - mine) / (ranks - 1)
    last = own == latest.numpy()
    waited = np.clip(latest.numpy() - own, 0.0, None)
    begin = 0
    for times, each in measured:
        part = slice(begin, begin + len(each.launched))
        begin = part.stop
        wait = float(np.minimum(waited[part], np.frombuffer(each.exposed)) @ np.frombuffer(each.weights))
        times.phases["wait"] += wait
        times.phases["transfer"] -= wait
        times.lateness = lateness_blocks(lateness[part], last[part])
