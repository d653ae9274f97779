"""A GPU's streams and events on a CPU: what is ordered after what, and whose memory is still in use.

Tensors stay on the CPU and are computed at once; a vector clock a stream (Mattern 1989) tells what a GPU
would be free to do in another order. `faults` names each access that no event orders, each memory that goes
back to the allocator while another stream may still use it, and each copy for which the host waits.
"""

import weakref
from collections import Counter
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda", 0)


class Stream:
    """Work in order; `clock` has the latest piece of work of each stream that this one's next comes after."""

    def __init__(self, gpu: "Gpu", name: str) -> None:
        self.gpu, self.name, self.clock = gpu, name, Counter[str]()

    def launch(self) -> int:
        self.clock |= self.gpu.host
        self.clock[self.name] += 1
        return self.clock[self.name]

    def wait_stream(self, other: "Stream") -> None:
        self.clock |= other.clock

    def wait_event(self, event: "Event") -> None:
        self.clock |= event.clock

    def synchronize(self) -> None:
        self.gpu.host |= self.clock
        self.gpu.log.append("wait")


class Event:
    def __init__(self, gpu: "Gpu") -> None:
        self.gpu, self.clock, self.at = gpu, Counter[str](), 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.gpu.stream
        self.clock, self.at = Counter(stream.clock), stream.clock[stream.name]
        self.gpu.log.append("record")

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Return a millisecond a piece of work between the two."""
        return float(other.at - self.at)

    def synchronize(self) -> None:
        self.gpu.host |= self.clock


class Block:
    """Memory of the GPU: accesses as (stream, its piece of work, whether it wrote)."""

    def __init__(self, owner: Stream) -> None:
        self.owner, self.accesses, self.recorded = owner, list[tuple[str, int, bool]](), set[str]()
        self.tensors = 0


class Gpu(TorchFunctionMode):
    """As a context manager it takes tensors to the stand-in for those to "cuda"."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Counter[str]()
        self.main = self.stream = Stream(self, "main")
        self.blocks: dict[int, Block] = {}
        self.pinned: set[int] = set()
        self.faults: list[str] = []
        self.log: list[str] = []  # the host's calls in their order: kernels by name, record, wait
        self._streams = 0

    def new_stream(self, *_: Any, **__: Any) -> Stream:
        self._streams += 1
        return Stream(self, f"stream {self._streams}")

    @contextmanager
    def on(self, stream: Stream) -> Any:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of torch.cuda's streams and events."""
        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(self))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: self.stream)
        generator = torch.Generator
        monkeypatch.setattr(torch, "Generator", lambda *_: generator())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: self.stream.synchronize())

        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda tensor, stream: self._record(tensor, stream)
        )

    def _record(self, tensor: torch.Tensor, stream: Stream) -> None:
        block = self._block(tensor)
        assert block is not None, "only a GPU's memory has streams"
        block.recorded.add(stream.name)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            attribute = getattr(getattr(func, "__self__", None), "__name__", "")
            if attribute in ("is_cuda", "device") and self._block(args[0]):
                return True if attribute == "is_cuda" else CUDA
            return func(*args, **kwargs)
        if name == "pin_memory":
            pinned = args[0].clone()
            self.pinned.add(_key(pinned))
            return pinned
        if name == "to" and any(_is_cuda(each) for each in (*args[1:], *kwargs.values())):
            return self._copied(args[0], waits=not kwargs.get("non_blocking", False))
        created = any(_is_cuda(each) for each in kwargs.values())
        kwargs = {key: "cpu" if _is_cuda(value) else value for key, value in kwargs.items()}
        read = {_key(tensor) for tensor in _tensors((args, kwargs)) if self._block(tensor)}
        result = func(*args, **kwargs)
        if read or created:
            in_place = name.endswith("_") and not name.startswith("__") or name == "__setitem__"
            written = {_key(tensor) for tensor in _tensors(kwargs.get("out"))}
            written |= {_key(args[0])} & read if in_place else set()
            self._launch(read, written, list(_tensors(result)))
            self.log.append(name)
        return result

    def _copied(self, source: torch.Tensor, *, waits: bool) -> torch.Tensor:
        if self._block(source):
            return source
        if waits or _key(source) not in self.pinned:
            self.faults.append(f"the host waits for a copy from {'' if waits else 'un'}pinned memory")
        result = source.clone()
        self._launch(set(), set(), [result])
        return result

    def _launch(self, read: set[int], written: set[int], results: list[torch.Tensor]) -> None:
        stream, piece = self.stream, self.stream.launch()
        for result in results:
            key = _key(result)
            if key not in self.blocks:
                self.blocks[key] = Block(stream)
                written = written | {key}
            block = self.blocks[key]
            block.tensors += 1
            weakref.finalize(result, self._dropped, key, block)
        for key in read | written:
            block = self.blocks[key]
            for other, number, wrote in block.accesses:
                if (wrote or key in written) and stream.clock[other] < number:
                    self.faults.append(f"{stream.name} does not wait for {other}")
            block.accesses.append((stream.name, piece, key in written))

    def _dropped(self, key: int, block: Block) -> None:
        block.tensors -= 1
        if block.tensors:
            return
        if self.blocks.get(key) is block:
            del self.blocks[key]
        for other, number, _ in block.accesses:
            if block.owner.clock[other] < number and other not in block.recorded:
                self.faults.append(f"memory of {block.owner.name} is free while {other} may use it")

    def _block(self, tensor: torch.Tensor) -> Block | None:
        return self.blocks.get(_key(tensor))


class DriftingGpu:
    """A GPU whose oscillator is `drift` faster than the host's; it passes an event after LATENCY_S.

    - now: the host's clock, of which a look takes LOOK_S. waits: of the host for the GPU.
    """

    LATENCY_S, LOOK_S = 5e-6, 1e-6

    def __init__(self, drift: float) -> None:
        self.drift, self.at, self.waits = drift, 1000.0, 0

    def now(self) -> float:
        self.at += self.LOOK_S
        return self.at

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Passed:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self, stream: object) -> None:
                self.at = gpu.at + gpu.LATENCY_S

            def query(self) -> bool:
                return self.at <= gpu.at

            def synchronize(self) -> None:
                gpu.waits += not self.query()
                gpu.at = max(gpu.at, self.at)

            def elapsed_time(self, other: "Passed") -> float:
                return float(torch.tensor(1e3 * (other.at - self.at) * (1 + gpu.drift), dtype=torch.float32))

        def synchronize(device: object = None) -> None:
            gpu.waits += 1

        monkeypatch.setattr(torch.cuda, "Event", Passed)
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: "side")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "main")
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def _key(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device | str) and str(value).startswith("cuda")


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in cast(Any, value):
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
