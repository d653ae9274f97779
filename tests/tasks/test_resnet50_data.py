"""From class folders to batches of pixels: ImageNet's oddities, damaged files, crops, loader processes."""

import hashlib
import os
import shutil
import signal
import struct
import zlib
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torchvision_ops
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mlbench.config.errors import UserError
from mlbench.datasets import arrow
from mlbench.tasks.resnet50 import crops, data, decode, shapes
from mlbench.training.worker import Worker

CLASSES = ("n01440764", "n01443537", "n02105855")
IMAGENET = SimpleNamespace(dataset="imagenet", train_folder=None, val_folder=None)


def photograph(seed: int, width: int, height: int) -> Image.Image:
    """Return an image with detail at all scales."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    fine = random.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(small.resize((width, height))) + fine, 0, 255).astype(np.uint8))


def write_images(folder: Path, *, each: int = 3) -> dict[Path, tuple[int, int]]:
    """Write a split as ImageNet has it, a PNG, a CMYK and a grey one among them; return their sizes."""
    sizes = {}
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            width, height = 40 + 17 * number, 64 - 11 * label
            image = photograph(10 * label + number, width, height)
            path = folder / name / f"{name}_{number}.JPEG"
            kind = {(2, 0): "PNG", (1, 1): "CMYK", (0, 2): "L"}.get((label, number))
            if kind == "PNG":  # as n02105855_2933.JPEG is
                image.save(path, "PNG")
            else:
                image.convert(kind or "RGB").save(path, "JPEG", quality=92)
            sizes[path] = (width, height)
    return sizes


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data root in which a small ImageNet lies ready to be prepared."""
    write_images(tmp_path / "downloads/imagenet/train")
    write_images(tmp_path / "downloads/imagenet/val", each=2)
    monkeypatch.setattr(data, "IMAGENET_IMAGES", {"train": 9, "val": 6})
    monkeypatch.setattr(data, "IMAGENET_CLASSES", 3)
    return tmp_path


def test_every_file_is_in_the_data_set_byte_by_byte(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlbench.tasks.resnet50.folders.CHUNK", 2)
    monkeypatch.setattr(data, "SHARD", 4)
    reports: list[tuple[Any, ...]] = []
    folder = data.prepare_dataset(IMAGENET, imagenet, progress=lambda *report: reports.append(report))
    dataset = data.open_dataset(folder)
    assert dataset.classes == list(CLASSES)
    for split, images in (("train", dataset.train), ("val", dataset.val)):
        files = sorted((imagenet / "downloads/imagenet" / split).rglob("*.JPEG"))
        assert len(images) == len(files)
        for row, path in enumerate(files):
            assert images.encoded(row) == path.read_bytes()
            assert CLASSES[images.labels[row]] == path.parent.name
            with Image.open(path) as image:
                assert (images.widths[row], images.heights[row]) == image.size
    manifest = arrow.verify(folder)
    assert list(manifest["splits"]) == ["train-0000", "train-0001", "train-0002", "val-0000", "val-0001"]
    assert manifest["formats"] == {"JPEG CMYK": 2, "JPEG L": 1, "JPEG RGB": 10, "PNG RGB": 2}
    train = imagenet / "downloads/imagenet/train"
    total = sum(path.stat().st_size for path in train.rglob("*.JPEG"))
    assert reports[4] == ("read train", total, total, "bytes")
    entry = {entry["file"]: entry for entry in manifest["inputs"]}["train"]
    assert (entry["files"], entry["bytes"]) == (9, total)
    everything = hashlib.sha256()
    for path in sorted(train.rglob("*.JPEG")):
        name = str(path.relative_to(train)).encode()
        everything.update(struct.pack("<q", len(name)) + name + hashlib.sha256(path.read_bytes()).digest())
    assert entry["sha256"] == everything.hexdigest()


def refused(root: Path, config: Any = IMAGENET) -> str:
    """Prepare, see that it is refused and leaves nothing, and return why."""
    with pytest.raises(UserError) as error:
        data.prepare_dataset(config, root)
    assert not [path for path in root.iterdir() if path.is_dir() and path.name != "downloads"]
    return str(error.value)


def test_damaged_images_are_all_named_and_nothing_is_left_half(imagenet: Path) -> None:
    train = imagenet / "downloads/imagenet/train"
    cut = train / "n01440764/n01440764_1.JPEG"
    cut.write_bytes(cut.read_bytes()[:-600])
    (train / "n01443537/n01443537_0.JPEG").write_text("<html>404</html>")
    (train / "n02105855/n02105855_2.JPEG").write_bytes(b"")
    (train / "n02105855/n02105855_1.JPEG").unlink()
    (train / "n02105855/n02105855_1.JPEG").mkdir()
    sentence = refused(imagenet)
    assert "4 of 9 files" in sentence
    assert f"{cut}: " in sentence and "truncated" in sentence
    assert "n01443537_0.JPEG: not an" in sentence and "n02105855_2.JPEG: not an" in sentence
    assert "n02105855_1.JPEG: [Errno 21]" in sentence


def test_an_image_of_one_pixel_and_a_name_of_any_bytes_are_taken(imagenet: Path) -> None:
    train = imagenet / "downloads/imagenet/train"
    Image.new("RGB", (1, 1), "red").save(train / "n01440764/n01440764_1.JPEG", "JPEG")
    image = train / "n01443537/n01443537_0.JPEG"
    odd = os.path.join(os.fsencode(image.parent), b"\xff\xfe.JPEG")
    os.rename(image, odd)
    folder = data.prepare_dataset(IMAGENET, imagenet)
    assert data.open_dataset(folder).train.widths.min() == 1
    Path(os.fsdecode(odd)).write_text("no image")
    shutil.rmtree(folder)
    assert "\\udcff\\udcfe.JPEG: " in refused(imagenet)


def png(width: int, height: int) -> bytes:
    """Return a PNG file that states this size and holds no pixels."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", b""),
        (b"IEND", b""),
    )
    parts = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_images_of_too_many_pixels_are_named_also_those_that_pillow_refuses_to_open(imagenet: Path) -> None:
    """From 179 million pixels on Pillow has an error of its own, which named no file."""
    train = imagenet / "downloads/imagenet/train"
    (train / "n01440764/n01440764_1.JPEG").write_bytes(png(12_000, 12_000))
    (train / "n01443537/n01443537_0.JPEG").write_bytes(png(20_000, 10_000))
    with pytest.warns(Image.DecompressionBombWarning):
        sentence = refused(imagenet)
    assert "2 of 9 files" in sentence
    assert "n01440764_1.JPEG: 12000 x 12000 pixels" in sentence
    assert "n01443537_0.JPEG: more than 134,217,728" in sentence


def test_a_class_without_images_is_named(imagenet: Path) -> None:
    for path in (imagenet / "downloads/imagenet/val/n01443537").iterdir():
        path.unlink()
    assert "no images of n01443537" in refused(imagenet)


def test_validation_images_that_are_not_sorted_are_explained(imagenet: Path) -> None:
    (imagenet / "downloads/imagenet/val/ILSVRC2012_val_00000001.JPEG").write_bytes(b"x")
    sentence = refused(imagenet)
    assert "1 files" in sentence and "e.g. ILSVRC2012_val_00000001.JPEG" in sentence
    assert "one folder a class" in sentence


def test_missing_folders_and_differing_classes_are_named(imagenet: Path) -> None:
    val = imagenet / "downloads/imagenet/val"
    (val / "n02105855").rename(val / "n99999999")
    assert "different classes, e.g. n02105855" in refused(imagenet)
    val.rename(val.with_name("validation"))
    assert f"{val} does not exist" in refused(imagenet)


def test_what_has_not_imagenets_counts_is_not_called_imagenet(tmp_path: Path) -> None:
    write_images(tmp_path / "downloads/imagenet/train")
    write_images(tmp_path / "downloads/imagenet/val")
    sentence = refused(tmp_path)
    assert "9 training and 9 validation" in sentence and "3 classes" in sentence
    assert "1,281,167" in sentence and "task.train_folder=PATH" in sentence


def test_a_users_own_folders_are_a_data_set_each(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write_images(own / "a")
    write_images(own / "b", each=1)
    config = SimpleNamespace(dataset="imagenet", train_folder=own / "a", val_folder=own / "b")
    folder = data.prepare_dataset(config, tmp_path)
    assert folder.name.startswith("folders-") and data.prepare_dataset(config, tmp_path) == folder
    assert len(data.open_dataset(folder).val) == 3
    extra = own / "a/n01440764/another.png"
    photograph(5, 30, 30).save(extra)
    other = data.prepare_dataset(config, tmp_path)
    assert other != folder and len(data.open_dataset(other).train) == 10
    alone = SimpleNamespace(dataset="imagenet", train_folder=own / "a", val_folder=None)
    with pytest.raises(UserError, match="given together"):
        data.prepare_dataset(alone, tmp_path)


@pytest.fixture
def decoder(imagenet: Path) -> decode.ImageDecoder:
    dataset = data.open_dataset(data.prepare_dataset(IMAGENET, imagenet))
    return decode.ImageDecoder(dataset, crop=28, resize=32, min_crop_area=0.08)


def decoded(decoder: decode.ImageDecoder, task: decode.DecodeTask) -> np.ndarray:
    pixels = np.empty((len(task.rows), decoder.crop, decoder.crop, 3), np.uint8)
    decoder.decode(task, pixels)
    return pixels


def opened(decoder: decode.ImageDecoder, split: str, row: int) -> Image.Image:
    return Image.open(BytesIO(decoder.splits[split].encoded(row))).convert("RGB")


def test_validation_pixels_are_torchvisions(decoder: decode.ImageDecoder) -> None:
    transforms = torchvision_ops.load().transforms
    reference = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(28)])
    images = decoded(decoder, decode.DecodeTask("val", list(range(6))))
    for row in range(6):
        assert np.array_equal(images[row], reference(opened(decoder, "val", row))), row


def test_training_pixels_are_torchvisions_for_the_same_crop(decoder: decode.ImageDecoder) -> None:
    functional = torchvision_ops.load().transforms.functional
    rows = np.arange(9)
    images = decoded(decoder, decode.DecodeTask("train", rows.tolist(), key=77))
    train = decoder.splits["train"]
    numbers = crops.uniform(77, rows, crops.DRAWS)
    boxes, mirrored = crops.draw(numbers, train.heights, train.widths, min_crop_area=0.08)
    assert mirrored.any() and not mirrored.all()
    for row, (left, top, right, bottom) in enumerate(boxes.tolist()):
        image = opened(decoder, "train", row)
        expected = functional.resized_crop(image, top, left, bottom - top, right - left, [28, 28])
        expected = functional.hflip(expected) if mirrored[row] else expected
        assert np.array_equal(images[row], expected), row


def test_uniform_numbers_are_splitmix64() -> None:
    """The first outputs for the seed 1234567, as the generator's published test vector has them."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    result = crops.uniform(1234567, np.array([0, 1]), 2)
    assert result.ravel().tolist() == [(number >> 11) / 2**53 for number in expected]


@given(
    key=st.integers(0, 2**63 - 1),
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    min_crop_area=st.floats(0.01, 1),
)
def test_a_crop_is_the_first_that_fits(key: int, height: int, width: int, min_crop_area: float) -> None:
    """Against the rule written down once more, for one image."""
    numbers = crops.uniform(key, np.array([3]), crops.DRAWS)
    sides = np.array([height]), np.array([width])
    (box,), _ = crops.draw(numbers, *sides, min_crop_area=min_crop_area)
    left, top, right, bottom = box.tolist()
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    areas, ratios, tops, lefts = numbers[0, :-1].reshape(4, 10)
    for area, ratio, down, across in zip(areas, ratios, tops, lefts, strict=True):
        pixels = (min_crop_area + (1 - min_crop_area) * area) * (height * width)
        shape = np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * ratio)
        w, h = round(float(np.sqrt(pixels * shape))), round(float(np.sqrt(pixels / shape)))
        if 0 < w <= width and 0 < h <= height:
            begin = int(across * (width - w + 1)), int(down * (height - h + 1))
            assert (left, top, right - left, bottom - top) == (*begin, w, h)
            return
    w = round(height * 4 / 3) if width / height > 4 / 3 else width
    h = round(width / (3 / 4)) if width / height < 3 / 4 else height
    assert (left, top, right - left, bottom - top) == ((width - w) // 2, (height - h) // 2, w, h)


def copied(pixels: decode.Pixels) -> tuple[np.ndarray, list[int]]:
    return pixels.images.numpy().copy(), pixels.labels.tolist()


def epoch(decoder: decode.ImageDecoder, processes: int) -> list[Any]:
    """Return images and labels of two epochs and a validation, as a loader gives them."""
    worker = Worker(seed=4)
    loader = decode.Loader(decoder, processes=processes, largest=4)
    given = []
    for number in (0, 1):
        tasks = decode.training_tasks(9, batch=2, micro=2, epoch=number, worker=worker)
        updates = decode.epoch_steps(loader, tasks, per_step=2, on_device=copied)
        assert len(updates) == 2
        given += [pixels for update in updates for pixels in update]
        given += map(copied, loader.batches(decode.validation_tasks(6, batch=4, worker=worker)))
    loader.close()
    return given


def test_batches_are_the_same_whatever_the_number_of_processes(decoder: decode.ImageDecoder) -> None:
    inline = epoch(decoder, 0)
    assert [len(labels) for _, labels in inline] == [2, 2, 2, 2, 4, 2] * 2
    assert not np.array_equal(inline[0][0], inline[6][0]), "another epoch, other images"
    for processes in (1, 2):
        for (images, labels), (expected, answers) in zip(epoch(decoder, processes), inline, strict=True):
            assert np.array_equal(images, expected) and labels == answers


def test_the_same_image_is_cropped_anew_in_every_epoch(decoder: decode.ImageDecoder) -> None:
    worker = Worker(seed=4)
    first, second = (
        decode.training_tasks(9, batch=9, micro=9, epoch=number, worker=worker)[0] for number in (0, 1)
    )
    assert sorted(first.rows) == sorted(second.rows) == list(range(9)) and first.rows != second.rows
    pixels = [decoded(decoder, decode.DecodeTask("train", [5], task.key)) for task in (first, second)]
    assert (pixels[0] != pixels[1]).any()


@pytest.mark.slow
def test_a_loader_process_that_is_killed_is_an_error(decoder: decode.ImageDecoder) -> None:
    loader = decode.Loader(decoder, processes=1, largest=2)
    assert loader._loader is not None and loader._loader._iterator is not None
    (process,) = loader._loader._iterator._workers  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed"):
        list(loader.batches([decode.DecodeTask("val", [0, 1])] * 50))
    loader.close()


def test_closing_the_loader_ends_its_processes(decoder: decode.ImageDecoder) -> None:
    loader = decode.Loader(decoder, processes=2, largest=2)
    assert loader._loader is not None and loader._loader._iterator is not None
    processes = list(loader._loader._iterator._workers)  # type: ignore[attr-defined]
    assert all(process.is_alive() for process in processes)
    loader.close()
    for process in processes:
        process.join(10)
        assert not process.is_alive()


@pytest.mark.slow
def test_a_linear_classifier_on_pixels_learns_next_to_nothing_of_the_shapes(data_root: Path) -> None:
    """The best of many ridge regressions onto the classes; chance is 10 %, the mini goal 80 % and more."""
    config = SimpleNamespace(dataset="shapes", train_folder=None, val_folder=None)
    dataset = data.open_dataset(data.prepare_dataset(config, data_root))
    assert (len(dataset.train), len(dataset.val), dataset.classes) == (2000, 500, shapes.CLASSES)

    def pixels(images: data.EncodedImages) -> np.ndarray:
        rows = range(len(images))
        small = [
            np.asarray(Image.open(BytesIO(images.encoded(row))).resize((12, 12)), np.float64) for row in rows
        ]
        return np.stack(small).reshape(len(images), -1) / 255 - 0.5

    train, test = pixels(dataset.train), pixels(dataset.val)
    targets = np.eye(10)[dataset.train.labels]
    spread, directions = np.linalg.eigh(train.T @ train)
    best = 0.0
    for ridge in (0.1, 1.0, 10.0, 100.0, 1000.0):
        solution = directions @ ((directions.T @ (train.T @ targets)) / (spread + ridge)[:, None])
        best = max(best, ((test @ solution).argmax(axis=1) == dataset.val.labels).mean())
    assert best < 0.3


def rows_of(worker: Worker, count: int) -> list[list[int]]:
    trained = decode.training_tasks(count, batch=3, micro=3, epoch=0, worker=worker)
    validated = decode.validation_tasks(count, batch=4, worker=worker)
    return [[row for task in tasks for row in task.rows] for tasks in (trained, validated)]


def test_ranks_train_and_validate_on_different_images_and_all_are_validated() -> None:
    ranks = [rows_of(Worker(rank=rank, world_size=3, seed=6), 25) for rank in range(3)]
    trained = [row for rank in ranks for row in rank[0]]
    assert len(trained) == len(set(trained)) == 18
    assert [row for rank in ranks for row in rank[1]] == list(range(25))
