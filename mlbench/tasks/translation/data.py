"""Parallel text as columns of sub-words, prepared once and mapped by the workers."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mlbench.datasets import arrow
from mlbench.datasets.arrow import DatasetInfo, DatasetWriter, Progress
from mlbench.tasks.translation import corpus, help_text, wmt
from mlbench.tasks.translation.chunks import BatchBudget, cut, require_share

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LIBRARIES = ("sacrebleu", "sacremoses", "tokenizers")  # of mlbench.config.libraries
MULTIPLE = 8  # the vocabulary is padded to this, which tensor cores need of a matrix's sides
LINES = 20_000  # lines split into sub-words at a time


@dataclass(frozen=True)
class Pairs:
    """Sub-words of both sides, without special ones, mapped from the file.

    Flat values [tokens] int32, and offsets [pairs + 1] int64: sentence i is
    `values[offsets[i] : offsets[i + 1]]`.
    """

    sources: np.ndarray
    source_offsets: np.ndarray
    targets: np.ndarray
    target_offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.source_offsets) - 1


@dataclass(frozen=True)
class Test:
    """The test split with its references as plain text, and the words that a translation is made of."""

    pairs: Pairs
    references: list[str]
    pieces: list[str]  # the vocabulary. The first are PAD, UNK, BOS and EOS of subwords
    language: str  # of the target

    def detokenise(self, ids: Iterable[int]) -> str:
        """Return the sentence of target sub-words up to the first EOS. PAD, BOS and padding are dropped."""
        from mlbench.tasks.translation import moses, subwords

        pieces = []
        for number in ids:
            if number == subwords.EOS:
                break
            if number not in (subwords.PAD, subwords.BOS) and number < len(self.pieces):
                pieces.append(self.pieces[number])
        return moses.detokenise(subwords.joined(pieces), self.language)


@dataclass(frozen=True)
class CorpusSplits:
    """Two splits and the vocabulary that both languages share, mapped from the files: nothing is read yet."""

    train: Pairs
    test: Pairs
    references: "pa.ChunkedArray"  # the test's, plain text
    pieces: "pa.ChunkedArray"  # the vocabulary
    language: str  # of the target

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: the pieces, padded to a multiple of 8."""
        return -(-len(self.pieces) // MULTIPLE) * MULTIPLE

    def load_test(self) -> Test:
        """Read the references and the vocabulary."""
        return Test(self.test, self.references.to_pylist(), self.pieces.to_pylist(), self.language)


# WMT14's text, nearly the same, has 226 million words on both sides (Luong et al. 2015). Each is at least one
# sub-word of 4 bytes.
WMT_BYTES = 4 * 226_000_000
LIBREOFFICE_HELP_BYTES = 4_938_094  # as prepared
DATASETS = {
    name: DatasetInfo(
        corpus.MANIFESTS[name],
        download=sum(archive.size or 0 for archive in (wmt.DEV, *(part.archive for part in parts))),
        prepared=WMT_BYTES,
    )
    for name, parts in wmt.TRAINED_ON.items()
} | {
    "cipher": DatasetInfo(corpus.MANIFESTS["cipher"], download=0, prepared=2_060_846),
    "libreoffice_help": DatasetInfo(
        corpus.MANIFESTS["libreoffice_help"],
        download=sum(archive.size or 0 for archive in help_text.PACKAGES.values()),
        prepared=LIBREOFFICE_HELP_BYTES,
    ),
}


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config` names unless it is there, and return its folder.

    `config` has `dataset` (a name in `DATASETS`), the languages `source` and `target`, and `train_files` and
    `test_files`. With train_files=/text/train, /text/train.en and /text/train.de are read instead of the data
    set's text, and prepared by its rules.
    """
    write_splits = partial(_write_splits, config=config)
    folder = root / corpus.folder(config)
    return arrow.write_dataset(folder, write_splits, manifest=corpus.manifest(config), progress=progress)


def check(config: Any, *, workers: int, folder: Path | None) -> None:
    """Raise UserError if the workers cannot share a step, or the prepared text does not make one.

    The published text is known to fit. A user's text is checked before any worker starts.
    """
    budget = BatchBudget(config.batch_by, config.global_batch_size, config.batch_size, config.chunks)
    require_share(budget, workers=workers)
    if folder is None or config.dataset in wmt.TRAINED_ON and not corpus.parallel_files(config):
        return
    pairs = _pairs(arrow.read_split(folder, "train"))
    lengths = (np.diff(pairs.source_offsets), np.diff(pairs.target_offsets))
    plan = cut(*lengths, budget, max_length=config.max_length)
    require_share(budget, workers=workers, smallest=int(np.diff(plan.starts).min()))


def open_dataset(folder: Path) -> CorpusSplits:
    """Return a prepared data set. Its columns are read-only views of its files."""
    test = arrow.read_split(folder, "test")
    return CorpusSplits(
        train=_pairs(arrow.read_split(folder, "train")),
        test=_pairs(test),
        references=test.column("reference"),
        pieces=arrow.read_split(folder, "vocabulary").column("piece"),
        language=arrow.read_manifest(folder)["parameters"]["target"],
    )


def _pairs(table: pa.Table) -> Pairs:
    return Pairs(*arrow.list_column(table, "source"), *arrow.list_column(table, "target"))


def _write_splits(writer: DatasetWriter, *, config: Any) -> None:
    """Tokenise, clean, learn sub-words, and write both splits as columns of them."""
    from mlbench.tasks.translation import moses, subwords

    work = writer.folder / "work"
    work.mkdir()
    text = corpus.text(config, writer, work)
    files = [work / "tokenised.source", work / "tokenised.target"]
    letters, read = subwords.CharCounts(), 0
    with files[0].open("w", encoding="utf-8") as sources, files[1].open("w", encoding="utf-8") as targets:
        for cleaned in moses.clean_all(text.train, text.rules):
            sources.writelines(line + "\n" for line in cleaned.sources)
            targets.writelines(line + "\n" for line in cleaned.targets)
            letters.merge(cleaned.letters)
            read += cleaned.read
            writer.progress("tokenise and clean", read, None, "rows")
    writer.progress("learn sub-words", 0, 1, "rows")
    made = subwords.learn(files, letters, text.size)
    writer.progress("learn sub-words", 1, 1, "rows")
    with files[0].open(encoding="utf-8") as sources, files[1].open(encoding="utf-8") as targets:
        writer.write("train", _train(made, sources, targets))
    writer.write("test", [_test(made, text)])
    writer.write("vocabulary", [pa.record_batch({"piece": pa.array(subwords.pieces(made))})])
    writer.extra["pairs_read"] = read
    shutil.rmtree(work)


def _train(made: "Tokenizer", sources: Iterator[str], targets: Iterator[str]) -> Iterator[pa.RecordBatch]:
    while lines := list(islice(sources, LINES)):
        yield pa.record_batch(
            {"source": _lists(made, lines), "target": _lists(made, list(islice(targets, LINES)))}
        )


def _test(made: "Tokenizer", text: corpus.ParallelCorpus) -> pa.RecordBatch:
    """Return the whole test set: no sentence is dropped from what a score is of."""
    from mlbench.tasks.translation import moses

    sources, references = ([pair[side] for pair in text.test] for side in (0, 1))
    return pa.record_batch(
        {
            "source": _lists(made, moses.tokenise(sources, text.rules.source)),
            "target": _lists(made, moses.tokenise(references, text.rules.target)),
            "reference": pa.array(references, pa.string()),
        }
    )


def _lists(made: "Tokenizer", lines: Sequence[str]) -> pa.Array:
    from mlbench.tasks.translation import subwords

    values, offsets = subwords.encode(made, lines)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
