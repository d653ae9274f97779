"""What both image tasks do with pixels before the network sees them: normalise, and order them in memory."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def memory_format(device: torch.device, precision: str, *, channels: int) -> torch.memory_format:
    """Return the order in which images and weights lie in memory. It changes speed and rounding alone.

    Channels last, but for float32 on a GPU: tensor cores do not compute that, and cuDNN's other kernels are
    made for channels first. And but for a CPU if fewer than 8 `channels` enter a 1x1 convolution with stride
    2: oneDNN 3.12 crashes in the gradient of its weights (its kernel for AVX2, torch 2.13).
    """
    first = precision == "fp32" if device.type == "cuda" else channels < 8
    return torch.contiguous_format if first else torch.channels_last


def normaliser(
    side: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
    memory_format: torch.memory_format = torch.channels_last,
) -> Callable[[Tensor], Tensor]:
    """Return what turns uint8 images [n, side, side, 3] into float32 [n, 3, side, side] of that format.

    Pixels in 0..1 then have the given mean and deviation taken out. The three numbers are written out for
    all pixels: broadcasting along an innermost dimension of three is slow on a CPU.
    """
    deviation = torch.tensor(std, device=device)
    scale = (1 / (255 * deviation)).repeat(side * side)
    shift = (torch.tensor(mean, device=device) / deviation).repeat(side * side)

    def normalise(images: Tensor) -> Tensor:
        pixels = (images.flatten(1) * scale).sub_(shift).view(images.shape).permute(0, 3, 1, 2)
        return pixels.contiguous(memory_format=memory_format)

    return normalise
