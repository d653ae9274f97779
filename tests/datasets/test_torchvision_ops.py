import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torchvision_ops


def run(code: str) -> None:
    """Run `code` in a new process, where torchvision has not been imported yet."""
    code = "import torchvision_ops\nimport torch\n" + textwrap.dedent(code)
    environment = os.environ | {"PYTHONPATH": str(Path(torchvision_ops.__file__).parent)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_transforms_data_sets_and_models_work():
    run(
        """
        torchvision = torchvision_ops.load()
        assert torchvision_ops.load() is torchvision  # a second time does nothing
        from torchvision.transforms import functional
        image = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4)
        assert functional.hflip(image).tolist() == image.flip(-1).tolist()
        assert torchvision.datasets.CIFAR10.tgz_md5
        assert torchvision.models.resnet18().eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)

        boxes = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6]])
        declared = bool(torchvision_ops._declared)
        try:  # without code where they are only declared, with it where they are real
            kept = torch.ops.torchvision.nms(boxes, torch.tensor([0.9, 0.8]), 0.5).tolist()
        except NotImplementedError:
            assert declared
        else:
            assert not declared and kept == [0, 1]
        """
    )


def test_nothing_is_declared_where_the_real_operators_load(monkeypatch):
    monkeypatch.setattr(torchvision_ops, "_operators_load", lambda: True)
    monkeypatch.setattr(torchvision_ops, "_declared", [])
    monkeypatch.setattr(torchvision_ops, "import_module", lambda name: torch)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    assert torchvision_ops.load() is torch
    assert torchvision_ops._declared == []


@pytest.mark.gpu
def test_beside_a_torch_with_cuda_the_real_operators_are_used():
    run(
        """
        torchvision = torchvision_ops.load()
        boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1]], device="cuda")
        scores = torch.tensor([0.9, 0.8], device="cuda")
        assert torchvision.ops.nms(boxes, scores, 0.5).tolist() == [0]
        assert torchvision_ops._declared == []
        """
    )
