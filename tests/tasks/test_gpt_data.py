"""Shards of the real format over HTTP, and SciPy's docstrings held to what they came from."""

import hashlib
import io
import json
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mirror import Mirror, serve

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, download, packages
from mlbench.datasets.download import Archive
from mlbench.tasks.gpt import data

WANTED = SimpleNamespace(dataset="fineweb10b_gpt2")
TRAIN = ("fineweb_train_000001.bin", "fineweb_train_000002.bin")
VALID = "fineweb_val_000000.bin"


def packed(tokens: np.ndarray, *, magic: int = 20240520, version: int = 1, count: int | None = None) -> bytes:
    """Return a shard: 256 int32, of which the first three say something, and tokens as uint16."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.astype("<u2").tobytes()


def text(tokens: int, seed: int, different: int) -> np.ndarray:
    """Return so many different tokens at random, and the largest of the vocabulary."""
    drawn = np.random.default_rng(seed).integers(0, different, tokens)
    drawn[0] = 50_256
    return drawn


def shards(patch: pytest.MonkeyPatch, mirror: Mirror, *, different: int = 50_257) -> dict[str, np.ndarray]:
    """Let the mirror have two training shards, the validation shard and GPT-2's vocabulary."""
    sizes = {TRAIN[0]: 5_000, TRAIN[1]: 2_500, VALID: 3_000}
    texts = {name: text(size, seed, different) for seed, (name, size) in enumerate(sizes.items())}
    words = {f"{'Ġab'[: 1 + i % 3]}{i}": i for i in range(50_256)} | {"<|endoftext|>": 50_256}
    mirror.files = {name: packed(tokens) for name, tokens in texts.items()}
    mirror.files["encoder.json"] = json.dumps(words).encode()

    def archive(name: str) -> Archive:
        content = mirror.files[name]
        checksum = hashlib.sha256(content).hexdigest()
        return Archive((mirror.url + name,), f"fineweb10b_gpt2/{name}", sha256=checksum, size=len(content))

    patch.setattr(download, "PAUSES_S", (0.0,))
    patch.setattr(data, "ENCODER", archive("encoder.json"))
    patch.setattr(data, "TRAINING_SHARDS", tuple(map(archive, TRAIN)))
    patch.setattr(data, "VALIDATION_SHARD", archive(VALID))
    patch.setattr(data, "VALIDATION_TOKENS", 2_048)
    return texts


def test_the_prepared_tokens_are_those_of_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as mirror:
        texts = shards(monkeypatch, mirror)
        folder = data.prepare_dataset(WANTED, tmp_path)
    train = np.concatenate([texts[name] for name in TRAIN])
    assert np.array_equal(arrow.column(arrow.read_split(folder, "train"), "token"), train)
    valid = arrow.column(arrow.read_split(folder, "valid"), "token")
    assert np.array_equal(valid, texts[VALID][:2_049])  # 2,048 to predict
    dataset = data.open_dataset(folder, context=16).load()
    assert (len(dataset.train), len(dataset.valid)) == ((7_500 - 1) // 16, 2_048 // 16)
    rows = dataset.train.gather(np.array([3, 0]), torch.device("cpu"))
    assert rows.tolist() == [train[48:65].tolist(), train[:17].tolist()]
    assert dataset.token_bytes[:3].tolist() == [2, 3, 4] and dataset.token_bytes[50_256] == 0
    inputs = {each["file"]: each["sha256"] for each in arrow.read_manifest(folder)["inputs"]}
    assert inputs == {name: hashlib.sha256(raw).hexdigest() for name, raw in mirror.files.items()}


def test_what_is_asked_for_is_what_the_hub_has() -> None:
    """The files of kjj0/fineweb10B-gpt2: one of validation, 103 of training, 100 million tokens each."""
    names = [archive.urls[0] for archive in (data.VALIDATION_SHARD, *data.TRAINING_SHARDS)]
    hub = "https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main/"
    assert names[0] == hub + "fineweb_val_000000.bin"
    assert names[1:] == [f"{hub}fineweb_train_{number:06}.bin" for number in range(1, 104)]
    assert {archive.size for archive in data.TRAINING_SHARDS[:-1]} == {200_001_024}
    assert data.TRAINING_SHARDS[-1].size is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"magic": 20240801}, "does not begin with 20240520"),
        ({"version": 2}, "has version 2 of its format, this mlbench reads 1"),
        ({"count": 5_001}, "has 5,000 tokens, its header gives 5,001"),
    ],
)
def test_a_shard_of_another_format_or_length_is_refused(
    change: dict[str, int], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no checksum is known, which the hub does not state."""
    with serve() as mirror:
        texts = shards(monkeypatch, mirror)
        mirror.files[TRAIN[0]] = packed(texts[TRAIN[0]], **change)
        unchecked = (data.TRAINING_SHARDS[0], data.TRAINING_SHARDS[1])
        monkeypatch.setattr(
            data,
            "TRAINING_SHARDS",
            tuple(Archive(archive.urls, archive.file, size=archive.size) for archive in unchecked),
        )
        with pytest.raises(UserError, match=sentence):
            data.prepare_dataset(WANTED, tmp_path)
    assert not (tmp_path / "fineweb10b_gpt2").exists()


def test_a_shard_that_changed_after_it_was_pinned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pins are what sha256sum prints; a shard that is not among them has none."""
    with serve() as mirror:
        texts = shards(monkeypatch, mirror)
        (tmp_path / TRAIN[0]).write_bytes(mirror.files[TRAIN[0]])
        printed = subprocess.run(["sha256sum", TRAIN[0]], cwd=tmp_path, capture_output=True, check=True)
        (tmp_path / "shards.sha256").write_bytes(printed.stdout)
        monkeypatch.setattr(data, "HUB", mirror.url.rstrip("/"))
        archives = [data.shard(name, tokens=None, path=tmp_path / "shards.sha256") for name in TRAIN]
        assert archives[1].sha256 is None
        monkeypatch.setattr(data, "TRAINING_SHARDS", archives)
        mirror.files[TRAIN[0]] = packed(texts[TRAIN[0]][::-1])
        with pytest.raises(UserError, match=f"instead of {archives[0].sha256}"):
            data.prepare_dataset(WANTED, tmp_path / "data")
        mirror.files[TRAIN[0]] = packed(texts[TRAIN[0]])
        data.prepare_dataset(WANTED, tmp_path / "data")


# SciPy's docstrings

FILES = {
    "b.py": b'"""Second.\n\n    Indented.\n    """\ndef f():\n    r"""Takes \\alpha."""\n    """First."""\n',
    "a.py": b'x = 1\n"""First."""\n"""First."""\n',
    "empty.py": b'""""""\n',
}


def test_docstrings_are_quoted_once_in_order_of_the_files() -> None:
    expected = ["First.\n\n", "Second.\n\nIndented.\n\nTakes \\alpha.\n\n"]
    assert list(data.docstrings(FILES)) == expected


def wheel(folder: Path, members: dict[str, bytes]) -> Archive:
    """Put a wheel where a fetched one would lie."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    (folder / "downloads").mkdir()
    (folder / "downloads/scipy.whl").write_bytes(packed.getvalue())
    return Archive((), "scipy.whl", sha256=hashlib.sha256(packed.getvalue()).hexdigest())


@pytest.mark.slow
def test_another_version_here_means_the_pinned_wheel_and_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = arrow.DatasetWriter(tmp_path / "scipy_docstrings")
    installed = data._scipy_files(writer)
    extra = {"scipy/_lib/x.py": b'"""No."""', "scipy/x/tests/t.py": b'"""No."""', "scipy/x.so": b"\xff"}
    members = {f"scipy/{name}": content for name, content in installed.items()} | extra
    monkeypatch.setattr(data, "SCIPY_WHEEL", wheel(tmp_path, members))
    monkeypatch.setattr(data.metadata, "version", lambda _: "1.99.0")
    assert data._scipy_files(writer) == installed
    assert [each["file"] for each in writer.inputs] == ["scipy.whl"]


def test_other_documentation_than_the_pinned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "_scipy_files", lambda *_: FILES)
    with pytest.raises(UserError, match="that of 1.17.1"):
        data.prepare_dataset(SimpleNamespace(dataset="scipy_docstrings"), tmp_path)


def test_the_wheel_is_that_of_the_lock_file() -> None:
    lock = (Path(__file__).parents[2] / "requirements.lock").read_text()
    assert isinstance(data.SCIPY_WHEEL, type(packages.wheel("x", "1", "a-b-c", sha256="", size=0)))
    assert f"scipy=={data.SCIPY} " in lock and f"sha256:{data.SCIPY_WHEEL.sha256}" in lock


@pytest.mark.slow
def test_tokens_stand_for_all_bytes_of_the_text_and_nothing_is_in_both_splits(data_root: Path) -> None:
    folder = data.prepare_dataset(SimpleNamespace(dataset="scipy_docstrings"), data_root)
    dataset = data.open_dataset(folder, context=128).load()
    texts = list(data.docstrings(data._scipy_files(arrow.DatasetWriter(folder))))
    held_out = texts[10::20]
    assert len(dataset.token_bytes) == 2_048 and dataset.token_bytes.sum() > 2_048
    for split, part in (
        ("valid", held_out),
        ("train", [document for document in texts if document not in held_out]),
    ):
        tokens = arrow.column(arrow.read_split(folder, split), "token").astype(np.int64)
        assert int(dataset.token_bytes.numpy()[tokens].sum()) == sum(
            len(document.encode()) for document in part
        )
        assert (tokens == 0).sum() == len(part)  # the end of a text before every document
    rows = {split: arrow.read_split(folder, split).num_rows for split in ("train", "valid")}
    assert rows == data.DOCSTRING_TOKENS
