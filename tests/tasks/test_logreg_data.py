import bz2
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mirror import serve

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, download
from mlbench.datasets.download import Archive
from mlbench.tasks.logreg import data

FEATURES = 20


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES_S", ())


def wanting(dataset: str = "epsilon_like", train: Path | None = None, test: Path | None = None):
    return SimpleNamespace(dataset=dataset, train_file=train, test_file=test)


# Generated rows


@pytest.fixture(scope="module")
def like(data_root) -> tuple[data.Rows, data.Rows]:
    return data.open_dataset(data.prepare_dataset(wanting(), data_root))


def test_generated_rows_are_the_same_everywhere(like):
    """Written down once; another processor or library that gives other rows must not go unnoticed."""
    millionths = [(rows.features.double() * 1e6).round().long() for rows in like]
    assert millionths[0][0, :4].tolist() == [35440, 60563, -112434, -50662]
    assert [int(values.sum()) for values in millionths] == [6132154, 46422051]
    assert [int(rows.labels.sum()) for rows in like] == [10014, 2506]


@pytest.mark.slow
def test_the_optimum_of_the_generated_rows_is_newtons(like):
    """To 1e-10, by Newton's method from scratch; the objective is strongly convex, so there is one."""
    x, y = like[0].features.double().numpy(), like[0].labels.double().numpy()
    l2, weights = data.OPTIMUM_L2, np.zeros(200)
    for _ in range(20):
        chance = 1 / (1 + np.exp(-x @ weights))
        gradient = x.T @ (chance - y) / len(y) + l2 * weights
        curvature = (x.T * (chance * (1 - chance))) @ x / len(y) + l2 * np.eye(200)
        weights = weights - np.linalg.solve(curvature, gradient)
    assert np.linalg.norm(gradient) < 1e-15
    least = np.mean(np.logaddexp(0, x @ weights) - y * (x @ weights)) + l2 / 2 * weights @ weights
    assert abs(least - data.OPTIMA["epsilon_like"]) < 1e-10


# Epsilon


def epsilon_text(rows: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return rows in the form of the LIBSVM page's files: dense, 6 digits, a blank before each line's end."""
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((rows, FEATURES)) / FEATURES**0.5, random.integers(0, 2, rows)
    lines = []
    for features, label in zip(x, y, strict=True):
        pairs = " ".join(f"{column}:{value:.6g}" for column, value in enumerate(features, 1))
        lines.append(f"{2 * label - 1} {pairs} \n")
    return "".join(lines).encode(), x, y


TRAIN, TRAIN_X, TRAIN_Y = epsilon_text(50, seed=1)
TEST, TEST_X, TEST_Y = epsilon_text(20, seed=2)
FILES = {
    "epsilon_normalized.bz2": bz2.compress(TRAIN),
    "epsilon_normalized.t.bz2": bz2.compress(TEST),
}


def small_epsilon(monkeypatch, urls: tuple[str, ...], files: dict[str, bytes] = FILES) -> None:
    """Let the data set `epsilon` be the small `files`."""
    archives = {
        split: Archive(tuple(url + name for url in urls), name, hashlib.sha256(content).hexdigest())
        for split, (name, content) in zip(("train", "test"), files.items(), strict=True)
    }
    monkeypatch.setattr(data, "EPSILON_ARCHIVES", archives)
    monkeypatch.setattr(data, "EPSILON_LAYOUT", data.Layout((-1.0, 1.0), first=1, features=FEATURES))


def test_epsilon_is_fetched_converted_and_opened(tmp_path, monkeypatch):
    seen = []
    with serve() as mirror:
        mirror.files = FILES
        small_epsilon(monkeypatch, (mirror.url,))
        folder = data.prepare_dataset(wanting("epsilon"), tmp_path, progress=lambda *now: seen.append(now))
    train, test = data.open_dataset(folder)
    for rows, x, y in ((train, TRAIN_X, TRAIN_Y), (test, TEST_X, TEST_Y)):
        assert np.abs(rows.features.numpy() - x).max() < 1e-5
        assert rows.labels.tolist() == y.tolist()
    manifest = arrow.verify(folder)
    assert manifest["inputs"] == [
        {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    ]
    assert [split["rows"] for split in manifest["splits"].values()] == [50, 20]
    size = len(FILES["epsilon_normalized.bz2"])
    assert ("fetch epsilon_normalized.bz2", size, size, "bytes") in seen
    assert ("read epsilon_normalized.bz2", size, size, "bytes") in seen
    assert ("write train", 50, None, "rows") in seen


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "epsilon_normalized.bz2",
            bz2.compress(TRAIN)[:-9],
            "epsilon_normalized.bz2 is damaged or truncated",
        ),
        ("epsilon_normalized.bz2", b"<html>", "epsilon_normalized.bz2 is damaged or truncated"),
        (
            "epsilon_normalized.t.bz2",
            bz2.compress(b"1 1:1\n2 1:1\n"),
            r"line 2: not a row with label -1 or 1",
        ),
        (
            "epsilon_normalized.t.bz2",
            bz2.compress(b"1 1:1\n1 21:1\n"),
            r"line 2: not a row .* indices 1 to 20",
        ),
        ("epsilon_normalized.t.bz2", bz2.compress(b"1 0:1\n"), r"line 1: not a row .* indices 1 to 20"),
        ("epsilon_normalized.t.bz2", bz2.compress(b"1 1:1\n1 1=1\n"), "line 2: '1 1=1' is not of the form"),
    ],
)
def test_what_is_not_epsilon_is_refused_and_leaves_no_data_set(tmp_path, monkeypatch, name, content, said):
    with serve() as mirror:
        mirror.files = FILES | {name: content}
        small_epsilon(monkeypatch, (mirror.url,), mirror.files)
        with pytest.raises(UserError, match=said):
            data.prepare_dataset(wanting("epsilon"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".epsilon.lock", "downloads"]


# A user's own files


def files(folder: Path, train: bytes, test: bytes) -> SimpleNamespace:
    (folder / "train.txt").write_bytes(train)
    (folder / "test.txt").write_bytes(test)
    return wanting(train=folder / "train.txt", test=folder / "test.txt")


@pytest.mark.parametrize(
    ("train", "test", "first_column", "labels"),
    [
        (b"+1 1:.5 4:2\n-1 2:3\n", b"-1 3:1\n", 1, [-1, 1]),
        (b"2 0:.5 3:2\n1 1:3\n", b"1 2:1\n", 0, [1, 2]),
        (b"0.5 1:.5 4:2\n-7 2:3\n", b"-7 3:1", 1, [-7, 0.5]),
    ],
    ids=["LIBSVM", "from zero", "odd labels"],
)
def test_sparse_files_with_any_two_labels_become_dense_rows(tmp_path, train, test, first_column, labels):
    folder = data.prepare_dataset(files(tmp_path, train, test), tmp_path / "data")
    rows, tested = data.open_dataset(folder)
    assert rows.features.tolist() == [[0.5, 0, 0, 2], [0, 3, 0, 0]]
    assert tested.features.tolist() == [[0, 0, 1, 0]]
    assert rows.labels.tolist() == [1, 0] and tested.labels.tolist() == [0]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["parameters"] == {"labels": labels, "first_column": first_column}
    assert [entry["file"] for entry in manifest["inputs"]] == ["train.txt", "test.txt"]


def test_changed_files_make_another_data_set_and_unchanged_ones_do_not(tmp_path):
    want = files(tmp_path, b"1 1:1\n0 2:1\n", b"1 1:1\n")
    first = data.prepare_dataset(want, tmp_path / "data")
    before = (first / "manifest.json").stat().st_mtime_ns
    assert data.prepare_dataset(want, tmp_path / "data") == first
    assert (first / "manifest.json").stat().st_mtime_ns == before
    second = data.prepare_dataset(files(tmp_path, b"1 1:1\n0 2:7\n", b"1 1:1\n"), tmp_path / "data")
    assert second != first
    assert data.open_dataset(second)[0].features.tolist() == [[1, 0], [0, 7]]
    assert arrow.manifest_hash(first) != arrow.manifest_hash(second)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (b"1 1:1\n0 1:2\n2 1:3\n", b"1 1:1\n"),
        (b"1 1:1\n0 1:2\n", b"\n1 1:1\n-1 1:1\n"),
        (b"1 1:1\n1 1:2\n", b"1 1:1\n"),
        (b"1 1:1\n0 1:2\n", b"1 1:one\n"),
        (b"a,b\n", b"1 1:1\n"),
        (b"", b"1 1:1\n"),
        (b"1\n0\n", b"1\n"),
        (b"1 1:1\n0 900000000:1\n", b"1 1:1\n"),
    ],
)
def test_wrong_files_are_refused_in_one_sentence(tmp_path, monkeypatch, train, test, as_stored: Any):
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(UserError, check=as_stored) as error:
        data.prepare_dataset(files(tmp_path, train, test), tmp_path / "data")
    assert error.value.hint and "\n" not in str(error.value)
    assert not list((tmp_path / "data").glob("files-*"))


def test_missing_files_are_refused(tmp_path):
    there = files(tmp_path, b"1 1:1\n0 1:2\n", b"1 1:1\n")
    with pytest.raises(UserError, match="given together"):
        data.prepare_dataset(wanting(train=there.train_file), tmp_path)
    with pytest.raises(UserError, match="given together"):
        data.prepare_dataset(wanting(test=there.test_file), tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path / 'nothing'} "):
        data.prepare_dataset(wanting(train=tmp_path / "nothing", test=there.test_file), tmp_path)
