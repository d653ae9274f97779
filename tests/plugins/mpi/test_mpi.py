"""The MPI backend beside gloo, in the same real processes: every collective, training, and failures."""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from commands import PATIENCE_S
from conftest import ROOT
from ranks import run_ranks
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from mlbench.config.compose import compose
from mlbench.launch import process_group
from mlbench.plugins.mpi import bootstrap
from mlbench.plugins.mpi.bootstrap import process_mapping
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker, control_group

MODULE = "mlbench.plugins.mpi.backend"
TIMEOUT = timedelta(seconds=PATIENCE_S)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
SUMS = {torch.float32: 1e-6, torch.float64: 1e-14, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # 4 addends
STEPS = 4  # another sum shows in the first
GRADIENT_STEP = 2.0**-16  # sums of four gradients below 64 then have no more bits than float32
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def drawn(numbers: random.Random, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return random numbers, integers small enough that a sum or product over four ranks fits."""
    draw = torch.Generator().manual_seed(numbers.getrandbits(30))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=draw).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 3, shape, generator=draw).to(dtype)


def collectives(rank: int, ranks: int, seed: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return functions of a group that call each collective on the same random tensors."""
    shared, own = random.Random(seed), random.Random(seed * 1000 + rank)  # sizes are alike, contents are not
    rows, columns, root = shared.randint(1, 9), shared.randint(1, 3000), shared.randrange(ranks)
    splits = [[shared.randint(0, 5) for _ in range(ranks)] for _ in range(ranks)]
    part = drawn(own, dtype, rows, columns)
    whole = drawn(own, dtype, rows * ranks, columns)
    mine, theirs = splits[rank], [row[rank] for row in splits]
    ragged = drawn(own, dtype, sum(mine), columns)

    def reduced(op: Any) -> Any:
        def call(group: Any) -> list[Tensor]:
            dist.all_reduce(result := part.clone(), op, group=group)
            return [result]

        return call

    def all_gather(group: Any) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_gather(parts, part, group=group)
        return parts

    def all_gather_single(group: Any) -> list[Tensor]:
        dist.all_gather_single(result := torch.empty_like(whole), part, group=group)
        return [result]

    def reduce_scatter_single(group: Any) -> list[Tensor]:
        dist.reduce_scatter_single(result := torch.empty_like(part), whole, group=group)
        return [result]

    def reduce_scatter(group: Any) -> list[Tensor]:
        dist.reduce_scatter(result := torch.empty_like(part), list(whole.chunk(ranks)), group=group)
        return [result]

    def broadcast(group: Any) -> list[Tensor]:
        dist.broadcast(result := part.t().clone().t(), root, group=group)  # not contiguous
        return [result]

    def reduce(group: Any) -> list[Tensor]:
        dist.reduce(result := part.clone(), root, group=group)
        return [result] if rank == root else []

    def gather(group: Any) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(ranks)] if rank == root else None
        dist.gather(part, parts, root, group=group)
        return parts or []

    def scatter(group: Any) -> list[Tensor]:
        parts = list(whole.chunk(ranks)) if rank == root else None
        dist.scatter(result := torch.empty_like(part), parts, root, group=group)
        return [result]

    def all_to_all_single(group: Any) -> list[Tensor]:
        dist.all_to_all_single(result := torch.empty_like(whole), whole, group=group)
        received = torch.empty((sum(theirs), columns), dtype=dtype)
        dist.all_to_all_single(received, ragged, theirs, mine, group=group)
        return [result, received]

    def send(group: Any) -> list[Tensor]:
        received, nobody = torch.empty_like(part), torch.empty_like(part)
        sending: Any = dist.isend(part, (rank + 1) % ranks, group=group, tag=7)
        dist.recv(received, (rank - 1) % ranks, group=group, tag=7)
        sending.wait()
        sending = dist.isend(part, (rank + 1) % ranks, group=group, tag=8)
        sender = dist.recv(nobody, None, group=group, tag=8)
        sending.wait()
        return [received, nobody, torch.tensor([sender])]

    kinds = ["SUM", "MIN", "MAX", "PRODUCT"]
    kinds += ["AVG"] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"]
    if dtype == torch.bool:
        kinds = []  # gloo adds them as bytes; see below
    moves = [all_gather, all_gather_single, broadcast, gather, scatter, all_to_all_single, send]
    sums = [] if dtype == torch.bool else [reduce, reduce_scatter, reduce_scatter_single]
    reductions = {f"all_reduce {kind}": reduced(getattr(dist.ReduceOp, kind)) for kind in kinds}
    return reductions | {call.__name__: call for call in (*moves, *sums)}


def differences(worker: Worker) -> list[str]:
    """Return in which collectives MPI gave something else than gloo."""
    group = dist.new_group(backend="mpi4py", timeout=TIMEOUT)
    problems = (
        [] if "pmi" in {thread.name for thread in threading.enumerate()} else ["MPI's descriptor is closed"]
    )
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for name, call in collectives(worker.rank, worker.world_size, 1, dtype).items():
            exact = not dtype.is_floating_point or not name.startswith(("all_reduce", "reduce"))
            tolerance = 0.0 if exact else SUMS[dtype]
            for ours, gloos in zip(call(group), call(None), strict=True):
                if not torch.allclose(ours.double(), gloos.double(), rtol=tolerance, atol=tolerance):
                    problems.append(f"{name} {dtype} {tuple(ours.shape)}")
    truth = torch.tensor([worker.rank == 0, True, False])
    dist.all_reduce(truth, group=group)
    if truth.tolist() != [True, True, False]:
        problems.append(f"a sum of truth values: {truth}")
    subgroup = dist.new_group([0, 1], backend="mpi4py", timeout=TIMEOUT)
    if worker.rank < 2:
        ones = [torch.ones(2), torch.ones(3)]
        works: list[Any] = [dist.all_reduce(tensor, group=subgroup, async_op=True) for tensor in ones]
        for work in works:
            work.get_future().wait()
        if [tensor.tolist() for tensor in ones] != [[2.0] * 2, [2.0] * 3]:
            problems.append("a group of some of the ranks")
    return problems


@dataclass
class First:
    """The first steps of a run, over as many epochs as they need."""

    setup: TrainingSetup
    data: Any

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        epochs = (self.setup.steps(self.data, epoch) for epoch in count())
        return islice(chain.from_iterable(epochs), STEPS)


def weights(worker: Worker, name: str, root: Path) -> Tensor:
    """Train the mini task for so many steps on the default process group; return all its weights."""
    worker.data_root, worker.seed = root, 1
    overrides = [f"task={name}", f"workers={worker.world_size}", "goal=none"]
    task: Any = compose(overrides).task
    setup = registry.build(task, worker)
    for weight in setup.model.parameters():
        # Backends add in different orders. Multiples of GRADIENT_STEP have the same sum in every order, so
        # that weights are equal to the last bit.
        weight.register_hook(lambda gradient: (gradient / GRADIENT_STEP).round() * GRADIENT_STEP)
    short = replace(
        setup,
        epochs=1,
        steps=lambda data, _: First(setup, data),
        validate=lambda *_: {task.metric: 0.0},
        after_validation=lambda _: None,
        validate_at=(1.0,),
    )
    assert loop.train(short, worker).steps == STEPS
    return torch.cat([weight.detach().flatten() for weight in setup.model.parameters()])


def beside_gloo(worker: Worker, root: Path) -> tuple[list[str], bool, float]:
    """Return differences of collectives, whether trained weights are equal, and the largest."""
    process_group.import_backend(MODULE)
    problems = differences(worker)
    gloo = weights(worker, "resnet20", root)
    store = PrefixStore("mpi", dist.distributed_c10d._get_default_store())
    rank, ranks = worker.rank, worker.world_size
    dist.destroy_process_group()
    dist.init_process_group("mpi4py", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    ours = Worker(rank=rank, world_size=ranks, local_rank=rank, control=control_group(PATIENCE_S))
    return problems, torch.equal(gloo, weights(ours, "resnet20", root)), float(gloo.abs().max())


def shared_memory() -> set[str]:
    """Return the names of what lies in shared memory; joblib's semaphores are of other tests."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.loky")}


def test_collectives_and_trained_weights_are_those_of_gloo(data_root: Path) -> None:
    registry.load("resnet20").prepare(compose(["task=resnet20"]).task, data_root)
    memory = shared_memory()
    for problems, equal, largest in run_ranks(beside_gloo, 4, data_root):
        assert problems == [] and equal and largest > 0.01
    assert shared_memory() <= memory, "shared memory is left behind"


def on_hosts_of_their_own(worker: Worker) -> tuple[list[float], set[str], set[str], dict[str, str]]:
    """Reduce between ranks that share no memory; return sum, addresses and peers of sockets, description."""
    process_group.import_backend(MODULE, {"GLOO_SOCKET_IFNAME": "lo"})
    bootstrap._host = lambda: str(worker.rank)  # as on two machines
    before = {entry.fd for entry in psutil.Process().net_connections("tcp")}
    group = dist.new_group(backend="mpi4py", timeout=TIMEOUT)
    dist.all_reduce(total := torch.full((300_000,), worker.rank + 1.0), group=group)
    new = [entry for entry in psutil.Process().net_connections("tcp") if entry.fd not in before]
    listening = {entry.laddr.ip for entry in new if entry.status == psutil.CONN_LISTEN}
    peers = {entry.raddr.ip for entry in new if entry.status == psutil.CONN_ESTABLISHED}
    dist.barrier()
    return total.unique().tolist(), listening, peers, process_group.describe(MODULE)


def test_ranks_of_two_hosts_talk_over_the_chosen_interface_alone() -> None:
    for total, listening, peers, described in run_ranks(on_hosts_of_their_own, 2):
        assert total == [3.0] and listening == peers == {"127.0.0.1"}
        assert described["library"].startswith("MPICH 5") and described["gpu_buffers"] == "staged"
        assert (described["provider"], described["interface"]) == ("ofi tcp", "lo")


def test_ranks_on_one_host_are_told_to_mpi_as_blocks() -> None:
    """MPICH's own reading of the description (src/pmi/src/pmi_util.c) is (host, hosts, ranks on each)."""
    assert process_mapping(["a"] * 4) == "(vector,(0,1,4))"
    assert process_mapping(["a", "a", "b", "b", "b"]) == "(vector,(0,1,2),(1,1,3))"
    assert process_mapping(["a", "b", "a"]) == "(vector,(0,1,1),(1,1,1),(0,1,1))"


def survivor(rank: int, port: int, ready: Any, answers: Any) -> None:
    """Train with two ranks of which the second is killed; send what the first has to say."""
    process_group.import_backend(MODULE)
    torch.set_num_threads(1)
    meeting = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": 2}
    ready.wait(PATIENCE_S)  # for the other's imports, which the short time-out would count
    dist.init_process_group("mpi4py", timeout=timedelta(seconds=4), **meeting)
    values = torch.ones(10)
    dist.all_reduce(values)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(values)
    except RuntimeError as error:
        answers.put(str(error))
        answers.close()
        answers.join_thread()
        os._exit(0)


def test_a_killed_rank_ends_a_collective_within_the_timeout() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(2), context.Queue()
    ranks = [context.Process(target=survivor, args=(rank, port, ready, answers)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    error = answers.get(timeout=PATIENCE_S)  # torch's own time-out is half an hour
    for rank in ranks:
        rank.join(PATIENCE_S)
    assert [rank.exitcode for rank in ranks] == [0, -signal.SIGKILL]
    assert "all_reduce" in error and "within 4 s" in error


MISSING = f"""
import os, sys
from mlbench.config.errors import UserError
from mlbench.launch.process_group import import_backend
def refused():
    try: import_backend({MODULE!r})
    except UserError as error: print(error)
sys.modules["mpi4py"] = None
refused()
del sys.modules["mpi4py"]
os.environ["MPI4PY_LIBMPI"] = "/nowhere/libmpi.so"
refused()
"""


def test_a_missing_library_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for line, cause in zip(done.stdout.splitlines(), ("mpi4py", "cannot load MPI library"), strict=True):
        assert line.startswith("backend=mpi needs mpi4py") and cause in line, line
        assert "mlbench-suite[mpi]" in line
