"""Implement torch's collectives by MPI's non-blocking ones, on the tensors' memory."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore  # torch.distributed's, exported for type checkers

from mlbench.plugins.mpi import bootstrap
from mlbench.plugins.mpi.work import ProgressThread, Work

DATATYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.float16: MPI.FLOAT16_T,
    torch.bfloat16: MPI.BFLOAT16_T,  # null if only MPICH's extension has it: see `_datatype`
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.bool: MPI.C_BOOL,
}
MPICH_BFLOAT16 = 0x4C00024C  # MPIX_BFLOAT16 in MPICH 5.0's mpi.h, missing in mpi4py 4.1
Kind: Any = dist.ReduceOp.RedOpType
OPERATIONS = {
    Kind.SUM: MPI.SUM,
    Kind.AVG: MPI.SUM,  # divided when it is complete
    Kind.PRODUCT: MPI.PROD,
    Kind.MIN: MPI.MIN,
    Kind.MAX: MPI.MAX,
    Kind.BAND: MPI.BAND,
    Kind.BOR: MPI.BOR,
    Kind.BXOR: MPI.BXOR,
}
ANY, ALL = MPI.LOR, MPI.LAND  # sums and products of truth values
LOGICAL = {
    **{Kind.SUM: ANY, Kind.MAX: ANY, Kind.BOR: ANY, Kind.BXOR: MPI.LXOR},
    **{Kind.PRODUCT: ALL, Kind.MIN: ALL, Kind.BAND: ALL},
}
OF_BFLOAT16 = {Kind.MIN: torch.minimum, Kind.MAX: torch.maximum, Kind.PRODUCT: torch.mul}
Pair = tuple[Tensor, Tensor]  # a tensor of the caller's, and the memory that MPI uses for it: often the same
_progress = cache(ProgressThread)  # the thread of all groups of this process; it starts with the first


def create(options: Any, _: Any = None) -> "MpiProcessGroup":
    """Return the process group of `options`, a torch DistributedBackendOptions. All its ranks call this."""
    members = list(options.global_ranks_in_group)
    if not members:
        bootstrap.start(options.store, options.group_rank, options.group_size)
        return MpiProcessGroup(MPI.COMM_WORLD.Dup(), options.timeout)
    # MPI's world may not exist yet: the default group's backend may be another.
    store = options.store
    while isinstance(store, PrefixStore):  # of this group alone
        store = store.underlying_store
    bootstrap.start(PrefixStore("mpi", store), dist.get_rank(), dist.get_world_size())
    communicator = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(members))
    return MpiProcessGroup(communicator, options.timeout)


class MpiProcessGroup(dist.ProcessGroup):
    """The ranks of one MPI communicator.

    Contiguous tensors in the host's memory, or on a GPU that MPI can address, are sent and received in place.
    Others are copied to the host's memory.
    """

    def __init__(self, communicator: MPI.Intracomm, timeout: timedelta) -> None:
        make: Any = super().__init__  # the stubs lack the constructor that a Python class has to call
        make(communicator.rank, communicator.size)
        self._communicator = communicator
        self._timeout_s = timeout.total_seconds()
        self._progress = _progress()
        self._devices = ("cpu", "cuda") if bootstrap.cuda_aware() else ("cpu",)

    def getBackendName(self) -> str:
        """Return the name of this backend in torch."""
        return "mpi4py"

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduce each tensor over the ranks, in place."""
        kind = opts.reduceOp.op
        pairs = [(tensor, self._near(tensor)) for tensor in tensors]
        requests = [
            self._communicator.Iallreduce(MPI.IN_PLACE, _message(near), _operation(kind, near))
            for _, near in pairs
        ]
        return self._begin("all_reduce", opts, requests, pairs, average=kind == Kind.AVG)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduce each tensor over the ranks, in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduce the tensor to rank `opts.rootRank`. The other ranks' tensors do not change."""
        kind, near = opts.reduceOp.op, self._near(tensors[0])
        root = self.rank() == opts.rootRank
        sent, received = (MPI.IN_PLACE, _message(near)) if root else (_message(near), None)
        request = self._communicator.Ireduce(sent, received, _operation(kind, near), opts.rootRank)
        pairs = [(tensors[0], near)] if root else []
        return self._begin("reduce", opts, [request], pairs, near, average=kind == Kind.AVG)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        """Copy rank `opts.rootRank`'s tensors to all ranks."""
        pairs = [(tensor, self._near(tensor)) for tensor in tensors]
        requests = [self._communicator.Ibcast(_message(near), opts.rootRank) for _, near in pairs]
        return self._begin("broadcast", opts, requests, pairs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        """Gather the inputs of all ranks, in the ranks' order, in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Gather several inputs, each in a separate output."""
        sent = [self._near(tensor) for tensor in inputs]
        pairs = [(tensor, self._room(tensor)) for tensor in outputs]
        requests = [
            self._communicator.Iallgather(_message(tensor), _message(near))
            for tensor, (_, near) in zip(sent, pairs, strict=True)
        ]
        return self._begin("all_gather", opts, requests, pairs, *sent)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gather each input in a list of tensors, one a rank."""
        sent = [self._near(tensor) for tensor in inputs]
        flats = [tensor.new_empty((self.size(), tensor.numel())) for tensor in sent]
        requests = [
            self._communicator.Iallgather(_message(tensor), _message(flat))
            for tensor, flat in zip(sent, flats, strict=True)
        ]
        pairs = [
            pair for parts, flat in zip(outputs, flats, strict=True) for pair in zip(parts, flat, strict=True)
        ]
        return self._begin("all_gather", opts, requests, pairs, *sent, *flats)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gather each input in a list of tensors. `outputs` has a list per rank, with a tensor per input."""
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        """Reduce over the ranks. Each gets its block of the result."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Reduce several inputs, each with a separate output."""
        kind = opts.reduceOp.op
        sent = [self._near(tensor) for tensor in inputs]
        pairs = [(tensor, self._room(tensor)) for tensor in outputs]
        requests = [
            self._communicator.Ireduce_scatter_block(
                _message(tensor), _message(near), _operation(kind, tensor)
            )
            for tensor, (_, near) in zip(sent, pairs, strict=True)
        ]
        return self._begin("reduce_scatter", opts, requests, pairs, *sent, average=kind == Kind.AVG)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Reduce lists with a tensor per rank. Each rank gets the tensor at its place."""
        flats = [_flat(self._near(tensor) for tensor in parts) for parts in inputs]
        return self.reduce_scatter_single_coalesced(outputs, flats, opts)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Work:
        """Send block i to rank i. The splits count rows, and are empty if all blocks are equal."""
        near, sent = self._room(output), self._near(input)
        row = (math.prod(input.shape[1:]), math.prod(output.shape[1:]))
        counts_in = [count * row[0] for count in input_splits] or [sent.numel() // self.size()] * self.size()
        counts_out = [count * row[1] for count in output_splits] or [
            near.numel() // self.size()
        ] * self.size()
        request = self._communicator.Ialltoallv(_message(sent, counts_in), _message(near, counts_out))
        return self._begin("all_to_all", opts, [request], [(output, near)], sent)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Send tensor i to rank i."""
        counts_out, counts_in = [tensor.numel() for tensor in outputs], [tensor.numel() for tensor in inputs]
        sent = _flat(self._near(tensor) for tensor in inputs)
        received = sent.new_empty(sum(counts_out))
        request = self._communicator.Ialltoallv(_message(sent, counts_in), _message(received, counts_out))
        pairs = zip(outputs, received.split(counts_out), strict=True)
        return self._begin("all_to_all", opts, [request], list(pairs), sent, received)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Gather the input in a list of tensors on rank `opts.rootRank`."""
        sent, root = self._near(inputs[0]), self.rank() == opts.rootRank
        flat = sent.new_empty((self.size() if root else 0, sent.numel()))
        request = self._communicator.Igather(_message(sent), _message(flat) if root else None, opts.rootRank)
        pairs = list(zip(outputs[0], flat, strict=True)) if root else []
        return self._begin("gather", opts, [request], pairs, sent, flat)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Send rank `opts.rootRank`'s tensor i to rank i."""
        near, root = self._room(outputs[0]), self.rank() == opts.rootRank
        flat = _flat(self._near(tensor) for tensor in inputs[0]) if root else near
        request = self._communicator.Iscatter(_message(flat) if root else None, _message(near), opts.rootRank)
        return self._begin("scatter", opts, [request], [(outputs[0], near)], flat)

    def barrier(self, opts: Any) -> Work:
        """Wait for all ranks."""
        return self._begin("barrier", opts, [self._communicator.Ibarrier()], [])

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Work:
        """Send a tensor to one rank."""
        near = self._near(tensors[0])
        return self._begin("send", None, [self._communicator.Isend(_message(near), to, tag)], [], near)

    def recv(self, tensors: list[Tensor], sender: int, tag: int) -> Work:
        """Receive a tensor from one rank."""
        near = self._room(tensors[0])
        request = self._communicator.Irecv(_message(near), sender, tag)
        return self._begin("receive", None, [request], [(tensors[0], near)])

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receive a tensor from any rank that sends one."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _begin(
        self,
        what: str,
        opts: Any,
        requests: list[MPI.Request],
        pairs: list[Pair],
        *buffers: Tensor,
        average: bool = False,
    ) -> Work:
        """Return the work of these requests: ended, if the caller waits anyway, else driven from now on."""

        def finish() -> None:
            for tensor, near in pairs:
                if average:
                    near.detach().div_(self.size())
                if near is not tensor:
                    tensor.detach().copy_(near.view_as(tensor))

        outputs = [tensor for tensor, _ in pairs]
        tensors = (*buffers, *(near for _, near in pairs))
        work = Work(what, requests, outputs, timeout_s=self._timeout_s, finish=finish, buffers=tensors)
        if opts is not None and not opts.asyncOp:
            work.wait()
        else:
            self._progress.watch(work)
        return work

    def _near(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a copy of it that MPI can send."""
        if tensor.device.type in self._devices and tensor.is_contiguous():
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()  # MPI has no streams
            return tensor
        return tensor.detach().to("cpu").contiguous()

    def _room(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or memory of its size that MPI can receive in."""
        if tensor.device.type in self._devices and tensor.is_contiguous():
            return self._near(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors of any shapes one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _message(tensor: Tensor, counts: Sequence[int] | None = None) -> list[Any]:
    """Return the tensor's memory in mpi4py's form, whole or in blocks."""
    memory = MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    datatype = _datatype(tensor.dtype)
    return [memory, datatype] if counts is None else [memory, (counts, None), datatype]


def _datatype(dtype: torch.dtype) -> MPI.Datatype:
    datatype = DATATYPES.get(dtype, MPI.DATATYPE_NULL)
    if datatype == MPI.DATATYPE_NULL and dtype == torch.bfloat16 and MPI.get_vendor()[0] == "MPICH":
        candidate = MPI.Datatype.fromhandle(MPICH_BFLOAT16)
        with suppress(MPI.Exception):  # an older MPICH, which has none
            datatype = DATATYPES[dtype] = candidate if candidate.name == "MPIX_BFLOAT16" else datatype
    if datatype == MPI.DATATYPE_NULL:
        raise TypeError(f"this MPI has no counterpart of {dtype}")
    return datatype


def _operation(kind: Any, tensor: Tensor) -> MPI.Op:
    operations = LOGICAL if tensor.dtype == torch.bool else OPERATIONS
    if kind not in operations or (kind == Kind.AVG and not tensor.is_floating_point()):
        raise ValueError(f"MPI has no {kind} of {tensor.dtype}")
    if tensor.dtype == torch.bfloat16 and kind in OF_BFLOAT16:
        return _of_bfloat16(OF_BFLOAT16[kind])
    return operations[kind]


@cache
def _of_bfloat16(function: Callable[..., Tensor]) -> MPI.Op:
    """Return an operation that torch computes: MPICH 5.0 can only add bfloat16, and aborts on the others."""

    def reduce(sent: Any, accumulator: Any, _: MPI.Datatype) -> None:
        result = torch.frombuffer(accumulator, dtype=torch.bfloat16)
        function(torch.frombuffer(sent, dtype=torch.bfloat16), result, out=result)

    return MPI.Op.Create(reduce, commute=True)
