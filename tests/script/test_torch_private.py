"""Private names of torch that a new release may take away; other tests run what uses them."""

import inspect

import torch
from torch.nn.parallel import DistributedDataParallel

from mlbench.script import torch_private


def test_a_model_has_the_list_of_its_communication_hooks() -> None:
    source = inspect.getsource(DistributedDataParallel)
    broken = f"torch {torch.__version__} breaks: whether a script has a hook of its own, and saving its model"
    assert "self._comm_hooks.append((hook, state))" in source, broken


def test_a_backward_pass_has_a_number() -> None:
    number = torch_private.backward(torch)
    seen: list[int] = []
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: seen.append(number()))
    weight.sum().backward()
    broken = f"torch {torch.__version__} breaks: blocks that backward computes again are told from models"
    assert torch_private.NO_BACKWARD == number() != seen[0], broken
