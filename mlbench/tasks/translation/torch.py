"""Training of both translation models: the update's loss, Adam, mixed precision, and BLEU by beam search."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from mlbench.tasks.translation import beam, bleu, data, moses
from mlbench.tasks.translation.batches import BatchBudget, BucketedSteps, MicroBatch, TestBatch, test_batches
from mlbench.tasks.translation.config import TranslationConfig
from mlbench.tasks.translation.smoothing import smoothed_cross_entropy
from mlbench.tasks.translation.subwords import PAD
from mlbench.training import precision, schedules
from mlbench.training.copies import CopyStream
from mlbench.training.flops import training_flops
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

# The largest micro-batch of a worker without a GPU (2026-11-21). A Transformer-big needs 17.7 GB for one of
# 8,192 tokens and 6.3 GB for one of 2,048. Updates are the same, in more pieces.
CPU_MICRO_BATCH = {"sentences": 128, "tokens": 2048}
TEST_SENTENCES = 128  # translated at a time by one worker. Bounds memory, changes no result (2026-11-21)


class TranslationTensors(NamedTuple):
    """What the loop trains and validates on."""

    plan: BucketedSteps
    test: data.Test


def build_translator(
    config: TranslationConfig,
    worker: Worker,
    *,
    model: Callable[[int], nn.Module],
    factor: Callable[[int], schedules.Factor],
    counted: Callable[[int, int], int],
) -> TrainingSetup:
    """Return what the loop trains.

    model(vocabulary) makes the network, a `beam.Translator`. factor(steps) is the schedule of its lr over so
    many steps. counted(source, target) is how many of these tokens the task counts.
    """
    files = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        network = model(files.vocabulary).to(worker.device)
    # Dropout differs from rank to rank, but not from run to run.
    torch.manual_seed(worker.generator(0, 1 + worker.rank).initial_seed())
    optimizer = torch.optim.Adam(
        network.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
    mixed = mixed_precision(config, worker)
    clip = config.max_grad_norm
    # `load` counts the steps that the recipe needs.
    schedule = schedules.Schedule(optimizer, lambda step: 1.0)
    scores: list[bleu.Bleu] = []
    to_device = CopyStream(worker.device)

    def load() -> TranslationTensors:
        """Sort and cut the pairs, and read the test sentences and the vocabulary."""
        budget = batch_budget(config, worker.device)
        plan = BucketedSteps(files.train, budget, max_length=config.max_length, worker=worker)
        schedule.factor = factor(config.epochs * len(plan))
        return TranslationTensors(plan, files.load_test())

    def validate(trained: nn.Module, text: TranslationTensors) -> dict[str, float]:
        score = quality(cast(beam.Translator, trained), text.test, config=config, worker=worker)
        scores[:] = [score]
        return {"bleu": score.score, "tokenised_bleu": score.tokenised, **mixed.metrics()}

    def flops_per_sample(text: TranslationTensors) -> float:
        source, target = (round(length) for length in text.plan.lengths.mean(1).tolist())
        return pair_flops(network, source, target) / counted(source, target)

    def table(text: TranslationTensors) -> list[dict[str, Any]]:
        signed = [{"kind": "bleu", "signature": score.signature} for score in scores]
        return [*signed, {"kind": "batches", "share_of_padding": text.plan.padding}]

    moses.detokenise([], files.language)  # loads the language's rules, which are no data
    return TrainingSetup(
        model=network,
        optimizer=optimizer,
        epochs=config.epochs,
        load=load,
        steps=lambda text, epoch: text.plan(epoch),
        forward=lambda net, batch: net(batch.source, to_device(batch.source_lengths), batch.target_in),
        loss=lambda logits, batch: update_loss(logits, batch, config=config, workers=worker.world_size),
        validate=validate,
        samples=lambda batch: counted(batch.source_tokens, batch.target_tokens),
        sample_unit="tokens",
        before_step=schedule.before_step,
        optimizer_step=None if clip is None else partial(mixed.clipped_step, optimizer, clip),
        validate_at=config.validate_at,
        stateful={"schedule": schedule},
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        flops_per_sample=flops_per_sample,
        table=table,
    )


def batch_budget(config: TranslationConfig, device: torch.device) -> BatchBudget:
    """Return what an update holds, and a micro-batch at most on this device."""
    most = config.batch_size
    if device.type == "cpu":
        most = min(most, CPU_MICRO_BATCH[config.batch_by])
    return BatchBudget(config.batch_by, config.global_batch_size, most, config.chunks)


def pair_flops(network: nn.Module, source: int, target: int) -> float:
    """Return the FLOPs of training on one pair of so many tokens, end marks included."""
    lengths = torch.tensor([source])
    words = [torch.zeros(1, length, dtype=torch.int64) for length in (source, target)]
    return training_flops(network, [words[0], lengths, words[1]], lambda logits: logits.sum(), samples=1)


def update_loss(
    logits: torch.Tensor, batch: MicroBatch, *, config: TranslationConfig, workers: int
) -> torch.Tensor:
    """Return this micro-batch's part of the update's mean loss, times the workers that it is averaged over.

    The mean is over the update's sentences if sentences are budgeted, else over its target tokens.
    """
    total = smoothed_cross_entropy(logits, batch.target_out, smoothing=config.label_smoothing, padding=PAD)
    by_sentence = config.batch_by == "sentences"
    return total * (workers / (batch.step_sentences if by_sentence else batch.step_target_tokens))


def mixed_precision(config: TranslationConfig, worker: Worker) -> precision.Precision:
    """Return the recipe's precision with the first loss scale as this loss needs it.

    The original divides a sum over sentences by the update's sentences before the backward pass, as
    `update_loss` does. It divides a sum over tokens by the update's tokens only after it. There the same
    numbers pass through half precision when the scale takes that division back.
    """
    undivided = 1.0 if config.batch_by == "sentences" else config.global_batch_size / worker.world_size
    return precision.on_device(
        config.precision,
        worker.device,
        scale=config.loss_scale * undivided,
        window=config.loss_scale_window,
        largest=config.max_loss_scale,
    )


def quality(
    model: beam.Translator, test: data.Test, *, config: TranslationConfig, worker: Worker
) -> bleu.Bleu:
    """Translate the test split, each worker its share, and return the BLEU of all of it."""
    translations, references = [], []
    share = test_batches(
        test.pairs, sentences=TEST_SENTENCES, max_length=config.max_test_length, worker=worker
    )
    for batch in share:
        translations += [test.detokenise(words) for words in search(model, batch, config=config).tolist()]
        references += [test.references[row] for row in batch.rows]
    return bleu.corpus_bleu(translations, references, worker)


def search(model: beam.Translator, batch: TestBatch, *, config: TranslationConfig) -> torch.Tensor:
    """Return the recipe's best translations of a batch, as `beam.translate` does."""
    lengths = batch.source_lengths.to(batch.source.device)
    limits = torch.full_like(lengths, config.max_target_length)
    if config.max_length_offset is not None:
        limits = limits.minimum(lengths + config.max_length_offset)
    how = beam.Search(config.beam_size, config.length_penalty, config.coverage_penalty)
    return beam.translate(model, batch.source, lengths, limits=limits, search=how)
