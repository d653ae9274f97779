"""Both translation tasks as they train: the same for any number of workers, precision, and the decoder."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import mini_worker

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.transformer.model import Transformer
from mlbench.tasks.translation import batches, data
from mlbench.tasks.translation import torch as translating
from mlbench.tasks.translation.subwords import BOS, EOS, PAD
from mlbench.training import loop
from mlbench.training.worker import Worker

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
