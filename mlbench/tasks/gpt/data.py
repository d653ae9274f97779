"""Text as token numbers: FineWeb in the shards of the GPT-2 speedruns, or SciPy's docstrings.

Both come as tokens of a byte-level BPE (Radford et al. 2019). A vocabulary gives the bytes of text of each
token, so that cross-entropies of different vocabularies can be compared in bits per byte.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, packages
from mlbench.datasets.arrow import DatasetInfo, DatasetWriter, Progress
from mlbench.datasets.download import Archive

if TYPE_CHECKING:  # torch is imported by the workers alone. Preparing needs none of it
    import torch

END = "<|endoftext|>"  # precedes every document, and represents no byte


class Sequences:
    """A token text [tokens] uint16 cut into sequences of `context` tokens and the one that follows."""

    def __init__(self, tokens: np.ndarray, context: int) -> None:
        self.windows = np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context]

    def __len__(self) -> int:
        return len(self.windows)

    def gather(self, rows: np.ndarray, device: "torch.device") -> "torch.Tensor":
        """Return sequences as int64 [rows, context + 1] on the device, copied from the mapped file."""
        import torch

        tokens = torch.from_numpy(self.windows[rows].astype(np.int64))
        return tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens


class TokenText:
    """A prepared data set: mapped files, of which nothing is read before `load`.

    - train, valid: as sequences. token_bytes: of text that each token represents, int64 [vocabulary].
    """

    def __init__(self, folder: Path, context: int) -> None:
        tables = {split: arrow.read_split(folder, split) for split in ("train", "valid", "vocabulary")}
        self._bytes = arrow.column(tables["vocabulary"], "bytes")
        self.train, self.valid = (
            Sequences(arrow.column(tables[split], "token"), context) for split in ("train", "valid")
        )
        self.token_bytes: torch.Tensor

    def load(self) -> "TokenText":
        """Read the vocabulary. The text comes step by step."""
        import torch

        self.token_bytes = torch.from_numpy(self._bytes.astype(np.int64))
        return self


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config.dataset` names unless it is there, and return its folder."""
    writers = {"fineweb10b_gpt2": _write_fineweb, "scipy_docstrings": _write_docstrings}
    return arrow.prepare(config.dataset, root, DATASETS, writers, progress=progress)


def open_dataset(folder: Path, *, context: int) -> TokenText:
    """Return a prepared text as read-only views of its files."""
    return TokenText(folder, context)


# FineWeb

MAGIC, VERSION = 20240520, 1  # of a shard, its first two int32 (llm.c, dev/data/data_common.py)
HEADER = 256  # int32. The third is the number of tokens, the rest is 0
SHARD_TOKENS = 100_000_000  # of every shard but the last
VALIDATION_TOKENS = 10_485_760  # to predict: the first 10 * 2^20, as llm.c and the speedruns do
HUB = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main"
PINS = Path(__file__).with_name("shards.sha256")  # what sha256sum prints of the shards, see README.md


def pinned(path: Path = PINS) -> dict[str, str]:
    """Return the checksums of shards by name. Of those that are not in the file, or without it, none."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {name.lstrip("*"): checksum for checksum, name in map(str.split, lines)}


def shard(name: str, *, tokens: int | None = SHARD_TOKENS, path: Path = PINS) -> Archive:
    """Return the archive of a shard, which has to have its pinned checksum if there is one."""
    size = None if tokens is None else 4 * HEADER + 2 * tokens
    checksum = pinned(path).get(name)
    return Archive(urls=(f"{HUB}/{name}",), file=f"fineweb10b_gpt2/{name}", sha256=checksum, size=size)


TRAINING_SHARDS = tuple(shard(f"fineweb_train_{i:06}.bin") for i in range(1, 103)) + (
    shard("fineweb_train_000103.bin", tokens=None),  # the rest of the text
)
VALIDATION_SHARD = shard("fineweb_val_000000.bin")
ENCODER = Archive(  # GPT-2's vocabulary, with the checksum that tiktoken 0.12 has
    urls=(
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json",
        "https://huggingface.co/gpt2/resolve/main/vocab.json",
    ),
    file="gpt2-encoder.json",
    sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    size=1_042_301,  # bytes
)
FINEWEB = {
    "source": "FineWeb's sample of 10 billion tokens (Penedo et al. 2024, arXiv:2406.17557), as tokens: "
    "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2",
    "licence": "ODC-By-1.0 (FineWeb), and the terms of use of Common Crawl",
    "parameters": {"validation_tokens": VALIDATION_TOKENS},
}


def _write_fineweb(writer: DatasetWriter) -> None:
    vocabulary = json.loads(writer.fetch(ENCODER).read_text("utf-8"))
    valid = read_shard(writer.fetch(VALIDATION_SHARD))[: VALIDATION_TOKENS + 1]
    writer.write("valid", [arrow.record_batch({"token": valid})])
    shards = (read_shard(writer.fetch(archive)) for archive in TRAINING_SHARDS)
    writer.write("train", (arrow.record_batch({"token": tokens}) for tokens in shards))
    _write_vocabulary(writer, vocabulary)


def read_shard(path: Path) -> np.ndarray:
    """Return the tokens of a shard, uint16, mapped from the file.

    Raises UserError if the header is no shard's, or if its number of tokens is not that of the file.
    """
    header = np.fromfile(path, "<i4", count=HEADER)
    fault = ""
    if len(header) < HEADER or header[0] != MAGIC:
        fault = f"does not begin with {MAGIC} and a header of {4 * HEADER:,} bytes"
    elif header[1] != VERSION:
        fault = f"has version {header[1]} of its format, this mlbench reads {VERSION}"
    elif path.stat().st_size != 4 * HEADER + 2 * int(header[2]):
        tokens = (path.stat().st_size - 4 * HEADER) / 2
        fault = f"has {tokens:,.10g} tokens, its header gives {header[2]:,}"
    if fault:
        raise UserError(f"{path} is not a complete shard: it {fault}", hint="remove it to download it again")
    return np.memmap(path, "<u2", "r", offset=4 * HEADER)


# SciPy's docstrings

SCIPY = "1.17.1"  # as requirements.txt pins it
SCIPY_WHEEL = packages.wheel(
    "scipy",
    SCIPY,
    "cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
    sha256="43af8d1f3bea642559019edfe64e9b11192a8978efbd1539d7bc2aaa23d92de4",
    size=35_349_300,  # bytes
)
DOCSTRINGS = {
    "source": f"the documentation in the Python files of SciPy {SCIPY} (https://scipy.org)",
    "licence": "BSD-3-Clause, copyright 2001-2002 Enthought, Inc., 2003 SciPy Developers",
    "parameters": {
        "sha256": "626a8eb3b6bef809e7861b09fca044b94984808745b09301d3741fe38115c185",  # of the text
        "vocabulary": 2048,  # learnt from the training text
        "every": 20,  # of the files by name, one in so many is for validation, from the 11th on
    },
}
DOCSTRING_TOKENS = {"train": 1_706_335, "valid": 103_704}  # as prepared
QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
NO_PROSE = re.compile(r"(^|/)(_lib|_external|tests)/")  # other projects' code, and tests


def _write_docstrings(writer: DatasetWriter) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    shape: dict[str, Any] = DOCSTRINGS["parameters"]
    documents = list(docstrings(_scipy_files(writer)))
    if hashlib.sha256("".join(documents).encode()).hexdigest() != shape["sha256"]:
        raise UserError(
            f"the documentation of the installed SciPy differs from that of {SCIPY}",
            hint=f"pip install --force-reinstall --no-deps scipy=={SCIPY}",
        )
    every = shape["every"]
    valid = documents[every // 2 :: every]
    train = [text for number, text in enumerate(documents) if number % every != every // 2]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=shape["vocabulary"],
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(train, trainer)
    for split, texts in (("train", train), ("valid", valid)):
        documents = tokenizer.encode_batch_fast(texts)
        tokens = np.concatenate([np.array([0, *each.ids], np.uint16) for each in documents])
        writer.write(split, [arrow.record_batch({"token": tokens})])
    _write_vocabulary(writer, tokenizer.get_vocab())


def docstrings(files: dict[str, bytes]) -> Iterator[str]:
    """Yield the text between triple quotes in each Python file, in order of their names. No text twice."""
    seen: set[str] = set()
    for name in sorted(files):
        quoted = map(inspect.cleandoc, QUOTED.findall(files[name].decode()))
        new = [text for text in dict.fromkeys(quoted) if text and text not in seen]
        seen.update(new)
        if new:
            yield "\n\n".join(new) + "\n\n"


def _scipy_files(writer: DatasetWriter) -> dict[str, bytes]:
    """Return SciPy's Python files by name: those installed here, or those of the wheel of another version."""
    spec = util.find_spec("scipy")
    if metadata.version("scipy") == SCIPY and spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
        return {name: path.read_bytes() for name, path in paths.items() if not NO_PROSE.search(name)}
    files = packages.files(writer.fetch(SCIPY_WHEEL), below="scipy")
    return {name: content for name, content in files if name.endswith(".py") and not NO_PROSE.search(name)}


def _write_vocabulary(writer: DatasetWriter, numbers: dict[str, int]) -> None:
    """Write how many bytes each token represents. Byte-level BPE writes every byte as one letter."""
    tokens = sorted(numbers, key=lambda token: numbers[token])
    sizes = np.array([0 if token == END else len(token) for token in tokens], np.uint8)
    writer.write("vocabulary", [arrow.record_batch({"bytes": sizes})])


DATASETS = {  # 2 bytes a token. The vocabulary, below 1 MB, is not counted
    "fineweb10b_gpt2": DatasetInfo(
        FINEWEB,
        download=2 * SHARD_TOKENS * (len(TRAINING_SHARDS) + 1),  # about: the last shard is smaller
        prepared=2 * (SHARD_TOKENS * len(TRAINING_SHARDS) + VALIDATION_TOKENS),
    ),
    "scipy_docstrings": DatasetInfo(DOCSTRINGS, download=0, prepared=2 * sum(DOCSTRING_TOKENS.values())),
}
