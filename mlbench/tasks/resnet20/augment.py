"""What happens to a batch of images before the network sees it; whole batches, on their device."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

PADDING = 4  # pixels a side (He et al. 2015, section 4.2)


def draw(batch: int, *, flip: bool, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw for each image the crop's top and left, 0..2 * PADDING, and whether it is mirrored."""
    device = generator.device
    offsets = torch.randint(2 * PADDING + 1, (2, batch), generator=generator, device=device)
    mirrored = torch.zeros(batch, dtype=torch.bool, device=device)
    if flip:
        mirrored = torch.rand(batch, generator=generator, device=device) < 0.5
    return offsets[0], offsets[1], mirrored


def crop(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Cut each image [n, c, h, w] out of itself padded with zeros, at its own place, and mirror some.

    One gather for the batch. `top`, `left` and `mirrored` are [n], as `draw` returns them.
    """
    n, channels, height, width = images.shape
    top, left, mirrored = (each.to(images.device) for each in (top, left, mirrored))
    padded = F.pad(images, (PADDING,) * 4)
    across = torch.arange(width, device=images.device)
    across = torch.where(mirrored[:, None], width - 1 - across, across) + left[:, None]
    down = torch.arange(height, device=images.device) + top[:, None]
    each = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[each, channel, down[:, None, :, None], across[:, None, None, :]]


def normalise(images: Tensor, *, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 images [n, 3, h, w] as float32 with mean 0 and deviation 1 a channel."""
    scale = 1 / (255 * std.to(images.device))
    shift = mean.to(images.device) / std.to(images.device)
    return images.float() * scale[:, None, None] - shift[:, None, None]
