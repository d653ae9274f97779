"""ResNet-50 v1.5: bottlenecks whose 3x3 convolution has the stride (He et al. 2015, as trained since 2016).

torchvision's class has the stem's width written into it, so it cannot be narrowed for the mini scale. This
one can. At full width its parameters have torchvision's names, shapes and order, and a test holds it to equal
outputs.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

EXPANSION = 4  # a bottleneck's output has so many times its inner channels (He et al. 2015, figure 5)


class Bottleneck(nn.Module):
    """1x1 to fewer channels, 3x3 with the stride, 1x1 to more, added to the (projected) input."""

    def __init__(self, channels: int, inner: int, *, stride: int) -> None:
        super().__init__()
        out = inner * EXPANSION
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """Images [n, 3, h, w] in, logits [n, classes] out. Four stages after a stem that divides by 4."""

    def __init__(self, *, stage_blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for stage, count in enumerate(stage_blocks):
            inner = width * 2**stage
            layers = []
            for block in range(count):
                layers.append(Bottleneck(channels, inner, stride=2 if stage and not block else 1))
                channels = inner * EXPANSION
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(stage_blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def resnet(*, stage_blocks: Sequence[int], width: int, classes: int) -> ResNet:
    """Return the model with fresh weights, as Goyal et al. 2017 (section 5.1) start large-batch training.

    Convolutions are normal with variance 2 / fan-out (He et al. 2015), the classifier normal with deviation
    0.01. Each residual branch begins at 0, by the scale of its last batch norm.
    """
    model = ResNet(stage_blocks=stage_blocks, width=width, classes=classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return model
