"""What happens to a batch of images before the network sees it. Whole batches, on their device."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

PADDING = 4  # pixels a side (He et al. 2015, section 4.2)


def draw(batch: int, *, flip: bool, generator: Generator) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw for each image the crop's top and left, 0..2 * PADDING, and with `flip` whether it is mirrored."""
    device = generator.device
    offsets = torch.randint(2 * PADDING + 1, (2, batch), generator=generator, device=device)
    mirrored = torch.rand(batch, generator=generator, device=device) < 0.5 if flip else None
    return offsets[0], offsets[1], mirrored


def crop(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor | None) -> Tensor:
    """Cut each image [n, c, h, w] out of itself padded with zeros, at a separate place, and mirror some.

    Returns [n, h, w, c]: one gather of windows whose rows lie together. `top`, `left` and `mirrored` are
    [n], as `draw` returns them.
    """
    n, channels, height, width = images.shape
    padded = F.pad(images.permute(0, 2, 3, 1).contiguous(), (0, 0, PADDING, PADDING, PADDING, PADDING))
    row = padded.stride(1)
    places = 2 * PADDING + 1
    windows = padded.as_strided(
        (n, places, places, height, width * channels), (padded.stride(0), row, channels, row, 1)
    )
    top, left = top.to(images.device), left.to(images.device)
    crops = windows[torch.arange(n, device=images.device), top, left].view(n, height, width, channels)
    if mirrored is None:
        return crops
    return torch.where(mirrored.to(images.device)[:, None, None, None], crops.flip(2), crops)
