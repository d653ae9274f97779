"""The same updates whatever the number of workers: complete, disjoint, little padding."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from mlbench.tasks.translation import batches, data
from mlbench.tasks.translation.batches import BatchBudget, BucketedSteps, MicroBatch
from mlbench.tasks.translation.subwords import BOS, EOS, PAD
from mlbench.training.worker import Worker

GNMT = BatchBudget("sentences", 2048, 128, 16)  # as in conf/task
TRANSFORMER = BatchBudget("tokens", 2**17, 8192, 16)
SMALL = [
    BatchBudget("sentences", 96, 24, 4),
    BatchBudget("sentences", 96, 96, 1),
    BatchBudget("tokens", 4096, 1024, 4),
    BatchBudget("tokens", 4096, 4096, 1),
]
WORKERS = [1, 3, 4, 8]


def made(source: np.ndarray, target: np.ndarray) -> data.Pairs:
    """Pairs of the given lengths; the first sub-word of sentence i is 10 + i, the others tell the side."""
    columns: list[np.ndarray] = []
    for lengths, filler in ((source, 5), (target, 6)):
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        values = np.full(offsets[-1], filler, np.int32)
        started = lengths > 0
        values[offsets[:-1][started]] = 10 + np.flatnonzero(started)
        columns += [values, offsets]
    return data.Pairs(*columns)


def like_wmt(count: int) -> data.Pairs:
    """Lengths spread as those of sub-words of WMT's English and German: mean 29, few beyond 80."""
    random = np.random.default_rng(17)
    source = np.maximum(1, random.gamma(2.6, 11, count)).astype(np.int64)
    ratio = np.exp(random.normal(0.03, 0.22, count))
    return made(source, np.maximum(1, source * ratio + random.normal(0, 1.5, count)).astype(np.int64))


PAIRS = like_wmt(1500)


def updates(budget: BatchBudget, rank: int, workers: int, *, epoch: int = 0) -> list[list[MicroBatch]]:
    worker = Worker(rank=rank, world_size=workers, seed=5)
    return list(BucketedSteps(PAIRS, budget, max_length=75, worker=worker)(epoch))


def rows(batch: MicroBatch) -> list[int]:
    """Return which sentences a micro-batch holds; both sides must say the same."""
    assert torch.equal(batch.source[:, 0], batch.target[:, 1])
    return (batch.source[:, 0] - 10).tolist()


def eligible_rows() -> set[int]:
    lengths = np.stack([np.diff(PAIRS.source_offsets), np.diff(PAIRS.target_offsets)])
    return set(np.flatnonzero(lengths.max(0) <= 75).tolist())


@pytest.mark.parametrize("budget", SMALL)
def test_every_sentence_comes_once_an_epoch_but_for_a_rest(budget: BatchBudget) -> None:
    plan = BucketedSteps(PAIRS, budget, max_length=75, worker=Worker(seed=5))
    seen, rests = Counter(), []
    for epoch in range(6):
        counts = Counter(row for update in plan(epoch) for batch in update for row in rows(batch))
        assert set(counts.values()) == {1} and set(counts) <= eligible_rows()
        rests.append(eligible_rows() - set(counts))
        seen += counts
    update = (
        budget.global_batch if budget.kind == "sentences" else int(plan.sentences.max()) * budget.chunks + 8
    )
    assert max(map(len, rests)) < update
    # The rest is another one each epoch.
    absent = len(eligible_rows() - set(seen))
    assert absent == 0 if budget.kind == "sentences" else absent < 8
    assert [len(plan)] * 6 == [len(list(plan(epoch))) for epoch in range(6)]


@pytest.mark.parametrize("budget", SMALL)
@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_share_the_updates_of_one_worker(budget: BatchBudget, workers: int) -> None:
    alone = updates(budget, 0, 1)
    ranks = [updates(budget, rank, workers) for rank in range(workers)]
    for number, whole in enumerate(alone):
        parts = [ranks[rank][number] for rank in range(workers)]
        assert len({len(part) for part in parts}) == 1
        together = [row for part in parts for batch in part for row in rows(batch)]
        assert len(together) == len(set(together))
        assert set(together) == {row for batch in whole for row in rows(batch)}
        batched = [batch for part in parts for batch in part]
        assert {batch.step_sentences for batch in batched} == {len(together)}
        assert {batch.step_target_tokens for batch in batched} == {
            sum(batch.target_tokens for batch in batched)
        }
    assert {len(rank) for rank in ranks} == {len(alone)}


@pytest.mark.parametrize(("kind", "update", "chunks"), [("sentences", 96, 2), ("tokens", 4096, 2)])
def test_an_update_does_not_depend_on_the_micro_batch(kind: Any, update: int, chunks: int) -> None:
    results = []
    for micro_batch in (update, update // 4, update // 16):
        steps = updates(BatchBudget(kind, update, micro_batch, chunks), 0, 1)
        results.append([{row for batch in step for row in rows(batch)} for step in steps])
        assert all(cost(batch, kind) <= micro_batch for step in steps for batch in step)
    assert results[0] == results[1] == results[2] and len(steps[0]) >= 16


def cost(batch: MicroBatch, kind: str) -> int:
    sides = max(batch.source.shape[1], batch.target_out.shape[1])
    return len(batch.source) * (sides if kind == "tokens" else 1)


def test_epochs_are_shuffled_and_seeds_differ() -> None:
    budget = SMALL[0]
    first, second = (updates(budget, 0, 1, epoch=epoch) for epoch in (0, 1))
    assert [rows(update[0]) for update in first] != [rows(update[0]) for update in second]
    again = updates(budget, 0, 1)
    assert [rows(update[0]) for update in first] == [rows(update[0]) for update in again]
    other = BucketedSteps(PAIRS, budget, max_length=75, worker=Worker(seed=6))(0)
    assert [rows(update[0]) for update in first] != [rows(update[0]) for update in other]
    lengths = [batch.source.shape[1] for update in first for batch in update]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)


@pytest.mark.parametrize(("budget", "longest"), [(GNMT, 75), (TRANSFORMER, 80)])
def test_padding_is_little_at_official_scale(budget: BatchBudget, longest: int) -> None:
    """At 2 % of WMT's size; more text leaves less padding."""
    plan = BucketedSteps(like_wmt(90_000), budget, max_length=longest, worker=Worker(seed=1))
    assert plan.padding < 0.06  # the suite asks for 0.10
    positions = tokens = 0
    for number, update in enumerate(plan(0)):
        if number == 30:
            break
        for batch in update:
            positions += batch.source.numel() + batch.target_out.numel()
            tokens += int((batch.source != PAD).sum() + (batch.target_out != PAD).sum())
            assert tokens and batch.source_tokens == int((batch.source != PAD).sum())
    assert 1 - tokens / positions == pytest.approx(plan.padding, abs=0.01)


@pytest.mark.parametrize("budget", [GNMT, TRANSFORMER])
def test_the_official_updates_are_shared_by_up_to_32_workers(budget: BatchBudget) -> None:
    pairs = like_wmt(60_000)
    for workers, micro_batches in ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1), (32, 1)):
        plan = BucketedSteps(
            pairs, budget, max_length=75, worker=Worker(rank=workers - 1, world_size=workers)
        )
        update = next(iter(plan(0)))
        assert len(update) == micro_batches
        assert all(cost(batch, budget.kind) <= budget.micro_batch for batch in update)


def test_a_micro_batch_says_what_the_decoder_reads_and_what_it_is_to_say() -> None:
    pairs = made(np.array([3, 2] * 4), np.array([1, 4] * 4))
    plan = BucketedSteps(pairs, BatchBudget("sentences", 8, 8, 1), max_length=9, worker=Worker())
    ((batch,),) = plan(0)
    assert batch.source_lengths.tolist() == [4] * 4 + [3] * 4  # the longest first, as packing wants it
    assert batch.source_tokens == 28 and batch.target_tokens == 4 * 2 + 4 * 5
    first, last = rows(batch)[0], rows(batch)[-1]
    assert batch.source[0].tolist() == [10 + first, 5, 5, EOS]
    assert batch.source[-1].tolist() == [10 + last, 5, EOS, PAD]
    assert batch.target_in[0].tolist() == [BOS, 10 + first, EOS, PAD, PAD]
    assert batch.target_out[0].tolist() == [10 + first, EOS, PAD, PAD, PAD]
    assert batch.target_in[-1].tolist() == [BOS, 10 + last, 6, 6, 6]
    assert batch.target_out[-1].tolist() == [10 + last, 6, 6, 6, EOS]
    assert batch.source.dtype == batch.target.dtype == torch.int64


def test_empty_and_overlong_sentences_are_left_out() -> None:
    pairs = made(np.array([0, 1, 9, 10, 3, 9]), np.array([1, 0, 9, 3, 10, 1]))
    ((batch,),) = BucketedSteps(pairs, BatchBudget("sentences", 2, 2, 1), max_length=9, worker=Worker())(0)
    assert sorted(rows(batch)) == [2, 5]


# Test sentences


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_test_sentence_is_translated_once_the_longest_first(workers: int) -> None:
    pairs, seen = like_wmt(100), []
    for rank in range(workers):
        worker = Worker(rank=rank, world_size=workers)
        test_batches = list(batches.test_batches(pairs, sentences=16, max_length=150, worker=worker))
        lengths = [length for batch in test_batches for length in batch.source_lengths.tolist()]
        assert lengths == sorted(lengths, reverse=True)
        for batch in test_batches:
            assert len(batch.source) == len(batch.rows) <= 16
            assert (batch.source[:, 0] - 10).tolist() == batch.rows
            assert ((batch.source != PAD).sum(1) == batch.source_lengths).all()
            assert (batch.source == EOS).sum(1).tolist() == [1] * len(batch.rows)
        seen += [row for batch in test_batches for row in batch.rows]
    assert sorted(seen) == list(range(100))


def test_long_and_empty_test_sentences_stay_in() -> None:
    pairs = made(np.array([9, 0, 4]), np.array([1, 1, 1]))
    (batch,) = batches.test_batches(pairs, sentences=16, max_length=5, worker=Worker())
    assert batch.rows == [0, 2, 1]
    assert batch.source.tolist() == [
        [10, 5, 5, 5, 5, EOS],
        [12, 5, 5, 5, EOS, PAD],
        [EOS, PAD, PAD, PAD, PAD, PAD],
    ]


@pytest.mark.gpu
def test_batches_are_made_on_the_gpu() -> None:
    worker = Worker(device=torch.device("cuda"), seed=5)
    for budget in SMALL:
        plan = BucketedSteps(PAIRS, budget, max_length=75, worker=worker)
        micro_batches = [batch for update in plan(0) for batch in update]
        assert all(batch.source.is_cuda and batch.target.is_cuda for batch in micro_batches)
        assert all(not batch.source_lengths.is_cuda for batch in micro_batches)
        counts = Counter(row for batch in micro_batches for row in rows(batch))
        assert set(counts.values()) == {1} and set(counts) <= eligible_rows()
    (batch, *_) = batches.test_batches(PAIRS, sentences=16, max_length=150, worker=worker)
    assert batch.source.is_cuda
