"""Every training task as a script that knows nothing of mlbench, written to be fast by measurement.

    cd benchmarks
    OMP_NUM_THREADS=1 torchrun --nproc-per-node=2 -m references.resnet20 \\
        --config CONFIG.json --data FOLDER --epochs 3 [layout=channels_first ...]

CONFIG.json holds a task's hyper-parameters and FOLDER its prepared Arrow files. A script trains its epochs
under DDP over gloo and prints one JSON line: samples/s of all ranks over the epochs, data included. VARIANTS
of a module are what was tried; without words the fastest of equal mathematics runs
(docs/measurements/performance.md).
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Words = Mapping[str, str]  # of a variant, e.g. {"layout": "channels_first"}
# What any script takes; those of DDP matter with several ranks only.
COMMON = ("optimizer=foreach", "optimizer=loop", "compile=1", "compile=joint", "precision=bf16")
NOTHING = nullcontext()
UNSCALED = torch.amp.GradScaler(enabled=False)  # its steps are the optimizer's own
DDP = ("bucket_view=0", "static_graph=1", "bucket_cap_mb=1", "bucket_cap_mb=100")


class Reference(NamedTuple):
    """A model, its optimizer, and the loss of a micro-batch such that those of a step add up.

    - step(): what updates the weights and drops their gradients, if not the optimizer.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Any], Tensor]
    max_grad_norm: float | None = None
    step: Callable[[], Any] | None = None


class Data(NamedTuple):
    """What a script reads: `size` is that of the model's data (features, classes or words)."""

    size: int
    steps: Callable[[int], Iterator[Sequence[Any]]]  # of an epoch, each a list of micro-batches
    samples: Callable[[Any], int]


def build(config: Any, size: int, overrides: Words | None = None, device: str = "cpu") -> Reference:
    """Return the reference of the task that `config` describes."""
    with torch.device(device):
        return import_module(f"references.{config.name}").build(config, size, overrides or {})


def joint(reference: Reference, **how: Any) -> Reference:
    """Return the reference with model and loss compiled as one graph, as nanoGPT's model has its loss inside.

    how: arguments of torch.compile.
    """
    return reference._replace(loss=torch.compile(reference.loss, **how))


def size_of(name: str, model: Any) -> int:
    """Return what `build` needs to know of the data, from mlbench's model of them."""
    sizes: dict[str, Callable[[], int]] = {
        "logreg": lambda: len(model.weight),
        "resnet20": lambda: 10,
        "resnet50": lambda: model.fc.out_features,
        "awdlstm": lambda: len(model.words),
        "gpt": lambda: len(model.tokens),
    }
    return sizes.get(name, lambda: len(model.embedding.weight))()


def speed(overrides: Words) -> dict[str, bool]:
    """Return the arguments of a torch optimizer."""
    kind = overrides.get("optimizer", "fused")
    return {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[kind]


def train_step(
    reference: Reference,
    net: Any,
    batches: Sequence[Any],
    precision: Any,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Run one step over its micro-batches; return their summed loss.

    scaler: a loss scale, which the optimizer's step takes back; Reference.step knows none.
    """
    total, scaler = None, scaler or UNSCALED
    for number, batch in enumerate(batches, start=1):
        accumulates = number < len(batches) and isinstance(net, DistributedDataParallel)
        with net.no_sync() if accumulates else NOTHING:
            with precision:
                loss = reference.loss(net, batch)
            scaler.scale(loss).backward()
        total = loss.detach() if total is None else total + loss.detach()
    if reference.max_grad_norm is not None:
        scaler.unscale_(reference.optimizer)
        nn.utils.clip_grad_norm_(reference.model.parameters(), reference.max_grad_norm, foreach=True)
    if reference.step is not None:
        reference.step()
    else:
        scaler.step(reference.optimizer)
        scaler.update()
        reference.optimizer.zero_grad()
    assert total is not None
    return total


def autocast(overrides: Words, device: str = "cpu") -> Any:
    """Return the context of a forward pass."""
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(overrides.get("precision", ""))
    return NOTHING if lower is None else torch.autocast(device, lower)


def main() -> None:
    """Train as one rank of torchrun; rank 0 prints the rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    overrides = dict(word.split("=") for word in options.overrides)
    config = json.loads(options.config.read_text(), object_hook=lambda fields: SimpleNamespace(**fields))
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.manual_seed(1)
    data: Data = import_module(f"references.{config.name}").load(config, options.data, rank, size)
    reference = build(config, data.size, overrides)
    net: Any = torch.compile(reference.model) if overrides.get("compile") == "1" else reference.model
    if overrides.get("compile") == "joint":
        reference = joint(reference)
    if size > 1:
        dist.init_process_group("gloo")
        net = DistributedDataParallel(
            net,
            gradient_as_bucket_view=overrides.get("bucket_view", "1") == "1",
            static_graph=overrides.get("static_graph", "0") == "1",
            bucket_cap_mb=int(overrides.get("bucket_cap_mb", 25)),
        )
        dist.barrier()
    assert isinstance(net, nn.Module)
    precision = autocast(overrides)
    samples, begin = 0, perf_counter()
    for epoch in range(options.epochs):
        for batches in data.steps(epoch):
            train_step(reference, net, batches, precision)
            samples += sum(map(data.samples, batches))
    seconds = perf_counter() - begin
    totals = torch.tensor([samples, seconds], dtype=torch.float64)
    if size > 1:
        dist.all_reduce(totals)
    if rank == 0:
        print(json.dumps({"samples_per_s": float(totals[0] / totals[1] * size)}), flush=True)
    if size > 1:
        os._exit(0)  # destroy_process_group hung once (torch 2.13, 2026-11-22)


def column(path: Path, name: str) -> Tensor:
    """Return a column of numbers or tensors of an Arrow file as a read-only view of it."""
    array = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(name).chunk(0)
    if isinstance(array, pa.FixedShapeTensorArray):
        return torch.from_dlpack(array.to_numpy_ndarray())
    return torch.from_dlpack(array.to_numpy())


def rows(path: Path) -> int:
    """Return how many rows an Arrow file has."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all().num_rows


def ragged(path: Path, name: str) -> list[np.ndarray]:
    """Return a column of lists or bytes, a view a row."""
    array = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(name).chunk(0)
    ends = np.frombuffer(array.buffers()[1], np.int64)
    binary = pa.types.is_large_binary(array.type)
    values = np.frombuffer(array.buffers()[2], np.uint8) if binary else array.values.to_numpy()
    return np.split(values, ends[1 : len(array)])
