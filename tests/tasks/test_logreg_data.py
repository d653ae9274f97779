import bz2
import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mirror import serve
from sklearn.linear_model import LogisticRegression

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, download
from mlbench.datasets.download import Archive
from mlbench.tasks.logreg import data, libsvm

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


def test_generated_rows_are_dense_of_length_one_and_balanced(like):
    for rows, count in zip(like, (20_000, 5_000), strict=True):
        assert rows.features.shape == (count, 200) and rows.features.dtype == torch.float32
        assert rows.labels.shape == (count,) and rows.labels.dtype == torch.float32
        assert torch.allclose(rows.features.norm(dim=1), torch.ones(count), atol=1e-4)
        assert sorted(rows.labels.unique().tolist()) == [0, 1]
        assert 0.48 < rows.labels.mean() < 0.52
    assert (like[0].features == 0).float().mean() < 1e-3


def test_generated_features_are_correlated(like):
    x = like[0].features.numpy()
    spread = np.linalg.eigvalsh(x.T @ x) ** 0.5
    assert 10 < spread[-1] / spread[0] < 20  # 200 ** 0.5 is 14


def test_generated_rows_are_the_same_everywhere(like):
    """Written down once; another processor or library that gives other rows must not go unnoticed."""
    millionths = [(rows.features.double() * 1e6).round().long() for rows in like]
    assert millionths[0][0, :4].tolist() == [35440, 60563, -112434, -50662]
    assert [int(values.sum()) for values in millionths] == [6132154, 46422051]
    assert [int(rows.labels.sum()) for rows in like] == [10014, 2506]


def test_the_best_linear_classifier_has_the_accuracy_that_the_docstring_claims(like):
    train, test = ((rows.features.numpy(), rows.labels.numpy()) for rows in like)
    l2 = 2.5e-6
    exact = LogisticRegression(C=1 / (len(train[1]) * l2), fit_intercept=False, tol=1e-6, max_iter=1000)
    exact.fit(*train)
    assert exact.score(*test) == pytest.approx(0.901, abs=0.0015)
    assert exact.score(*train) == pytest.approx(0.910, abs=0.0015)


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


def test_the_second_time_nothing_is_fetched_or_written(tmp_path, monkeypatch):
    with serve() as mirror:
        mirror.files = FILES
        small_epsilon(monkeypatch, (mirror.url,))
        folder = data.prepare_dataset(wanting("epsilon"), tmp_path)
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        mirror.requests.clear()
        data.prepare_dataset(wanting("epsilon"), tmp_path)
        assert mirror.requests == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_second_host_serves_when_the_first_is_gone(tmp_path, monkeypatch):
    with serve() as mirror:
        mirror.files = FILES
        small_epsilon(monkeypatch, (mirror.url + "gone/", mirror.url))
        data.open_dataset(data.prepare_dataset(wanting("epsilon"), tmp_path))


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


def test_an_archive_with_another_checksum_is_refused(tmp_path, monkeypatch):
    small_epsilon(monkeypatch, ("unused:",))
    with serve() as mirror:
        mirror.files = FILES | {"epsilon_normalized.bz2": b"something else"}
        small_epsilon(monkeypatch, (mirror.url,))
        with pytest.raises(UserError, match="SHA256 .* instead of"):
            data.prepare_dataset(wanting("epsilon"), tmp_path)
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == [".epsilon_normalized.bz2.lock"]


@pytest.mark.slow
def test_a_preparation_that_is_killed_leaves_nothing_half_and_the_next_one_succeeds(tmp_path, monkeypatch):
    (tmp_path / "downloads").mkdir()
    for name, content in FILES.items():
        (tmp_path / "downloads" / name).write_bytes(content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    code = f"""
        import time
        from pathlib import Path
        from types import SimpleNamespace
        from mlbench.datasets.download import Archive
        from mlbench.tasks.logreg import data, libsvm
        sums = {sums!r}
        data.EPSILON_ARCHIVES = {{
            split: Archive((), name, sums[name]) for split, name in zip(("train", "test"), sums)
        }}
        data.EPSILON_LAYOUT = data.Layout((-1.0, 1.0), first=1, features={FEATURES})
        libsvm.BLOCK = 4000
        def show(step, done, total, unit):
            if step == "write test":
                print("in the middle", flush=True)
                time.sleep(60)
        want = SimpleNamespace(dataset="epsilon", train_file=None, test_file=None)
        data.prepare_dataset(want, Path({str(tmp_path)!r}), progress=show)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "in the middle\n"
    process.kill()
    process.communicate()
    assert (tmp_path / ".epsilon.partial" / "train.arrow").exists() and not (tmp_path / "epsilon").exists()
    small_epsilon(monkeypatch, ())
    folder = data.prepare_dataset(wanting("epsilon"), tmp_path)
    assert [len(rows.labels) for rows in data.open_dataset(folder)] == [50, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".epsilon.lock", "downloads", "epsilon"]


def test_blocks_of_any_size_give_the_same_file(tmp_path, monkeypatch):
    def hashes(root: Path) -> list[str]:
        (root / "downloads").mkdir(parents=True)
        for name, content in FILES.items():
            (root / "downloads" / name).write_bytes(content)
        small_epsilon(monkeypatch, ())
        manifest = arrow.read_manifest(data.prepare_dataset(wanting("epsilon"), root))
        return [split["sha256"] for split in manifest["splits"].values()]

    whole = hashes(tmp_path / "whole")
    monkeypatch.setattr(libsvm, "BLOCK", 777)
    assert hashes(tmp_path / "cut") == whole


def test_the_published_archives_are_named_with_two_hosts_and_a_checksum():
    assert set(data.EPSILON_ARCHIVES) == {"train", "test"}
    for archive in data.EPSILON_ARCHIVES.values():
        assert archive.sha256 and len(archive.sha256) == 64
        assert len(archive.urls) == 2 and all(url.endswith("/" + archive.file) for url in archive.urls)


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
    ("train", "test", "said"),
    [
        (b"1 1:1\n0 1:2\n2 1:3\n", b"1 1:1\n", "train.txt, line 3: 2 is a third label"),
        (b"1 1:1\n0 1:2\n", b"\n1 1:1\n-1 1:1\n", "test.txt, line 3: -1 is a third label"),
        (b"1 1:1\n1 1:2\n", b"1 1:1\n", "train.txt has one label only"),
        (b"1 1:1\n0 1:2\n", b"1 1:one\n", "test.txt, line 1: '1 1:one' is not of the form"),
        (b"a,b\n", b"1 1:1\n", "train.txt, line 1: 'a,b' is not of the form"),
        (b"", b"1 1:1\n", "train.txt has no rows"),
        (b"1\n0\n", b"1\n", "have no columns"),
        (
            b"1 1:1\n0 900000000:1\n",
            b"1 1:1\n",
            "3 rows of 900,000,000 columns need 21.6 GB as dense rows, .* has 1.0 GB",
        ),
    ],
)
def test_wrong_files_are_refused_in_one_sentence(tmp_path, monkeypatch, train, test, said):
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(UserError, match=said) as error:
        data.prepare_dataset(files(tmp_path, train, test), tmp_path / "data")
    assert error.value.hint and "\n" not in str(error.value)
    assert not list((tmp_path / "data").glob("files-*"))


def test_missing_files_are_refused(tmp_path):
    there = files(tmp_path, b"1 1:1\n0 1:2\n", b"1 1:1\n")
    with pytest.raises(UserError, match="go together"):
        data.prepare_dataset(wanting(train=there.train_file), tmp_path)
    with pytest.raises(UserError, match="go together"):
        data.prepare_dataset(wanting(test=there.test_file), tmp_path)
    with pytest.raises(UserError, match="there is no file .*nothing"):
        data.prepare_dataset(wanting(train=tmp_path / "nothing", test=there.test_file), tmp_path)
