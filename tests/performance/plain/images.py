"""Residual networks for images of 32 and of 224 pixels."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torchvision_ops
from torch import nn

from plain import Plain

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, and a projection where the shape changes (He et al. 2015)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.way_round = nn.Sequential()
        if stride == 2:
            self.way_round = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.way_round(x), inplace=True)


def small(config: Any) -> Plain:
    """Return the CIFAR ResNet of `config.depth` layers with cross-entropy under SGD with momentum."""
    width = config.width
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    channels = width
    for out in (width, 2 * width, 4 * width):
        for _ in range(config.depth // 6):
            layers.append(BasicBlock(channels, out))
            channels = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True,
    )

    def step(batches: Sequence[Any]) -> torch.Tensor:
        ((images, labels),) = batches
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Plain(model, optimizer, step)


def large(config: Any, *, classes: int) -> Plain:
    """Return torchvision's ResNet-50, or its bottlenecks narrowed, with smoothed labels under SGD."""
    model = resnet50(config, classes=classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    mean, std = (torch.tensor(each).view(3, 1, 1) * 255 for each in (MEAN, STD))

    def step(batches: Sequence[Any]) -> torch.Tensor:
        images = sum(len(labels) for _, labels in batches)
        total = torch.zeros(())
        for pixels, labels in batches:
            x = (pixels.permute(0, 3, 1, 2) - mean) / std
            loss = (
                F.cross_entropy(model(x), labels, label_smoothing=config.label_smoothing, reduction="sum")
                / images
            )
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Plain(model, optimizer, step)


def resnet50(config: Any, *, classes: int) -> nn.Module:
    """Return `torchvision.models.resnet50`; what it cannot be built with is set up from its parts."""
    torchvision_ops.load()
    from torchvision.models import resnet

    if config.width == 64 and config.stage_blocks == (3, 4, 6, 3):
        return resnet.resnet50(num_classes=classes)
    model = resnet.ResNet(resnet.Bottleneck, list(config.stage_blocks), num_classes=classes)
    model.inplanes = config.width
    model.conv1 = nn.Conv2d(3, config.width, 7, stride=2, padding=3, bias=False)
    model.bn1 = nn.BatchNorm2d(config.width)
    for stage, blocks in enumerate(config.stage_blocks):
        layer = model._make_layer(
            resnet.Bottleneck, config.width * 2**stage, blocks, stride=2 if stage else 1
        )
        setattr(model, f"layer{stage + 1}", layer)
    model.fc = nn.Linear(model.inplanes, classes)
    return model
