"""CUDA graphs on a CPU: what is captured does not run, and a replay runs it again on the same memory.

As on a GPU, Python does not run in a replay, numbers that Python had are those of the capture, results of a
capture are no numbers until it is replayed, and memory that existed before a capture is as it was after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph:
    """Calls of operators in their order, with their arguments and what they returned."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, old in self.calls:
                if func.name() == "c10d::allreduce_":
                    dist.all_reduce(args[0][0])
                    continue
                for was, new in zip(_tensors(old), _tensors(func(*args, **kwargs)), strict=True):
                    if _storage(was) != _storage(new):  # neither a view nor in its place
                        was.copy_(new)


class Capture(TorchDispatchMode):
    """Records operators; puts back what they changed when it ends."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph, self.before = graph, dict[int, tuple[torch.Tensor, torch.Tensor]]()
        self.made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            # Batch norm's running statistics, of which its schema says nothing (torch 2.13).
            written = argument.name.startswith("running_") and "batch_norm" in func.name()
            if written or (argument.alias_info is not None and argument.alias_info.is_write):
                for tensor in _tensors(named.get(argument.name)):
                    if _storage(tensor) not in self.made:
                        whole = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage())
                        self.before.setdefault(_storage(tensor), (whole, whole.clone()))
        result = func(*args, **kwargs)
        known = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if _storage(tensor) not in known:
                self.made[_storage(tensor)] = tensor
        self.graph.calls.append((func, args, kwargs, result))
        return result

    def end(self) -> None:
        for whole, before in self.before.values():
            whole.copy_(before)
        for tensor in self.made.values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))


@contextmanager
def cuda_graphs() -> Iterator[list[Graph]]:
    """Take the place of torch.cuda's graphs and streams; yield the graphs that are made."""
    graphs: list[Graph] = []

    def made() -> Graph:
        graphs.append(Graph())
        return graphs[-1]

    @contextmanager
    def capturing(graph: Graph, **how: Any) -> Iterator[None]:
        assert how["stream"] is current[-1] is not default, "nothing is captured on the default stream"
        with (capture := Capture(graph)):
            yield
        with torch.no_grad():
            capture.end()

    def stream(*_: Any) -> Any:
        return SimpleNamespace(wait_stream=lambda _: None)

    default = stream()
    current = [default]
    parts = {"CUDAGraph": made, "graph": capturing, "graph_pool_handle": object, "Stream": stream}
    parts |= {"current_stream": lambda *_: current[-1], "set_stream": current.append}
    with mock.patch.multiple(torch.cuda, **parts):
        yield graphs


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
