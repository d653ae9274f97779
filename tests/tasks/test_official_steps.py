"""A closed-division official run of every task begins: its data formats, its model, the first updates.

The experiment is composed without a single deviation. Of the four large models the test then cuts the size
of an update, in its own copy of the configuration: whole ones would take a small machine hours, and
nothing but time forbids them. Each update is followed by an empty validation.
"""

import bz2
import math
import resource
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import test_awdlstm_data
import test_gpt_data
import test_logreg_data
import test_resnet20_data
import test_resnet50_data
import test_translation_wmt
from mirror import Mirror, serve
from ranks import run_ranks

from mlbench.config import compose
from mlbench.config.experiment import Experiment
from mlbench.datasets import download
from mlbench.tasks import registry
from mlbench.tasks.allreduce import collectives
from mlbench.tasks.allreduce.torch import measure
from mlbench.tasks.gpt import data as gpt_data
from mlbench.tasks.translation import cipher, wmt
from mlbench.tasks.translation import data as translation
from mlbench.training import loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

pytestmark = pytest.mark.slow
SIZES = 5  # of the all-reduce
STEPS = 2
MOST_BYTES = 20e9  # of a process at its largest
Prepare = Callable[[pytest.MonkeyPatch, Mirror, Path], None]


@dataclass(frozen=True)
class Case:
    """A task's official data in small, its model's size, its classes, and what makes an update short."""

    prepare: Prepare
    parameters: int
    classes: int
    cut: dict[str, int] = field(default_factory=dict)


def epsilon(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """300 rows of 2,000 features in bzip2."""
    patch.setattr(test_logreg_data, "FEATURES", 2_000)
    names = ("epsilon_normalized.bz2", "epsilon_normalized.t.bz2")
    texts = (test_logreg_data.epsilon_text(rows, seed)[0] for rows, seed in ((300, 1), (20, 2)))
    mirror.files = dict(zip(names, map(bz2.compress, texts), strict=True))
    test_logreg_data.small_epsilon(patch, (mirror.url,), mirror.files)


def cifar10(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """Five batches of 52 images and one of 20."""
    names = (*test_resnet20_data.data.CIFAR10_FILES["train"], *test_resnet20_data.data.CIFAR10_FILES["test"])
    rows = dict.fromkeys(names, 52) | {"test_batch.bin": 20}
    members = {name: test_resnet20_data.batch(rows[name], seed).tobytes() for seed, name in enumerate(names)}
    packed = test_resnet20_data.tar(members)
    mirror.files = {"cifar-10-binary.tar.gz": packed}
    test_resnet20_data.small_cifar10(patch, packed, (mirror.url,))


def imagenet(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """A JPEG file in each of 1,000 class folders, for training and for validation."""
    test_resnet50_data.photograph(1, 90, 70).save(root / "image", "JPEG", quality=85)
    for number in range(2000):
        folder = root / f"downloads/imagenet/{'train' if number % 2 else 'val'}/n{number // 2:08}"
        folder.mkdir(parents=True)
        (folder / f"{folder.name}_1.JPEG").hardlink_to(root / "image")
    patch.setattr("mlbench.tasks.resnet50.data.IMAGENET_IMAGES", {"train": 1000, "val": 1000})


def wikitext2(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """A text of 200 words for training; all of the 33,278 stand in the archive's test file."""
    words = [f"word{number}" for number in range(33_278 - 2)]
    text = "".join(f" {' '.join(words[begin : begin + 20])} <unk> \n" for begin in range(0, 200, 20)) * 20
    files = {
        "wiki.train.tokens": text,
        "wiki.valid.tokens": text,
        "wiki.test.tokens": f" {' '.join(words)} \n",
    }
    patch.setattr(test_awdlstm_data, "WIKI", files)
    vocabulary = test_awdlstm_data.data.WIKITEXT2_VOCABULARY
    packed = test_awdlstm_data.pack(files)
    mirror.files = {test_awdlstm_data.ZIP: packed}
    test_awdlstm_data.small_wikitext(patch, packed, (mirror.url,))
    patch.setattr(test_awdlstm_data.data, "WIKITEXT2_VOCABULARY", vocabulary)


def newstest(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """WMT's archives, with short sentences."""
    short = [pair for pair in cipher.corpus(3_000, seed=8) if max(map(len, map(str.split, pair))) <= 7]
    parts = ((wmt.EUROPARL, short[:150]), (wmt.COMMONCRAWL, short[150:200]))
    news = ((wmt.NEWS_11, short[200:]), (wmt.NEWS_12, short[200:]))
    own = {
        part.archive.file: test_translation_wmt.tgz(test_translation_wmt.bitext(part.stem, pairs))
        for part, pairs in (*parts, *news)
    }
    test_translation_wmt.publish(mirror, patch, **own)


def fineweb(patch: pytest.MonkeyPatch, mirror: Mirror, root: Path) -> None:
    """Three shards with 100 different tokens."""
    test_gpt_data.shards(patch, mirror, different=100)


CASES: dict[str, Case] = {
    "logreg": Case(epsilon, 2_000, 2),
    "resnet20": Case(cifar10, 272_474, 10),
    "resnet50": Case(imagenet, 25_557_032, 1_000, {"batch_size": 4}),
    "awdlstm": Case(wikitext2, 33_556_078, 33_278, {"batch_size": 2}),
    "gnmt": Case(newstest, 160_671_297, 32_320, {"global_batch_size": 8, "chunks": 1}),
    "transformer": Case(newstest, 210_808_832, 33_712, {"global_batch_size": 128, "chunks": 1}),
    "gpt": Case(fineweb, 124_475_904, 50_304, {"global_batch_size": 1}),
}


def closed(name: str) -> Experiment:
    """Return the official experiment as `python -m mlbench.run` composes it, which has no deviation."""
    overrides = [f"task={name}", "scale=official", "division=closed"]
    experiment = compose.compose(overrides)
    assert experiment.scale == "official" and not experiment.deviations
    return experiment


@dataclass
class First:
    """The first steps of a run, over as many epochs as small data need; remembers what it gave."""

    setup: TrainingSetup
    data: Any
    given: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        epochs = (self.setup.steps(self.data, epoch) for epoch in count())
        for update in islice(chain.from_iterable(epochs), STEPS):
            self.given.append(update[0])
            yield update


def first_steps(worker: Worker, name: str, root: Path) -> dict[str, Any]:
    """Run the task through the loop for so many updates, each followed by an empty validation."""
    experiment = closed(name)
    worker.data_root, worker.seed, worker.goal = root, 1, experiment.target
    goal = experiment.target
    assert goal is not None
    missed = goal.target + (1 if goal.direction == "min" else -1)
    firsts: list[First] = []

    def steps(data: Any, _: int) -> First:
        firsts.append(First(setup, data))
        return firsts[-1]

    with pytest.MonkeyPatch.context() as patch:
        if name in ("gnmt", "transformer"):
            _pad_vocabulary(patch, CASES[name].classes)
        if name == "gpt":  # sequences of 64 tokens instead of 1,024
            patch.setattr(gpt_data, "open_dataset", lambda folder, context: gpt_data.TokenText(folder, 64))
        setup = registry.build(experiment.task.model_copy(update=CASES[name].cut), worker)
    seen: dict[str, Any] = {"parameters": sum(weight.numel() for weight in setup.model.parameters())}
    short = replace(
        setup,
        epochs=1,
        steps=steps,
        validate=lambda *_: {goal.metric: missed},
        after_validation=lambda _: None,
        flops_per_sample=lambda _: None,  # the models' tests hold them to closed forms
        validate_at=tuple((step + 0.5) / STEPS for step in range(STEPS)),
    )
    outcome = loop.train(short, worker)
    seen["sizes"] = [_tokens_a_sentence(batch) if name == "gnmt" else 1.0 for batch in firsts[0].given]
    losses = [validation["train_loss"] for validation in outcome.validations]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seen | {"status": outcome.status, "steps": outcome.steps, "losses": losses, "peak": peak}


def _tokens_a_sentence(batch: Any) -> float:
    return batch.step_target_tokens / batch.step_sentences


def _pad_vocabulary(patch: pytest.MonkeyPatch, pieces: int) -> None:
    """A few hundred sentences have fewer sub-words than WMT; give the model room for all of them."""
    opened = translation.open_dataset

    def padded(folder: Path) -> translation.CorpusSplits:
        dataset = opened(folder)
        padding = pa.array([""] * (pieces - len(dataset.pieces)), dataset.pieces.type)
        return replace(dataset, pieces=pa.chunked_array([*dataset.pieces.chunks, padding]))

    patch.setattr(translation, "open_dataset", padded)


@pytest.mark.parametrize("name", CASES)
def test_the_first_steps_of_the_official_run(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with serve() as mirror, pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "PAUSES_S", ())
        case.prepare(patch, mirror, tmp_path)
        task = closed(name).task
        registry.load(name).prepare(task, tmp_path)
    (result,) = run_ranks(first_steps, 1, name, tmp_path)
    assert (result["status"], result["steps"]) == ("goal_not_reached", STEPS)
    assert result["parameters"] == case.parameters
    assert result["peak"] < MOST_BYTES
    losses = [loss / size for loss, size in zip(result["losses"], result["sizes"], strict=True)]
    assert losses[0] == pytest.approx(math.log(case.classes), rel=0.15)  # a fresh model guesses
    assert all(map(math.isfinite, losses))


class Enough(Exception):
    """So many sizes have been exchanged."""


def first_exchanges(worker: Worker) -> list[int]:
    """Run the all-reduce task up to its fifth size; return the elements that were exchanged."""
    task: Any = compose.compose(["task=allreduce", "scale=official", "division=closed", "workers=2"]).task
    exchange, elements = collectives.CollectiveCase.seconds, []

    def counted(self: Any, repeats: int, worker: Worker) -> list[float]:
        if repeats == task.repeats:
            if len(elements) == SIZES:
                raise Enough
            elements.append(self.elements)
        return exchange(self, repeats, worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives.CollectiveCase, "seconds", counted)
        with pytest.raises(Enough):
            measure(task, worker)
    return elements


def test_the_first_sizes_of_the_official_all_reduce() -> None:
    first, second = run_ranks(first_exchanges, 2)
    assert first == second == sorted(set(first)) and len(first) == SIZES
