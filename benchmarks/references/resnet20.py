"""The CIFAR ResNet: basic blocks in channels-last order, crops by slicing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from references import COMMON, Data, Reference, Words, column, main, speed

VARIANTS = ("layout=channels_first", *COMMON)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, and a projection where the shape changes (He et al. 2015)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride == 2:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the ResNet of `config.depth` layers with cross-entropy under SGD with momentum."""
    width = config.width
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
    layers.append(nn.ReLU(inplace=True))
    channels = width
    for out in (width, 2 * width, 4 * width):
        for _ in range(config.depth // 6):
            layers.append(BasicBlock(channels, out))
            channels = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size))
    layout = torch.contiguous_format if "layout" in overrides else torch.channels_last
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        **speed(overrides),
    )

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0].contiguous(memory_format=layout)), batch[1])

    return Reference(model, optimizer, loss)


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return shuffled images, each cut out of itself padded by 4 pixels."""
    images, labels = column(folder / "train.arrow", "image"), column(folder / "train.arrow", "label")
    pixels = images.flatten(2).float() / 255
    deviation, mean = torch.std_mean(pixels, (0, 2), correction=0)
    scale, shift = ((x.repeat(32 * 32)) for x in (1 / (255 * deviation), mean / deviation))
    padded = F.pad(images, (4,) * 4).permute(0, 2, 3, 1).contiguous()

    def steps(epoch: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(labels), generator=generator)
        count = len(order) // (config.batch_size * size)
        for chosen in order[: count * config.batch_size * size].view(count, size, -1)[:, rank]:
            corners = torch.randint(9, (len(chosen), 2), generator=generator).tolist()
            cut = torch.empty(len(chosen), 32, 32, 3, dtype=torch.uint8)
            for index, (row, (top, left)) in enumerate(zip(chosen.tolist(), corners, strict=True)):
                cut[index] = padded[row, top : top + 32, left : left + 32]
            x = (cut.flatten(1) * scale).sub_(shift).view(cut.shape).permute(0, 3, 1, 2)
            yield [(x, labels[chosen])]

    return Data(10, steps, lambda batch: len(batch[1]))


if __name__ == "__main__":
    main()
