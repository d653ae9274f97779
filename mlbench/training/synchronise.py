"""A sync strategy in a training loop that is not mlbench's: `mlbench.synchronise(...)`."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from mlbench.config import field_errors, plugins
from mlbench.config.errors import UserError, suggest
from mlbench.config.experiment import Precision, SyncConfig
from mlbench.training.sync import compression
from mlbench.training.sync import strategy as strategies
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

METHODS = tuple(compression.MEMORIES)  # of sync=compression


class Synchronised:
    """A model whose ranks train together.

    - module: what the loop calls, and what `clip_grad_norm_` and `state_dict` are given. For ddp, zero1 and
      compression it is a DistributedDataParallel.
    - steps: of the optimizer, so far.
    """

    def __init__(self, sync: strategies.BareModel, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.steps, self._sync = sync.module, 0, sync
        optimizer.register_step_post_hook(self._after_step)  # after those of the strategy itself

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates, for all but a step's last micro-batch."""
        return self._sync.accumulating()

    @contextmanager
    def validation(self) -> Iterator[nn.Module]:
        """Yield the bare model, the same on all ranks inside the context, to validate or to save.

        Without gradients, as `torch.no_grad()` has it. Every rank must enter.
        """
        with torch.no_grad():
            self._sync.before_validation()
            try:
                module = self.module
                yield module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
            finally:
                self._sync.after_validation()

    def bytes_sent(self) -> int:
        """Return the bytes that this rank has sent to combine gradients or models, without headers."""
        return self._sync.bytes_sent(self.steps)

    def _after_step(self, *_: Any) -> None:
        self._sync.after_step(self.steps)
        self.steps += 1


def synchronise(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: str = "ddp",
    *,
    precision: Precision = "fp32",
    seed: int = 0,
    **settings: Any,
) -> Synchronised:
    """Combine the gradients or the weights of all ranks' copies of `model` as `sync=strategy` does in a run.

    - model: on its device, unwrapped. All ranks begin with rank 0's weights. optimizer: of its parameters.
    - strategy: of conf/sync or of an installed package, e.g. "local_sgd", or a method of sync=compression,
      e.g. "powersgd". settings: the fields of its file that differ, e.g. every=16 or rank=4.
    - precision: in which the loop computes, which some strategies restrict.
    - seed: of what a strategy draws at random, the same on all ranks.

    The process group must be made before. Without one, or with one rank, the model trains as it is. Raises
    UserError for an unknown strategy, wrong settings, or if the strategy cannot combine so many ranks.
    """
    together = dist.is_available() and dist.is_initialized()
    worker = Worker(
        rank=dist.get_rank() if together else 0,
        world_size=dist.get_world_size() if together else 1,
        device=next(model.parameters()).device,
        seed=seed,
        sync=configuration(strategy, settings),
        timer=PhaseTimer(enabled=False),
    )
    if worker.world_size > 1:
        worker.sync.check(workers=worker.world_size, precision=precision)
        if precision == "fp16" and worker.sync.own_steps:  # whose post-hook a skipped step leaves out
            raise UserError(
                f"strategy {strategy!r}: with fp16 a rank skips a step alone if its gradients overflow, "
                "so ranks would combine different steps",
                hint='precision="bf16" needs no loss scale',
            )
        for tensor in (*model.parameters(), *model.buffers()):
            own = tensor.detach()
            whole = own.contiguous()  # gloo sends the memory that follows, if a part of a tensor has gaps
            dist.broadcast(whole, 0)
            own.copy_(whole)
    return Synchronised(strategies.synchronise(model, optimizer, worker), optimizer)


def configuration(name: str, settings: dict[str, Any]) -> SyncConfig:
    """Return the values of a strategy's file with those settings. Raises UserError for invalid ones."""
    if name in METHODS:
        name, settings = "compression", {"method": name} | settings
    paths = plugins.files("sync")
    if name not in paths:
        raise UserError(f"strategy {name!r} is unknown{suggest(name, [*paths, *METHODS])}")
    values = plugins.values(paths[name]) | settings
    try:
        return plugins.load("sync", name).Config.model_validate(values)
    except ValidationError as error:
        raise UserError("; ".join(field_errors.sentences([("sync.", error)], {"sync": values}))) from error
