"""Residual networks for small images: 6n+2 layers in three stages of n blocks (He et al. 2015)."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Variant = Literal["v1", "v2"]
Shortcut = Literal["projection", "identity"]


def resnet(depth: int, *, variant: Variant, shortcut: Shortcut, width: int, classes: int = 10) -> nn.Module:
    """Return a network from images (batch, 3, height, width) to logits (batch, `classes`).

    `depth` is 6n+2: 20, 32, 44, 56. The stages have 1, 2 and 4 times `width` channels. The second and third
    halve the image. `variant` v1 is the post-activation network of "Deep residual learning for image
    recognition" (He et al. 2015, section 4.2), v2 the pre-activation network of "Identity mappings in deep
    residual networks" (He et al. 2016). If a stage changes the shape, `shortcut` is a 1x1 convolution with
    batch norm (`projection`: 272,474 parameters at depth 20 and width 16) or the paper's option A without
    parameters (`identity`: 269,722).
    """
    assert depth % 6 == 2 and depth > 2, f"depth {depth} is not 6n+2"
    layers: list[nn.Module] = [_conv(3, width)]
    channels = width
    for stage in range(3):
        for position in range(depth // 6):
            out, stride = width << stage, 2 if stage and not position else 1
            if position == 0 and (stage == 0 or variant == "v2"):
                # In v2 a stage's first block activates before the two paths part (He et al. 2016).
                layers.append(_norm_relu(channels))
            bypass = _shortcut(channels, out, kind=shortcut)
            if variant == "v1":
                branch = _post_activation(channels, out, stride=stride)
                layers.append(ResidualBlock(branch, bypass, activation=nn.ReLU(inplace=True)))
            else:
                branch = _pre_activation(channels, out, stride=stride, activated=position == 0)
                layers.append(ResidualBlock(branch, bypass, activation=nn.Identity()))
            channels = out
    if variant == "v2":
        layers.append(_norm_relu(channels))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    for layer in layers:
        layer.apply(_initialise)
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """A branch of two convolutions and its shortcut, added."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, *, activation: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.branch(x) + self.shortcut(x))


class ZeroPadded(nn.Module):
    """Every second row and column, and zeros as the `extra` new channels (option A)."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))


def _post_activation(channels: int, out: int, *, stride: int) -> nn.Sequential:
    first = _conv(channels, out, stride=stride)
    return nn.Sequential(first, _norm_relu(out), _conv(out, out), nn.BatchNorm2d(out))


def _pre_activation(channels: int, out: int, *, stride: int, activated: bool) -> nn.Sequential:
    start = nn.Identity() if activated else _norm_relu(channels)
    first = _conv(channels, out, stride=stride)
    return nn.Sequential(start, first, _norm_relu(out), _conv(out, out))


def _shortcut(channels: int, out: int, *, kind: Shortcut) -> nn.Module:
    if channels == out:
        return nn.Identity()
    if kind == "identity":
        return ZeroPadded(out - channels)
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=2, bias=False), nn.BatchNorm2d(out))


def _conv(channels: int, out: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)


def _norm_relu(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def _initialise(module: nn.Module) -> None:
    # He et al. 2015, "Delving deep into rectifiers", the form that keeps the gradient's variance.
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
