import pytest
import torch
import torchvision_ops
from torch import Generator

from mlbench.tasks.resnet20.augment import PADDING, crop, draw

IMAGES = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=Generator().manual_seed(1))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_is_cropped_and_mirrored_as_torchvision_does_image_by_image(device):
    functional = torchvision_ops.load().transforms.functional
    top, left, mirrored = draw(len(IMAGES), flip=True, generator=Generator().manual_seed(2))
    batch = crop(IMAGES.to(device), top, left, mirrored)
    assert mirrored is not None
    for image, result, t, l_, m in zip(
        IMAGES, batch.cpu().permute(0, 3, 1, 2), top, left, mirrored, strict=True
    ):
        expected = functional.crop(functional.pad(image, [PADDING]), int(t), int(l_), 32, 32)
        assert torch.equal(result, functional.hflip(expected) if m else expected)
    assert batch.dtype == torch.uint8 and batch.device.type == device


def test_all_corners_and_both_sides_are_drawn_equally_often():
    top, left, mirrored = draw(81_000, flip=True, generator=Generator().manual_seed(3))
    counts = torch.bincount(top * 9 + left, minlength=81)
    assert len(counts) == 81 and abs(counts - 1000).max() < 150  # deviation 31
    assert mirrored is not None and abs(mirrored.float().mean() - 0.5) < 0.01
    assert draw(1000, flip=False, generator=Generator().manual_seed(3))[2] is None
