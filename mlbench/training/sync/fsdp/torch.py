"""FSDP2: torch's fully_shard, with collectives that count bytes and are stamped."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import parametrize

from mlbench.config.errors import UserError
from mlbench.training.flops import keep_shapes
from mlbench.training.sync.fsdp import Config
from mlbench.training.sync.strategy import BareModel
from mlbench.training.sync.wire import Wire, all_gather_single, all_reduce_bytes, reduce_scatter_single
from mlbench.training.worker import Worker


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker) -> "Fsdp":
    """Return the model with its weights shared out, and let the optimizer step this worker's parts."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    if any(torch.is_tensor(value) and value.any() for value in values):
        raise UserError(
            "sync=fsdp begins with an empty state of the optimizer, and this one has made steps",
            hint="synchronise the model before the first step, or take sync=zero1",
        )
    wire = Wire(worker)
    keep_shapes(model)
    units = [*(_children(model) if config.unit == "child" else []), model]
    _make_shardable(model)
    before: dict[str, torch.Tensor] = dict(model.named_parameters())
    mesh = init_device_mesh(worker.device.type, (worker.world_size,))
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=config.reshard_after_forward)
        sharded = cast(Any, unit)  # an FSDPModule, whose type of a collective torch does not export
        sharded.set_custom_all_gather(AllGather(wire))
        sharded.set_custom_reduce_scatter(ReduceScatter(wire))
    shards: dict[Any, Any] = {before[name]: shard for name, shard in model.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [shards[weight] for weight in group["params"]]
        if group.get("fused"):
            group["fused"], group["foreach"] = False, True  # torch 2.13 has no fused SGD of sharded tensors
            # The fused form takes a loss's scale back itself, this one leaves that to the scaler.
            cast(Any, optimizer)._step_supports_amp_scaling = False
    for weight, state in list(optimizer.state.items()):  # what a task has filled in: zeros
        del optimizer.state[weight]
        optimizer.state[shards[weight]] = {
            name: torch.zeros_like(shards[weight]) if torch.is_tensor(value) else value
            for name, value in state.items()
        }
    return Fsdp(model, wire, config)


class Scalar(nn.Module):
    """A parametrization: a number that is kept as a vector of one, for `fully_shard` takes no scalars."""

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        return vector.squeeze(0)

    def right_inverse(self, number: torch.Tensor) -> torch.Tensor:
        return number.reshape(1)


def _make_shardable(model: nn.Module) -> None:
    """Give every weight the form that `fully_shard` takes in torch 2.13: contiguous, with a dimension.

    Channels last is then the order of the activations alone, by which convolutions choose their kernels.
    """
    scalars = [
        (module, name)
        for module in model.modules()
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim == 0
    ]
    for module, name in scalars:
        parametrize.register_parametrization(module, name, Scalar(), unsafe=True)
    for weight in model.parameters():
        weight.data = weight.data.contiguous()


def _children(model: nn.Module) -> list[nn.Module]:
    """Return the children that have weights and are called. Containers such as lists give their children.

    Not those that share a weight with the rest: `fully_shard` would give each side a separate weight.
    """
    uses = _uses(model)
    return [child for child in _called(model) if (own := _uses(child)) and own.items() <= uses.items()]


def _called(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if type(child).forward is nn.Module.forward:
            yield from _called(child)
        else:
            yield child


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """Return in how many places of a module each of its weights is."""
    return Counter(weight for _, weight in module.named_parameters(remove_duplicate=False))


class Fsdp(BareModel):
    """Whole weights are there while they are needed, and during validations."""

    def __init__(self, module: nn.Module, wire: Wire, config: Config) -> None:
        super().__init__(module, wire)
        self.reshard_after_forward = config.reshard_after_forward
        self.units = [each for each in module.modules() if isinstance(each, FSDPModule)]

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Send no gradients in this context. They add up, whole, on each worker."""
        root = self.units[0]
        root.set_requires_gradient_sync(False)
        root.set_reshard_after_backward(False)  # the next micro-batch needs the whole weights again
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)
            root.set_reshard_after_backward(True)

    def before_validation(self) -> None:
        """Gather the weights and make the buffers one.

        The weights stay until the validation ends: workers may validate different numbers of batches, so no
        batch may gather.
        """
        super().before_validation()
        self.units[0].set_reshard_after_forward(False)
        for unit in self.units:
            unit.unshard()

    def after_validation(self) -> None:
        """Give back the weights of other workers."""
        self.units[0].set_reshard_after_forward(self.reshard_after_forward)
        for unit in self.units:
            unit.reshard()
        # FSDP gathers ahead in backward by the order of the forwards before it, validations' included.
        with suppress(AttributeError):  # before the first forward it has none to forget, and no place for it
            self.units[0].reset_iter_state()


class _Stamped:
    """A collective that is launched here and waited for by FSDP."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Stamped):
    """Gathers the weights of a unit from all workers."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Count and launch."""
        self.wire.sent += (self.wire.workers - 1) * input_tensor.nbytes
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(_Stamped):
    """Sends every worker the mean of its part of a unit's gradients, inside backward."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Count, stamp and launch."""
        if dist.get_backend(group) == "gloo":  # whose reduce-scatter is an all-reduce in torch 2.13
            self.wire.sent += all_reduce_bytes(input_tensor.nbytes, self.wire.workers)
        else:
            self.wire.sent += (self.wire.workers - 1) * output_tensor.nbytes
        with self.wire.stamped():
            return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
