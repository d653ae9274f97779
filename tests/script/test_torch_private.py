"""Private names of torch that a new release may take away; other tests run what uses them."""

import inspect

import torch
from torch.nn.parallel import DistributedDataParallel


def test_a_model_has_the_list_of_its_communication_hooks() -> None:
    source = inspect.getsource(DistributedDataParallel)
    broken = f"torch {torch.__version__} breaks: whether a script has a hook of its own, and saving its model"
    assert "self._comm_hooks.append((hook, state))" in source, broken
