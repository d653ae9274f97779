import pytest
import torch
import torchvision_ops

from mlbench.tasks.pixels import memory_format, normaliser

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("device", DEVICES)
def test_normalising_is_what_torchvision_does_in_either_layout(device, layout) -> None:
    functional = torchvision_ops.load().transforms.functional
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8)
    expected = functional.normalize(images.permute(0, 3, 1, 2).float() / 255, mean, std)
    where = torch.device(device)
    result = normaliser(8, mean=mean, std=std, device=where, memory_format=layout)(images.to(where))
    assert torch.allclose(result.cpu(), expected, atol=1e-6)
    assert result.is_contiguous(memory_format=layout) and result.device.type == device


def test_only_float32_on_a_gpu_and_narrow_networks_on_a_cpu_have_their_channels_first() -> None:
    formats = {
        (device, precision, channels): memory_format(torch.device(device), precision, channels=channels)
        for device in ("cpu", "cuda")
        for precision in ("fp32", "tf32", "bf16", "fp16")
        for channels in (7, 8)
    }
    first = {key for key, layout in formats.items() if layout == torch.contiguous_format}
    gpu = {("cuda", "fp32", 7), ("cuda", "fp32", 8)}
    assert first == gpu | {("cpu", precision, 7) for precision in ("fp32", "tf32", "bf16", "fp16")}
    assert set(formats.values()) == {torch.contiguous_format, torch.channels_last}
