"""Every sync strategy beside a restatement in NumPy, over several steps, with real gloo processes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import restatements as numpy_of
import torch
import torch.distributed as dist
from ranks import RankPool
from torch import nn
from torch.distributed.tensor import DTensor

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract import test_sync as contract
from mlbench.training.precision import LossScaler, fill_momentum
from mlbench.training.sync import codecs, strategy
from mlbench.training.sync.ddp import torch as ddp_sync
from mlbench.training.sync.decentralised import graphs
from mlbench.training.worker import Worker

STEPS = 7
SEED = 11


def test_ddp_has_the_gpu_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of the user's, with `mlbench.synchronise`, may choose no device for its process."""
    monkeypatch.setattr(ddp_sync, "DistributedDataParallel", lambda model, **options: options)
    weight = SimpleNamespace(is_cuda=True, device=torch.device("cuda:1"))
    model: Any = SimpleNamespace(parameters=lambda: iter([weight]))
    options: Any = ddp_sync.wrap(model, 25.0)
    assert options["device_ids"] == [weight.device]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


class Pull(nn.Module):
    """Weights whose gradient is themselves less a target."""

    def __init__(self) -> None:
        super().__init__()
        first = torch.from_numpy(numpy_of.start())
        parts = first.split([int(np.prod(shape)) for shape in numpy_of.SHAPES])
        self.weights = nn.ParameterList(
            [part.clone().view(shape) for part, shape in zip(parts, numpy_of.SHAPES, strict=True)]
        )

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return (self.flat() - target).square().sum() / 2

    def flat(self) -> torch.Tensor:
        return torch.cat([weight.flatten() for weight in self.weights])

    def whole(self) -> np.ndarray:
        """Return all weights, also where each worker holds a part of them."""
        parts = [w.full_tensor() if isinstance(w, DTensor) else w for w in self.weights]
        return torch.cat([part.detach().flatten() for part in parts]).numpy()


def configured(worker: Worker, overrides: tuple[str, ...]) -> Worker:
    workers = f"workers={worker.world_size}"
    return replace(worker, sync=compose([*overrides, "division=open", workers]).sync, seed=SEED)


def train(
    worker: Worker, overrides: tuple[str, ...], *, steps: int = STEPS
) -> tuple[Pull, strategy.BareModel]:
    model = Pull()
    optimizer = torch.optim.SGD(model.parameters(), lr=numpy_of.LR, momentum=numpy_of.MOMENTUM)
    sync = strategy.synchronise(model, optimizer, configured(worker, overrides))
    pulls = torch.from_numpy(numpy_of.targets(worker.world_size, steps)[worker.rank])
    for step, target in enumerate(pulls):
        with sync.accumulating():  # two micro-batches, of which the first weighs 0.3
            (0.3 * sync.module(target)).backward()
        (0.7 * sync.module(target)).backward()
        optimizer.step()
        optimizer.zero_grad()
        sync.after_step(step)
    return model, sync


def weights(worker: Worker, commands: list[tuple[str, ...]]) -> list[tuple[np.ndarray, int]]:
    """Return this rank's weights after the steps and the bytes it sent, of every strategy."""
    results = []
    for overrides in commands:
        model, sync = train(worker, overrides)
        results.append((model.whole(), sync.bytes_sent(STEPS)))
    return results


def drawn(shape: Any, *numbers: int, of: Callable[..., torch.Tensor]) -> np.ndarray:
    """Return what a strategy draws at a place."""
    return of(shape, generator=Worker(seed=SEED).generator(*numbers)).numpy()


def uniform(shape: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def in_bucket(vector: np.ndarray, step: int, *, back: bool = False) -> np.ndarray:
    """Return the coordinates as DDP's bucket has them, the last weight first but in the first step."""
    offset = 5 if back else numpy_of.SIZE - 5
    return vector if step == 0 else np.concatenate([vector[offset:], vector[:offset]])


def contracted_qsgd(vector: np.ndarray, step: int, rank: int) -> np.ndarray:
    blocks = drawn((-(-numpy_of.SIZE // 16), 16), rank, step, of=uniform)
    return numpy_of.qsgd(vector, blocks.ravel(), levels=4, block=16) / (1 + min(16 / 4**2, np.sqrt(16) / 4))


def qsgd(vector: np.ndarray, step: int, rank: int) -> np.ndarray:
    blocks = drawn((-(-numpy_of.SIZE // 16), 16), rank, step, 0, of=uniform)
    result = numpy_of.qsgd(in_bucket(vector, step), blocks.ravel(), levels=7, block=16)
    return in_bucket(result, step, back=True)


def random_coordinates(factor: float) -> Callable[[np.ndarray, int, int], np.ndarray]:
    count = codecs.coordinate_count(numpy_of.SIZE, 0.2)

    def compress(vector: np.ndarray, step: int, _: int) -> np.ndarray:
        numbers = drawn(numpy_of.SIZE, step, 0, of=torch.randperm)[:count]
        result = numpy_of.chosen(in_bucket(vector, step), numbers, factor)
        return in_bucket(result, step, back=True)

    return compress


def top(vector: np.ndarray, *_: int) -> np.ndarray:
    return numpy_of.top(vector, codecs.coordinate_count(numpy_of.SIZE, 0.1))


def sign(vector: np.ndarray, *_: int) -> np.ndarray:
    return numpy_of.sign(vector)


def half(vector: np.ndarray, *_: int) -> np.ndarray:
    return vector.astype(np.float16).astype(np.float64)


def first_right(rank: int) -> np.ndarray:
    generator = Worker(seed=SEED).generator(0)
    return torch.randn(numpy_of.SHAPES[0][1], rank, generator=generator, dtype=torch.float64).numpy()


COUNT = codecs.coordinate_count(numpy_of.SIZE, 0.2)
FULL = numpy_of.SIZE * 8  # bytes of all gradients, float64


def ring(size: int, k: int) -> int:
    return 2 * (k - 1) * size // k


# Words, what NumPy does, and what a rank sends a step with k workers.
Case = tuple[tuple[str, ...], Callable[[int], np.ndarray], Callable[[int], float]]
CASES: list[Case] = []


def case(
    *overrides: str,
    sent: Callable[[int], float],
    combine: Callable[[], Callable] | None = None,
    after: Callable[[int], Callable] | None = None,
) -> None:
    def expected(workers: int) -> np.ndarray:
        changes: dict[str, Any] = {"combine": combine()} if combine else {}
        changes |= {"after": after(workers)} if after else {}
        return numpy_of.train(workers, STEPS, **changes)

    CASES.append((overrides, expected, sent))


def averaged() -> Callable:
    return numpy_of.mean


case("sync=ddp", combine=averaged, sent=lambda k: ring(FULL, k))
# Ranks 0 and 1 step the matrix and the vector and send them to the others; counted is the mean rank's.
case("sync=zero1", combine=averaged, sent=lambda k: ring(FULL, k) + (k - 1) * FULL / k)
# Padded to as many rows on every rank; gathered once a step, also for two micro-batches, and reduced, which
# gloo does at twice the bytes of a gather.
case("sync=fsdp", combine=averaged, sent=lambda k: 3 * (k - 1) * 8 * (96 // k + -(-5 // k)))
# Gathered for two forwards and the last backward.
overrides = ("sync=fsdp", "sync.reshard_after_forward=true")
case(*overrides, combine=averaged, sent=lambda k: 5 * (k - 1) * 8 * (96 // k + -(-5 // k)))
case("sync=all_reduce", combine=averaged, sent=lambda k: ring(FULL, k))
layers = ("sync=all_reduce", "sync.message=layer")
case(*layers, combine=averaged, sent=lambda k: ring(96 * 8, k) + ring(5 * 8, k))
case(
    "sync=all_reduce",
    "sync.quantity=weights",
    after=lambda _: numpy_of.mean,
    sent=lambda k: ring(FULL, k),
)
for memory in ("none", "error_feedback", "ef21"):
    overrides = ("sync=compression", f"sync.memory={memory}")
    case(
        *overrides,
        "sync.method=topk",
        "sync.density=0.1",
        combine=lambda memory=memory: numpy_of.compressed(top, memory),
        sent=lambda k: (k - 1) * (8 + 4) * codecs.coordinate_count(numpy_of.SIZE, 0.1),
    )
    factor = numpy_of.SIZE / COUNT if memory == "none" else 1.0
    case(
        *overrides,
        "sync.method=randomk",
        "sync.density=0.2",
        combine=lambda memory=memory, factor=factor: numpy_of.compressed(random_coordinates(factor), memory),
        sent=lambda k: ring(8 * COUNT, k),
    )
    case(
        *overrides,
        "sync.method=sign",
        combine=lambda memory=memory: numpy_of.compressed(sign, memory),
        sent=lambda k: (k - 1) * (-(-numpy_of.SIZE // 8) + 8),
    )
case(
    "sync=compression",
    "sync.method=qsgd",
    "sync.levels=7",
    "sync.block=16",
    combine=lambda: numpy_of.compressed(qsgd, "none"),
    sent=lambda k: (k - 1) * (-(-numpy_of.SIZE // 16) * (8 + 8)),  # 16 coordinates of 4 bits, and a norm
)
for feedback in ("error_feedback", "none"):
    case(
        "sync=compression",
        "sync.method=powersgd",
        "sync.rank=2",
        f"sync.memory={feedback}",
        combine=lambda feedback=feedback: numpy_of.powersgd(
            first_right(2), 2, feedback=feedback == "error_feedback"
        ),
        sent=lambda k: ring(8 * (12 * 2 + 5), k) + ring(8 * 8 * 2, k),
    )


def local(*overrides: str, sent: Callable[[int], float], **settings: Any) -> None:
    def expected(workers: int) -> np.ndarray:
        values = {"start_step": 0, "lr": 1.0, "momentum": 0.0, "nesterov": False} | settings
        combine, after = numpy_of.outer(**values)
        return numpy_of.train(workers, STEPS, combine=combine, after=after)

    CASES.append((("sync=local_sgd", *overrides), expected, sent))


local("sync.every=1", every=1, sent=lambda k: ring(FULL, k))
local("sync.every=3", every=3, sent=lambda k: 2 * ring(FULL, k) / STEPS)
overrides = ("sync.every=2", "sync.start_step=2")  # averages in steps 0 and 1, and after 3 and 5
local(*overrides, every=2, start_step=2, sent=lambda k: 4 * ring(FULL, k) / STEPS)
for nesterov in (False, True):
    overrides = ("sync.outer_lr=0.7", "sync.outer_momentum=0.9", f"sync.nesterov={nesterov}", "sync.every=2")
    changes = {"every": 2, "lr": 0.7, "momentum": 0.9, "nesterov": nesterov}
    local(*overrides, sent=lambda k: 3 * ring(FULL, k) / STEPS, **changes)
local(
    *overrides,
    "sync.start_step=3",
    start_step=3,
    sent=lambda k: 5 * ring(FULL, k) / STEPS,
    **changes,
)
for graph in numpy_of.SENDERS:
    for lr in (1.0, 0.5):
        CASES.append(
            (
                ("sync=decentralised", f"sync.graph={graph}", f"sync.consensus_lr={lr}"),
                lambda k, graph=graph, lr=lr: numpy_of.train(k, STEPS, after=numpy_of.gossip(graph, k, lr)),
                lambda k, graph=graph: FULL * len(numpy_of.SENDERS[graph][k][0][0]),
            )
        )
    if graph != "one_peer_exponential":
        overrides = ("sync=decentralised", f"sync.graph={graph}", "sync.consensus_lr=0.3", "sync.density=0.1")
        CASES.append(
            (
                (*overrides, "sync.compression=topk"),
                lambda k, graph=graph: numpy_of.train(k, STEPS, after=numpy_of.choco(graph, k, 0.3, top)),
                lambda k, graph=graph: (
                    len(numpy_of.SENDERS[graph][k][0][0])
                    * (8 + 4)
                    * codecs.coordinate_count(numpy_of.SIZE, 0.1)
                ),
            )
        )


overrides = ("sync=decentralised", "sync.consensus_lr=0.3", "sync.levels=4", "sync.block=16")
CASES.append(
    (
        (*overrides, "sync.compression=qsgd"),
        lambda k: numpy_of.train(k, STEPS, after=numpy_of.choco("ring", k, 0.3, contracted_qsgd)),
        lambda k: min(k - 1, 2) * -(-numpy_of.SIZE // 16) * (8 + 8),
    )
)


@pytest.mark.slow
def test_strategies_do_what_numpy_does(pool: RankPool) -> None:
    """Weights of every rank after seven steps, in float64, and what it sent."""
    ranks = pool.run(weights, [overrides for overrides, _, _ in CASES])
    for number, (overrides, expected, sent) in enumerate(CASES):
        result = np.stack([rank[number][0] for rank in ranks])
        np.testing.assert_allclose(
            result, expected(pool.workers), rtol=1e-10, atol=1e-10, err_msg=str(overrides)
        )
        total = sum(rank[number][1] for rank in ranks)
        assert total == round(pool.workers * STEPS * sent(pool.workers)), overrides


@pytest.mark.parametrize(("method", "bits"), [("fp16", 10), ("bf16", 7)])
def test_half_precision_is_the_mean_to_its_mantissa_at_half_the_bytes(
    pool: RankPool, method: str, bits: int
) -> None:
    ranks = pool.run(weights, [("sync=compression", f"sync.method={method}")])
    expected = numpy_of.train(pool.workers, STEPS, combine=numpy_of.mean)
    for ((result, sent),) in ranks:
        # Sums of a few numbers of magnitude 4, rounded each time; momentum adds up to ten steps of them.
        np.testing.assert_allclose(result, expected[0], atol=4 * 2.0**-bits)
        assert np.abs(result - expected[0]).max() > 2.0 ** -(bits + 8)  # it was rounded
        assert sent == STEPS * ring(numpy_of.SIZE * 2, pool.workers)


def same_mathematics(worker: Worker, commands: list[tuple[str, ...]]) -> list[list[np.ndarray]]:
    """Return the weights of a small network in float32 after three clipped steps, of every strategy."""
    results = []
    for overrides in commands:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
        sync = strategy.synchronise(model, optimizer, configured(worker, overrides))
        inputs = torch.Generator().manual_seed(worker.rank)
        for step in range(3):
            sync.module(torch.randn(8, 6, generator=inputs)).square().sum().backward()
            weights = (weight for group in optimizer.param_groups for weight in group["params"])
            torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            sync.after_step(step)
        if overrides != ("sync=ddp",):  # momentum of this rank's weights only
            local = [s["momentum_buffer"] for s in optimizer.state.values()]
            state = sum(t.to_local().numel() if isinstance(t, DTensor) else t.numel() for t in local)
            assert state < 0.8 * sum(weight.numel() for weight in model.parameters())
        sync.before_validation()
        results.append([weight.detach().clone().numpy() for weight in model.parameters()])
        sync.after_validation()
    return results


def test_zero1_is_ddp_bit_for_bit_and_fsdp_to_rounding_with_clipped_gradients(pool: RankPool) -> None:
    commands = [("sync=ddp",), ("sync=zero1",), ("sync=fsdp",), ("sync=fsdp", "sync.unit=child")]
    for ddp, zero1, *fsdp in pool.run(same_mathematics, commands):
        for expected, result in zip(ddp, zero1, strict=True):
            np.testing.assert_array_equal(result, expected)
        for each in fsdp:
            for expected, result in zip(ddp, each, strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def varied(worker: Worker, commands: list[tuple[str, ...]]) -> list[dict[str, torch.Tensor]]:
    return [contract.trained(worker, overrides) for overrides in commands]


def test_fsdp_shards_weights_of_every_kind_in_every_unit(pool: RankPool) -> None:
    """Also where children share a weight, so that neither can be a unit by itself."""
    child, reshard = "sync.unit=child", "sync.reshard_after_forward=true"
    commands = [("sync=fsdp", child), ("sync=fsdp", reshard), ("sync=fsdp", child, reshard)]
    for expected, *results in pool.run(varied, [(), *commands]):
        for each in results:
            assert each.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(each[key], value, rtol=1e-10, atol=1e-12)


VALIDATED = ((3, 3), (1, 2), (0, 1), (1, 1))  # batches after each step, of rank 0 and of the others


class Nested(nn.Module):
    """Layers alone, in a list and in a dictionary in it; two of them share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        inner = nn.ModuleDict({"inner": nn.Linear(6, 6)})
        self.layers = nn.ModuleList([nn.Linear(6, 6), inner, nn.Tanh(), nn.Linear(6, 6, bias=False)])
        self.tied = nn.Linear(6, 6)
        self.tied.register_parameter("weight", self.layers[3].get_parameter("weight"))
        self.scales = nn.ParameterList([torch.ones(6)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.tied(self.layers[3](self.layers[2](self.parts(inputs) * self.scales[0])))

    def parts(self, inputs: torch.Tensor) -> torch.Tensor:
        inner = self.layers.get_submodule("1.inner")
        return self.layers[0](inner(self.first(inputs)))


def unevenly_validated(worker: Worker, overrides: tuple[str, ...]) -> tuple[list[str], list[torch.Tensor]]:
    """Return the names of fsdp's units, and the weights after steps between validations."""
    torch.manual_seed(0)
    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync: Any = strategy.synchronise(model, optimizer, configured(worker, overrides))
    data = torch.Generator().manual_seed(worker.rank)
    before, own, weights = 0, [], []
    for step, batches in enumerate(VALIDATED):
        sync.module(torch.randn(8, 6, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sync.bytes_sent(step + 1) - before)
        assert own[-1] == own[0], "a step sends more after a validation"
        with torch.no_grad():
            sync.before_validation()
            before = sync.bytes_sent(step + 1)
            for _ in range(batches[worker.rank > 0]):
                model(torch.ones(1, 6))
                model.parts(torch.ones(1, 6))  # as a beam search calls them
                assert sync.bytes_sent(step + 1) == before, "a batch of a validation sends something"
            weights = [weight.clone() for weight in model.parameters()]
            sync.after_validation()
            before = sync.bytes_sent(step + 1)
    names = [name for name, module in model.named_modules() if module in getattr(sync, "units", ())]
    return names, weights


def test_fsdp_gathers_once_a_validation_however_many_batches_a_worker_has(pool: RankPool) -> None:
    expected = [weights for _, weights in pool.run(unevenly_validated, ("sync=all_reduce",))]
    units = {"model": [""], "child": ["", "first", "layers.0", "layers.1.inner"]}
    for unit, own in units.items():
        for reshard in ("false", "true"):
            overrides = ("sync=fsdp", f"sync.unit={unit}", f"sync.reshard_after_forward={reshard}")
            for (names, weights), plain in zip(
                pool.run(unevenly_validated, overrides), expected, strict=True
            ):
                assert names == own
                torch.testing.assert_close(weights, plain, rtol=1e-5, atol=1e-6)


def overflowed(worker: Worker, commands: list[tuple[str, ...]]) -> list[tuple[list[torch.Tensor], int]]:
    """Return what a validation sees after three steps under a loss scale, and how many steps were skipped.

    The second step's gradient is infinite on rank 0 and finite on the others; without words, which is plain
    averaging without a scale, that step is left out.
    """
    results = []
    for overrides in commands:
        torch.manual_seed(0)
        model = nn.Linear(3, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        fill_momentum(optimizer)
        scaler = LossScaler(worker.device, first=2.0**10, window=1000, largest=None)
        sync: Any = contract.Averages(model, "gradients")
        if overrides:
            sync = strategy.synchronise(model, optimizer, configured(worker, overrides))
        drawn = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(worker.rank))
        for step, inputs in enumerate(drawn):
            loss = sync.module(inputs).square().mean()
            if not overrides:
                if step != 1:
                    loss.backward()
                    contract.average(weight.grad for weight in model.parameters() if weight.grad is not None)
                    optimizer.step()
            else:
                infinite = torch.inf if step == 1 and worker.rank == 0 else 1.0
                scaler.scale(loss * infinite).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            sync.after_step(step)
        with torch.no_grad():
            sync.before_validation()
        results.append(([weight.detach().clone() for weight in model.parameters()], scaler.skipped_steps()))
    return results


def test_an_overflow_on_one_worker_skips_the_step_of_all_that_share_gradients(pool: RankPool) -> None:
    """Scales are powers of two, so what is left are the roundings of sums over the workers."""
    shared = [("sync=ddp",), ("sync=zero1",), ("sync=fsdp",), ("sync=all_reduce",)]
    own = [
        ("sync=all_reduce", "sync.quantity=weights"),
        ("sync=local_sgd", "sync.every=2"),
        ("sync=decentralised",),
    ]
    for rank, ((expected, _), *results) in enumerate(pool.run(overflowed, [(), *shared, *own])):
        for overrides, (weights, skipped) in zip([*shared, *own], results, strict=True):
            assert all(weight.isfinite().all() for weight in weights), overrides
            if overrides in shared:
                assert skipped == 1, overrides
                torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
            else:
                assert skipped == (1 if rank == 0 else 0), overrides


@pytest.mark.parametrize(
    "overrides",
    [
        ["sync=decentralised", "sync.graph=torus", "workers=2"],
        ["task=allreduce", "sync=fsdp"],
        ["task=allreduce", "sync.bucket_cap_mb=5"],
        ["task=resnet50", "backend=nccl", "sync=compression"],
    ],
)
def test_what_a_strategy_cannot_combine_is_refused_when_the_run_is_composed(
    overrides: list[str], as_stored: Any
) -> None:
    with pytest.raises(UserError, check=as_stored):
        compose([*overrides, "division=open"])


def test_compression_without_memory_takes_a_loss_scale_where_it_shows_an_overflow(as_stored: Any) -> None:
    overrides = ["task=resnet50", "backend=nccl", "division=open", "sync=compression", "sync.memory=none"]
    for method in ("fp16", "bf16", "topk", "sign", "qsgd"):
        compose([*overrides, f"sync.method={method}"])
    for method in ("randomk", "sign_majority", "powersgd"):
        with pytest.raises(UserError, check=as_stored):
            compose([*overrides, f"sync.method={method}"])


def majority(worker: Worker, votes: np.ndarray) -> np.ndarray:
    """Return the gradient after a majority vote on this rank's signs."""
    weight = nn.Parameter(torch.zeros(votes.shape[1]))

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, direction: torch.Tensor) -> torch.Tensor:
            return self.weight @ direction

    model = Flat()
    overrides = ("sync=compression", "sync.method=sign_majority")
    sync = strategy.synchronise(model, torch.optim.SGD([weight], lr=0.1), configured(worker, overrides))
    sync.module(torch.from_numpy(votes[worker.rank])).backward()
    assert weight.grad is not None
    part = -(-votes.shape[1] // (8 * worker.world_size))  # bytes of the bits that a rank counts
    assert sync.bytes_sent(1) == 2 * (worker.world_size - 1) * part
    return weight.grad.numpy()


def test_the_majority_decides_and_coins_decide_ties_and_zeros(pool: RankPool) -> None:
    size = 1001
    votes = np.random.default_rng(1).normal(size=(pool.workers, size)).astype(np.float32)
    results = pool.run(majority, votes)
    total = np.sign(votes).sum(axis=0)
    for each in results:
        np.testing.assert_array_equal(each, results[0])
        np.testing.assert_array_equal(each[total != 0], np.sign(total[total != 0]))
    nobody = pool.run(majority, np.zeros_like(votes))
    for each in nobody:
        np.testing.assert_array_equal(each, nobody[0])
    for undecided in (results[0][total == 0], nobody[0]):
        assert set(undecided) == {-1.0, 1.0} and abs(undecided.mean()) < 5 / np.sqrt(len(undecided))


def averaged_gradients(worker: Worker, methods: list[str], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the mean gradient of a matrix of that type, by each method."""
    results = []
    for method in methods:
        model = nn.Linear(21, 15, bias=False).to(dtype)
        overrides = ("sync=compression", f"sync.method={method}", "sync.density=1")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sync = strategy.synchronise(model, optimizer, configured(worker, overrides))
        drawn = torch.randn(2, 21, generator=torch.Generator().manual_seed(worker.rank)).to(dtype)
        sync.module(drawn).sum().backward()  # all rows alike, so of rank 1
        results.append(cast(torch.Tensor, model.weight.grad).float())
    return results


def test_weights_may_be_bf16(pool: RankPool) -> None:
    methods = ["fp16", "bf16", "topk", "randomk", "qsgd", "powersgd"]
    halves, wholes = (
        pool.run(averaged_gradients, methods, dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    for half, whole in zip(halves, wholes, strict=True):
        for method, result, expected in zip(methods, half, whole, strict=True):
            assert (result - expected).norm() < 0.05 * expected.norm(), method


def validated(worker: Worker, commands: list[tuple[str, ...]]) -> list[tuple[np.ndarray, ...]]:
    """Return weights before, while and after a validation, of every strategy."""
    results = []
    for overrides in commands:
        model, sync = train(worker, overrides, steps=5)
        seen = [model.flat().detach().numpy().copy()]
        with torch.no_grad():
            for change in (sync.before_validation, sync.after_validation):
                change()
                seen.append(model.flat().numpy().copy())
        results.append(tuple(seen))
    return results


class Quorum:
    """What torchft's DiLoCo asks of its manager, with a gloo group that never changes."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.steps = 0

    def allreduce(self, tensor: torch.Tensor, *, should_quantize: bool) -> Any:
        return dist.all_reduce(tensor.div_(dist.get_world_size()), async_op=True)

    def should_commit(self) -> bool:
        self.steps += 1
        return True

    def current_step(self) -> int:
        return self.steps

    def start_quorum(self, *_: Any) -> None: ...
    def register_state_dict_fn(self, *_: Any) -> None: ...
    def allow_state_dict_read(self) -> None: ...
    def disallow_state_dict_read(self) -> None: ...


def both_diloco(worker: Worker) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights after six steps by ours and by torchft's."""
    from torchft.local_sgd import DiLoCo

    overrides = ("sync.outer_lr=0.7", "sync.outer_momentum=0.9", "sync.nesterov=true", "sync.every=2")
    ours, _ = train(worker, ("sync=local_sgd", *overrides), steps=6)
    model = Pull()
    inner = torch.optim.SGD(model.parameters(), lr=numpy_of.LR, momentum=numpy_of.MOMENTUM)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager: Any = Quorum()
    with DiLoCo(manager, [model], inner, outer, sync_every=2):
        for target in torch.from_numpy(numpy_of.targets(worker.world_size, 6)[worker.rank]):
            inner.zero_grad()
            model(target).backward()
            inner.step()
    return ours.whole(), model.whole()


def test_diloco_is_torchfts(pool: RankPool) -> None:
    for ours, torchfts in pool.run(both_diloco):
        np.testing.assert_allclose(ours, torchfts, rtol=1e-12)


@pytest.mark.parametrize("graph", ["ring", "torus", "exponential", "one_peer_exponential", "complete"])
@pytest.mark.parametrize("workers", [2, 3, 4, 6, 7, 8, 12, 16])
def test_every_graph_averages_without_a_drift(graph: str, workers: int) -> None:
    """Rows and columns sum to 1 as all have as many senders as receivers; all hear of all in the end."""
    if graph == "torus" and workers in (2, 3, 7):
        with pytest.raises(UserError, match=f"{workers} workers make no"):
            graphs.receivers(graph, 0, workers, 0)
        return
    reached = np.eye(workers, dtype=int)
    for step in range(2 * workers):
        sides = [
            (graphs.receivers(graph, r, workers, step), graphs.senders(graph, r, workers, step))
            for r in range(workers)
        ]
        assert len({len(side) for pair in sides for side in pair}) == 1
        heard = np.eye(workers, dtype=int)
        for rank, (_, senders) in enumerate(sides):
            assert rank not in senders and len(set(senders)) == len(senders)
            heard[rank, senders] = 1
        reached = np.minimum(heard @ reached, 1)
    assert reached.all()


@pytest.mark.parametrize("name", ["compression", "local_sgd", "decentralised", "zero1", "fsdp"])
def test_restarts_are_refused_where_workers_have_state_of_their_own(name: str) -> None:
    with pytest.raises(UserError, match=f"max_failures=1: sync={name} has"):
        compose([f"sync={name}", "division=open", "max_failures=1"])
    compose(["sync=all_reduce", "division=open", "max_failures=1"])
    with pytest.raises(UserError, match="no checkpoint holds"):
        compose(["sync=all_reduce", "sync.quantity=weights", "division=open", "max_failures=1"])


def test_the_closed_division_takes_what_computes_ddps_step() -> None:
    for name in ("zero1", "fsdp"):
        assert compose([f"sync={name}"]).deviations == ()
    for overrides in (["sync=all_reduce"], ["sync=local_sgd"], ["sync=fsdp", "sync.unit=child"]):
        with pytest.raises(UserError, match="rule R3"):
            compose(overrides)


def test_a_memory_that_a_method_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="method=qsgd .* ef21"):
        compose(["sync=compression", "sync.method=qsgd", "sync.memory=ef21", "division=open"])


@pytest.mark.parametrize("levels", [7, 8, 127])
def test_qsgd_is_right_on_average_and_never_off_by_a_level(levels: int) -> None:
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    codec = codecs.Qsgd(levels, 100, False, Worker(seed=1))
    total = torch.zeros(1000)
    for draw in range(400):
        message = codec.encode(vector, draw)
        once = torch.zeros(1000)
        message.add(message.payload, once)
        norms = vector.view(-1, 100).norm(dim=1).repeat_interleave(100)
        assert ((once - vector).abs() <= norms / levels * 1.0001).all()
        total += once
    assert len(message.payload) == (500 if levels <= 7 else 1000) + 4 * 10
    spread = vector.view(-1, 100).norm(dim=1).max() / levels / 2 / 20  # half a level over sqrt(400)
    assert (total / 400 - vector).abs().max() < 5 * spread


def test_qsgd_of_halves_draws_small_parts_of_a_level() -> None:
    """A part of 1/600 is a level once in 600 draws; a number of 8 bits is too coarse to draw that."""
    vector = torch.tensor([1.0, 1e-4], dtype=torch.bfloat16).repeat(100_000)
    message = codecs.Qsgd(16, 2, False, Worker(seed=1)).encode(vector, 0)
    levels = message.payload[: len(vector)].view(torch.int8)[1::2]
    expected = 16 * vector[1].item() * len(levels)
    assert abs(levels.sum().item() - expected) < 5 * expected**0.5


@pytest.mark.parametrize(("levels", "block"), [(1, 4), (4, 512), (15, 512), (127, 512)])
def test_qsgd_for_a_memory_is_a_contraction(levels: int, block: int) -> None:
    """The mean square of the error is 1 - 1 / tau of the vector's at most, for each vector and block."""
    tau = 1 + min(block / levels**2, block**0.5 / levels)
    vectors = torch.randn(50 * block, generator=torch.Generator().manual_seed(0))
    codec = codecs.of("qsgd", settings(levels=levels, block=block), Worker(seed=1), memory=True)
    errors = torch.stack([codec.encode(vectors, draw).subtracted(vectors).square() for draw in range(200)])
    blocks, sizes = errors.mean(0).view(-1, block).sum(1), vectors.square().view(-1, block).sum(1)
    assert (blocks.sum() <= (1 - 1 / tau) * sizes.sum()).item()
    assert (blocks <= (1 - 1 / tau) * sizes * 1.1).all()


def settings(**changes: Any) -> Any:
    return compose(["sync=decentralised", "division=open"]).sync.model_copy(update=changes)


def test_compression_needs_a_smaller_step_to_the_mean() -> None:
    """Where little is lost the plain mean is kept."""
    words = ["sync=decentralised", "division=open", "workers=4"]
    for overrides in (
        ["sync.compression=topk"],
        ["sync.compression=randomk", "sync.density=0.5"],
        ["sync.compression=sign"],
        ["sync.compression=qsgd", "sync.levels=15"],
    ):
        with pytest.raises(UserError, match=f"{overrides[0]} .*0.04 for topk"):
            compose([*words, *overrides])
        compose([*words, *overrides, "sync.consensus_lr=0.1"])
    compose([*words, "sync.compression=qsgd"])
    compose([*words, "sync.compression=topk", "sync.density=1"])
