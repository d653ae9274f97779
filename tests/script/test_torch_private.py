"""Private names of torch that a new release may take away; other tests run what uses them."""

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch.jit import _recursive, _script
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DDPJoinHook

from mlbench.script import torch_private


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


def test_a_backward_pass_has_a_number() -> None:
    number = torch_private.backward(torch)
    seen: list[int] = []
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: seen.append(number()))
    weight.sum().backward()
    broken = f"torch {torch.__version__} breaks: blocks that backward computes again are told from models"
    assert torch_private.NO_BACKWARD == number() != seen[0], broken


def test_the_end_of_a_backward_pass_is_told() -> None:
    seen: list[str] = []
    first, last = (torch.ones(1, requires_grad=True) for _ in range(2))
    first.register_post_accumulate_grad_hook(lambda _: seen.append("a gradient"))
    (output := first * last).register_hook(
        lambda _: torch_private.after_backward(torch, lambda: seen.append("end"))
    )
    output.sum().backward()
    assert seen == ["a gradient", "end"], f"torch {torch.__version__} breaks: where backward ends"


def test_a_model_is_prepared_before_its_hooks_are_compiled() -> None:
    broken = f"torch {torch.__version__} breaks: torch.jit.script of a model that is measured"
    source = inspect.getsource(_script.call_prepare_scriptable_func_impl)
    assert "obj.__prepare_scriptable__()" in source, broken
    source = inspect.getsource(_recursive.get_hook_stubs)
    assert "_forward_pre_hooks.values()" in source and "_forward_hooks.values()" in source, broken


def test_fx_tells_that_it_traces_a_model() -> None:
    tracing = torch_private.tracing(torch)
    seen: list[bool] = []
    torch.fx.symbolic_trace(lambda rows: seen.append(tracing()))
    assert [*seen, tracing()] == [True, False], f"torch {torch.__version__} breaks: models that fx traces"
