"""ResNet-50 v1.5; a process beside each rank decodes whole batches."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from references import COMMON, Data, Reference, Words, column, main, ragged, speed

VARIANTS = ("layout=channels_first", *COMMON)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1; added to the (projected) input."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != out:
            self.shortcut.append(nn.Conv2d(channels, out, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)).add_(self.shortcut(x)), inplace=True)


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the network with smoothed labels under SGD; batch norms and biases do not decay."""
    layers: list[nn.Module] = [nn.Conv2d(3, config.width, 7, 2, 3, bias=False), nn.BatchNorm2d(config.width)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = config.width
    for stage, blocks in enumerate(config.stage_blocks):
        inner = config.width * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
            channels = 4 * inner
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size))
    layout = torch.contiguous_format if "layout" in overrides else torch.channels_last
    model.to(memory_format=layout)  # type: ignore[call-overload]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, **speed(overrides))
    deviation = 255 * torch.tensor(STD)
    scale = (1 / deviation).repeat(config.crop**2)
    shift = (255 * torch.tensor(MEAN) / deviation).repeat(config.crop**2)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        pixels, labels = batch
        x = (pixels.flatten(1) * scale).sub_(shift).view(pixels.shape).permute(0, 3, 1, 2)
        logits = net(x.contiguous(memory_format=layout))
        return F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing)

    return Reference(model, optimizer, loss)


class Batches(torch.utils.data.Dataset):
    """Random crops of whole batches of rows."""

    def __init__(self, files: list[np.ndarray], labels: Tensor, config: Any) -> None:
        self.files, self.labels, self.config = files, labels, config

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        side, least = self.config.crop, self.config.min_crop_area
        pixels = np.empty((len(rows), side, side, 3), np.uint8)
        for index, row in enumerate(rows):
            image = Image.open(BytesIO(self.files[row].tobytes()))
            area = image.width * image.height * np.random.uniform(least, 1)
            ratio = np.exp(np.random.uniform(np.log(3 / 4), np.log(4 / 3)))
            width, height = min(image.width, (area * ratio) ** 0.5), min(image.height, (area / ratio) ** 0.5)
            left = np.random.uniform(0, image.width - width)
            top = np.random.uniform(0, image.height - height)
            box = (int(left), int(top), int(left + width), int(top + height))
            cut = np.asarray(image.crop(box).resize((side, side), Image.Resampling.BILINEAR))
            pixels[index] = cut[:, ::-1] if np.random.random() < 0.5 else cut
        return torch.from_numpy(pixels), self.labels[rows]


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return batches that one process decodes ahead."""
    shard = folder / "train-0000.arrow"
    labels = column(shard, "label").long()
    dataset = Batches(ragged(shard, "image"), labels, config)
    batch = min(config.batch_size, config.max_global_batch // size)
    own: list[list[int]] = []  # this rank's batches of rows in an epoch
    loader = DataLoader(
        dataset,
        sampler=own,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )

    def steps(epoch: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        count = len(order) // (batch * size)
        own[:] = order[: count * batch * size].view(count, size, -1)[:, rank].tolist()
        yield from ([each] for each in loader)

    return Data(int(labels.max()) + 1, steps, lambda batch: len(batch[1]))


if __name__ == "__main__":
    main()
