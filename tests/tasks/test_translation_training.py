"""Both translation tasks as they train: the same for any number of workers, precision, and the decoder."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import mini_worker, run_ranks

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.transformer.model import Transformer
from mlbench.tasks.translation import batches, data
from mlbench.tasks.translation import torch as translating
from mlbench.tasks.translation.subwords import BOS, EOS, PAD
from mlbench.training import loop
from mlbench.training.worker import Worker

UPDATES = 3
SMALL = {
    "gnmt": [
        "task.hidden=16",
        "task.layers=3",
        "task.global_batch_size=48",
        "task.chunks=4",
        "task.batch_size=12",
    ],
    "transformer": ["task.d_model=16", "task.ffn=16", "task.global_batch_size=2048", "task.chunks=4"],
}


def small(name: str, *overrides: str) -> Any:
    common = [
        "division=open",
        "goal=none",
        "task.dropout=0",
        "task.warmup_steps=1",
        "task.max_target_length=30",
    ]
    return compose([f"task={name}", *common, *SMALL[name], *overrides]).task


def trained(worker: Worker, name: str, root: Path) -> tuple[list[float], dict[str, float], float, int]:
    """Train a few updates and validate; return the weights, the metrics, the loss and the samples."""

    class Few:
        def __init__(self, updates: Any) -> None:
            self.steps = updates

        def __len__(self) -> int:
            return UPDATES

        def __iter__(self) -> Any:
            return (update for _, update in zip(range(UPDATES), self.steps, strict=False))

    setup = registry.build(small(name), mini_worker(worker, root))
    few = replace(
        setup, epochs=1, validate_at=(1.0,), steps=lambda text, epoch: Few(setup.steps(text, epoch))
    )
    outcome = loop.train(few, worker)
    weights = torch.cat([weight.detach().flatten() for weight in setup.model.parameters()])
    (validation,) = outcome.validations
    samples = sum(times.samples for times in outcome.phase_times)
    return weights.tolist(), validation["metrics"], validation["train_loss"], samples


def train_both(worker: Worker, root: Path) -> list[Any]:
    return [trained(worker, name, root) for name in SMALL]


@pytest.fixture(scope="module")
def alone(data_root: Path) -> list[Any]:
    return run_ranks(train_both, 1, data_root)[0]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_makes_the_same_updates_and_bleu(workers, alone, data_root):
    """Two workers take two of four micro-batches each; three share every one of them, row by row."""
    ranks = run_ranks(train_both, workers, data_root)
    for task, (expected, expected_metrics, expected_loss, expected_samples) in enumerate(alone):
        assert sum(rank[task][3] for rank in ranks) == expected_samples
        for weights, metrics, loss, _ in (rank[task] for rank in ranks):
            assert weights == pytest.approx(expected, abs=1e-4)  # Adam divides tiny gradients by tiny roots
            assert loss == pytest.approx(expected_loss, rel=1e-4)
            assert metrics == pytest.approx(expected_metrics, rel=1e-6)


def batch(*, sentences=4, source=7, target=6):
    generator = torch.Generator().manual_seed(3)
    said = torch.randint(4, 40, (sentences, target + 1), generator=generator)
    said[:, 0], said[:, -1] = BOS, EOS
    said[-1, 3:] = torch.tensor([EOS] + [PAD] * (target - 3))
    return batches.MicroBatch(
        source=torch.randint(4, 40, (sentences, source), generator=generator),
        source_lengths=torch.tensor([7, 7, 5, 2]),
        target=said,
        source_tokens=21,
        target_tokens=21,
        step_sentences=16,
        step_target_tokens=90,
    )


@pytest.mark.parametrize(("name", "kind"), [("gnmt", "sentences"), ("transformer", "tokens")])
def test_a_cpu_cuts_micro_batches_smaller_but_not_updates(name, kind):
    config: Any = compose([f"task={name}", "scale=official"]).task
    gpu, cpu = (translating.batch_budget(config, torch.device(kind)) for kind in ("cuda", "cpu"))
    assert (gpu.kind, gpu.global_batch, gpu.chunks) == (cpu.kind, cpu.global_batch, cpu.chunks)
    assert (gpu.kind, gpu.chunks, gpu.global_batch / gpu.chunks) == (kind, 16, gpu.micro_batch)
    assert cpu.micro_batch == {"gnmt": 128, "transformer": 2048}[name]


@pytest.mark.parametrize(("name", "divisor"), [("gnmt", 16), ("transformer", 90)])
def test_the_loss_is_a_share_of_the_updates_mean(name, divisor):
    """Over sentences for GNMT, over target tokens for the Transformer, of all workers together."""
    config, some = small(name), batch()
    logits = torch.randn(4, 6, 40)
    total = sum(
        F.cross_entropy(logits[row, position], some.target[row, position + 1], label_smoothing=0.1).item()
        for row in range(4)
        for position in range(6 if row < 3 else 3)
    )
    loss = translating.update_loss(logits, some, config=config, workers=2)
    assert loss.item() == pytest.approx(2 * total / divisor, rel=1e-5)


@pytest.mark.parametrize(("name", "workers", "first"), [("gnmt", 4, 2.0**10), ("transformer", 4, 2.0**22)])
def test_half_precision_sees_the_originals_numbers(monkeypatch, name, workers, first):
    """The Transformer's scale of 2^7 was for a sum over tokens; ours is divided by 2^17 / 4 of them."""
    made = []
    monkeypatch.setattr(translating.precision, "LossScaler", lambda device, **rules: made.append(rules))
    worker: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), world_size=workers)
    config: Any = compose([f"task={name}", "scale=official", "backend=nccl"]).task
    assert translating.mixed_precision(config, worker).autocast == torch.float16
    assert made[0]["first"] == first
    assert (made[0]["window"], made[0]["largest"]) == {"gnmt": (128, 2**13), "transformer": (2000, None)}[
        name
    ]


def network(name: str) -> Any:
    torch.manual_seed(2)
    if name == "gnmt":
        return Gnmt(40, hidden=16, layers=3, dropout=0.0)
    return Transformer(40, d_model=16, ffn=16, heads=4, layers=2, dropout=0.0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gnmt", torch.bfloat16), ("transformer", torch.bfloat16), ("transformer", torch.float16)],
)
def test_autocast_computes_what_full_precision_does(name, dtype):
    """On a CPU, which has the casts of a GPU if not its kernels, and no LSTM in fp16."""
    net, some, config = network(name), batch(), small(name)

    def gradient() -> tuple[float, torch.Tensor]:
        net.zero_grad()
        logits = net(some.source, some.source_lengths, some.target_in)
        loss = translating.update_loss(logits, some, config=config, workers=1)
        loss.backward()
        return loss.item(), torch.cat([weight.grad.flatten() for weight in net.parameters()])

    exact = gradient()
    with torch.autocast("cpu", dtype=dtype):
        half = gradient()
    assert half[0] == pytest.approx(exact[0], rel=0.01)
    assert F.cosine_similarity(half[1], exact[1], dim=0) > 0.99


@pytest.mark.slow
def test_gnmts_gradient_is_clipped_before_the_step_and_the_transformers_is_not(monkeypatch, data_root):
    """Adam hides a gradient's length, so what it is given is looked at."""
    norms: list[float] = []
    for name in SMALL:
        setup = registry.build(small(name), mini_worker(Worker(), data_root))
        batch = next(iter(setup.steps(setup.load(), 0)))[0]
        (1e3 * setup.loss(setup.forward(setup.model, batch), batch)).backward()
        gradients = [weight.grad for weight in setup.model.parameters() if weight.grad is not None]
        monkeypatch.setattr(
            setup.optimizer,
            "step",
            lambda given=gradients: norms.append(torch.cat([g.flatten() for g in given]).norm().item()),
        )
        if setup.optimizer_step is not None:  # the Transformer leaves the step to the loop
            setup.optimizer_step()
    assert norms == [pytest.approx(5.0, rel=1e-4)]


def test_a_translation_is_bounded_as_the_recipe_says(monkeypatch):
    """At most 79 sub-words and 50 more than the source with its end mark (fairseq's rule)."""
    seen = []
    monkeypatch.setattr(
        translating.beam, "translate", lambda *_, limits, search: seen.append((limits, search))
    )
    batch = batches.TestBatch([0, 1], torch.zeros(2, 40, dtype=torch.int64), torch.tensor([40, 12]))
    for name in SMALL:
        config: Any = compose([f"task={name}", "scale=official"]).task
        translating.search(network(name), batch, config=config)
    (gnmt, _), (transformer, _) = seen
    assert gnmt.tolist() == [149, 149] and transformer.tolist() == [79, 62]


@torch.no_grad()
def test_a_model_that_repeats_the_reference_has_a_perfect_score(monkeypatch, data_root):
    """A decoder fed with the answers: sub-words, marks, order of the test set and sharing out are right."""
    config = small("gnmt")
    test = data.open_dataset(data.prepare_dataset(config, data_root)).load_test()
    _, answers = batches.columns(test.pairs, torch.device("cpu"))

    def answer(model: Any, batch: batches.TestBatch, *, config: Any) -> torch.Tensor:
        return answers.gather(np.array(batch.rows), 100)

    monkeypatch.setattr(translating, "search", answer)
    model: Any = None  # nobody asks it
    score = translating.quality(model, test, config=config, worker=Worker())
    assert score.score == score.tokenised == pytest.approx(100.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_a_gpu_learns(name, precision, data_root):
    worker = mini_worker(Worker(device=torch.device("cuda")), data_root)
    overrides = [
        f"task={name}",
        "division=open",
        f"task.precision={precision}",
        "task.epochs=3",
        "backend=nccl",
    ]
    config = compose(overrides).task
    outcome = loop.train(registry.build(config, worker), worker)
    losses = [validation["train_loss"] for validation in outcome.validations]
    assert losses[-1] < 0.6 * losses[0]
    assert ("skipped_steps" in outcome.validations[-1]["metrics"]) == (precision == "fp16")
