"""Private names of torch that a new release may take away; other tests run what uses them."""

import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DDPJoinHook

from mlbench.probe import torch_private


def test_a_model_has_the_list_of_its_communication_hooks() -> None:
    source = inspect.getsource(DistributedDataParallel)
    broken = f"torch {torch.__version__} breaks: whether a script has a hook of its own, and saving its model"
    assert "self._comm_hooks.append((hook, state))" in source, broken


def test_a_model_that_divides_by_the_ranks_that_are_left_gets_no_hook() -> None:
    source = inspect.getsource(_DDPJoinHook)
    broken = f"torch {torch.__version__} breaks: averages of join(divide_by_initial_world_size=False)"
    assert "ddp._divide_by_initial_world_size = divide_by_initial_world_size" in source, broken
    hooks: list[Any] = []
    for divides in (False, True):
        model = SimpleNamespace(
            _comm_hooks=[],
            _divide_by_initial_world_size=divides,
            register_comm_hook=lambda state, hook: hooks.append(hook),
        )
        assert torch_private.add_comm_hook(model, None, print) is divides
    assert hooks == [print]


def test_a_module_calls_a_hook_that_it_is_given_for_one_call() -> None:
    broken = f"torch {torch.__version__} breaks: forward passes of models"
    module, seen = torch.nn.Linear(2, 2), list[Any]()
    torch_private.give_hook(module, -7, lambda *arguments: seen.append(arguments[2]))
    module(input=torch.ones(1, 2))
    with pytest.raises(RuntimeError):
        module(input=torch.ones(1, 3))
    assert [arguments["input"].shape[1] for arguments in seen] == [2, 3], broken
    torch_private.take_hook(module, -7)
    module(torch.ones(1, 2))
    assert len(seen) == 2 and b"lambda" not in pickle.dumps(module), broken


def test_fx_tells_that_it_traces_a_model() -> None:
    tracing = torch_private.tracing(torch)
    seen: list[bool] = []
    torch.fx.symbolic_trace(lambda rows: seen.append(tracing()))
    assert [*seen, tracing()] == [True, False], f"torch {torch.__version__} breaks: models that fx traces"


def test_torch_compile_calls_what_watches_it() -> None:
    from torch._dynamo.callback import callback_handler

    calls: list[str] = []

    def begin(_: object) -> None:
        calls.append("begin")

    def end(_: object) -> None:
        calls.append("end")

    assert torch_private.watch_compiling(begin, end)
    try:
        double = torch.compile(lambda rows: 2 * rows, backend="eager")
        assert double(torch.ones(2)).tolist() == [2.0, 2.0] == double(torch.ones(2)).tolist()
    finally:
        callback_handler.remove_start_callback(begin)
        callback_handler.remove_end_callback(end)
    assert calls == ["begin", "end"]
