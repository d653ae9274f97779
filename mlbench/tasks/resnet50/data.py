"""Encoded images for ResNet-50: ImageNet from class folders, a user's custom folders, or generated shapes."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mlbench.config.errors import UserError
from mlbench.datasets import arrow, own_files
from mlbench.datasets.arrow import DatasetInfo, DatasetWriter, Progress

if TYPE_CHECKING:
    from mlbench.tasks.resnet50.folders import Split

SHARD = 40_000  # images a file, some 4.5 GB of ImageNet: the additional disk space for preparing
SPLITS = ("train", "val")


@dataclass(frozen=True)
class EncodedImages:
    """The encoded images of a split, mapped from its files. Nothing is read until it is requested."""

    shards: list[tuple[np.ndarray, np.ndarray]]  # bytes, and the position in them at which each image begins
    begins: np.ndarray  # row of each shard's first image
    numbers: dict[str, list[np.ndarray]]  # label, height and width (pixels), each shard by shard

    def __len__(self) -> int:
        return sum(map(len, self.numbers["label"]))

    @cached_property
    def labels(self) -> np.ndarray:
        """int64 [n]."""
        return self._joined("label")

    @cached_property
    def heights(self) -> np.ndarray:
        """int64 [n], pixels."""
        return self._joined("height")

    @cached_property
    def widths(self) -> np.ndarray:
        """int64 [n], pixels."""
        return self._joined("width")

    def encoded(self, row: int) -> bytes:
        """Return the file that row `row` was."""
        shard = int(np.searchsorted(self.begins, row, side="right")) - 1
        values, starts = self.shards[shard]
        index = row - self.begins[shard]
        return values[starts[index] : starts[index + 1]].tobytes()

    def _joined(self, name: str) -> np.ndarray:
        return np.concatenate(self.numbers[name]).astype(np.int64)


@dataclass(frozen=True)
class ImageNetSplits:
    """Both splits, and the classes' names in the order of their labels."""

    train: EncodedImages
    val: EncodedImages
    classes: list[str]


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config` names unless it is there, and return its folder.

    `config` has `dataset`, "imagenet" or "shapes", and `train_folder` and `val_folder`, which take its
    place when they are given. ImageNet is looked for in `<root>/downloads/imagenet/{train,val}`.
    """
    if folders := own_files.together(config, ("train_folder", "val_folder")):
        return _prepare_folders(folders[0], folders[1], root, progress=progress)
    if config.dataset == "shapes":
        return arrow.write_dataset(root / "shapes", _write_shapes, manifest=SHAPES, progress=progress)
    arrow.require_known(config.dataset, DATASETS)
    source = root / "downloads" / "imagenet"
    paths = {split: source / split for split in SPLITS}
    write_splits = partial(_write_folders, paths=paths, sizes=IMAGENET_IMAGES, progress=progress)
    return arrow.write_dataset(root / "imagenet", write_splits, manifest=IMAGENET)


def open_dataset(folder: Path) -> ImageNetSplits:
    """Return the splits of a prepared data set. Nothing is read until an image is requested."""
    manifest = arrow.read_manifest(folder)
    train, val = (_open_split(folder, split, manifest) for split in SPLITS)
    return ImageNetSplits(train, val, manifest["classes"])


def _open_split(folder: Path, split: str, manifest: dict[str, Any]) -> EncodedImages:
    names = sorted(name for name in manifest["splits"] if name.startswith(f"{split}-"))
    tables = [arrow.read_split(folder, name) for name in names]
    ends = np.cumsum([table.num_rows for table in tables])
    return EncodedImages(
        shards=[arrow.list_column(table, "image") for table in tables],
        begins=np.concatenate([[0], ends[:-1]]),
        numbers={
            name: [arrow.column(table, name) for table in tables] for name in ("label", "height", "width")
        },
    )


IMAGENET = {
    "name": "imagenet",
    "source": "ImageNet-1k, ILSVRC 2012 (Russakovsky et al. 2015), supplied as class folders",
    "licence": "ImageNet's terms of access: research and education, no redistribution",
}
IMAGENET_CLASSES = 1000
IMAGENET_IMAGES = {"train": 1_281_167, "val": 50_000}  # as the ILSVRC 2012 page counts them
IMAGENET_BYTES = 145_000_000_000  # about. Its archives of images have 137.8 and 6.3 GiB
COUNTS = "{train:,} training and {val:,} validation images in {classes:,} classes"


def _write_folders(
    writer: DatasetWriter,
    *,
    paths: dict[str, Path],
    sizes: dict[str, int] | None,
    progress: Progress | None,
) -> None:
    """Copy class folders into the data set. `sizes` is what the splits must have, None if anything goes."""
    from mlbench.tasks.resnet50 import folders

    splits = {split: folders.scan(path) for split, path in paths.items()}
    _check(splits, sizes=sizes)
    needed = sum(split.size for split in splits.values())
    free = shutil.disk_usage(writer.folder).free
    if needed > free:
        raise UserError(
            f"the images need {needed / 1e9:.1f} GB, {writer.folder.parent} has {free / 1e9:.1f} GB",
            hint="choose another data_root=PATH",
        )
    kinds: Counter[str] = Counter()
    for name, split in splits.items():
        sums: list[bytes] = []
        _write(writer, name, _batches(name, split, kinds, sums, progress or (lambda *_: None)))
        digest = folders.digest(split, sums)
        writer.inputs.append({"file": name, "files": len(sums), "bytes": split.size, "sha256": digest})
    writer.extra |= {"classes": splits["train"].classes, "formats": dict(sorted(kinds.items()))}


def _batches(
    name: str, split: "Split", kinds: Counter[str], sums: list[bytes], progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield the images of a split. Count their formats in `kinds`, and put their SHA-256 into `sums`."""
    from mlbench.tasks.resnet50 import folders

    done = 0
    for images in folders.read(split):
        sums.extend(image.sha256 for image in images)
        kinds.update(image.kind for image in images)
        yield _record_batch(images)
        done += sum(len(image.data) for image in images)
        progress(f"read {name}", done, split.size, "bytes")


def _check(splits: "dict[str, Split]", *, sizes: dict[str, int] | None) -> None:
    train, val = splits["train"], splits["val"]
    different = sorted(set(train.classes) ^ set(val.classes))
    if different:
        raise UserError(
            f"{train.folder} and {val.folder} have different classes, e.g. {different[0]}",
            hint="each class needs a folder of the same name in both",
        )
    if sizes is None:
        return
    counts = {name: len(split.files) for name, split in splits.items()} | {"classes": len(train.classes)}
    wanted = sizes | {"classes": IMAGENET_CLASSES}
    if counts != wanted:
        raise UserError(
            f"{train.folder.parent} is not ImageNet-1k: it has {COUNTS.format(**counts)}, "
            f"not {COUNTS.format(**wanted)}",
            hint="your images: task.train_folder=PATH task.val_folder=PATH division=open",
        )


def _write(writer: DatasetWriter, split: str, batches: Iterator[pa.RecordBatch]) -> None:
    """Write a split as files of about SHARD images, `<split>-0000` and on."""
    for number, first in enumerate(batches):
        limit = -(-SHARD // len(first))
        writer.write(f"{split}-{number:04d}", chain((first,), islice(batches, limit - 1)))


def _record_batch(images: list[Any]) -> pa.RecordBatch:
    data = pa.array([image.data for image in images], pa.large_binary())
    numbers = {
        name: pa.array([getattr(image, name) for image in images], pa.int32())
        for name in ("label", "height", "width")
    }
    return pa.record_batch({"image": data, **numbers})


def _prepare_folders(train: Path, val: Path, root: Path, *, progress: Progress | None) -> Path:
    """Make a data set of a user's class folders, in a separate folder for each state of theirs."""
    state = []
    for folder in (train, val):
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist", hint="give a folder of class folders")
        parts = sorted(path for path in folder.iterdir() if path.is_dir())
        # A folder's time changes with the files that it lists.
        state.append((str(folder.absolute()), [(part.name, part.stat().st_mtime_ns) for part in parts]))
    target = root / own_files.folder_name("folders", state)
    manifest = own_files.MANIFEST | {"name": "folders", "source": "the user's own images"}
    own = {"train": train, "val": val}
    write_splits = partial(_write_folders, paths=own, sizes=None, progress=progress)
    return arrow.write_dataset(target, write_splits, manifest=manifest)


SHAPES = {
    "name": "shapes",
    "source": "generated by mlbench.tasks.resnet50.shapes",
    "licence": "CC0-1.0",
    "parameters": {
        "train_images": 2_000,
        "val_images": 500,
        "smallest": 72,
        "largest": 104,
        "quality": 90,
        "seed": 2012,  # the year of the challenge whose data these replace
    },
}


def _write_shapes(writer: DatasetWriter) -> None:
    from mlbench.tasks.resnet50 import shapes

    form = dict(SHAPES["parameters"])
    counts = {"train": form.pop("train_images"), "val": form.pop("val_images")}
    drawn = shapes.images(sum(counts.values()), **form)
    for split, count in counts.items():
        part = list(islice(drawn, count))
        _write(writer, split, iter([_record_batch(part)]))
    writer.extra["classes"] = shapes.CLASSES


DATASETS = {
    "imagenet": DatasetInfo(
        IMAGENET, download=0, prepared=IMAGENET_BYTES, train_rows=IMAGENET_IMAGES["train"]
    ),
    "shapes": DatasetInfo(  # about: JPEG bytes, which vary a little
        SHAPES, download=0, prepared=9_000_000, train_rows=SHAPES["parameters"]["train_images"]
    ),
}
