"""Private names of torch 2.1 to 2.14 that the probe uses; tests/probe/test_torch_private.py says for what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

# Methods of torch.distributed.ProcessGroup; old and new names have one collective's work each.
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "reduce_scatter", "alltoall"),
    *("_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("alltoall_base", "all_to_all_single", "barrier", "broadcast", "reduce", "gather", "scatter"),
)
# What only code has that torch.compile generates for products, or around a Triton kernel of the script.
GENERATED = ("triton_heuristics.template(", ".user_autotune(", "micro_gemm", "cutlass", "flex_attention")
SYNC_BUFFERS = "_sync_module_buffers"  # by which DistributedDataParallel sends rank 0's before a forward pass
OF_SOME = ("broadcast", "reduce", "gather", "scatter")  # in which not every rank waits for all others


def add_comm_hook(model: Any, state: Any, hook: Any) -> bool:
    """Give a DistributedDataParallel a communication hook; return False where it has one of its own.

    Also in a `join(divide_by_initial_world_size=False)`, where DDP divides by the ranks that are left and a
    hook cannot. The model's list of hooks stays empty, for it is copied and saved with the model.
    """
    hooks = getattr(model, "_comm_hooks", [])  # torch 2.2 has none
    if hooks or not getattr(model, "_divide_by_initial_world_size", True):
        return False
    try:
        model.register_comm_hook(state, hook)
    except (RuntimeError, TypeError, ValueError):  # e.g. one of torch's built-in hooks
        return False
    hooks.clear()
    return True


def set_hook(register: Any, hook: Any, key: int) -> Any:
    """Set a global hook under a key of its own; return all hooks of its kind, by key.

    It takes none of the numbers that the script's own hooks get, which are saved with its models.
    """
    from torch.utils.hooks import RemovableHandle

    number = RemovableHandle.next_id
    handle = register(hook)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    RemovableHandle.next_id = number
    hooks[key] = hook
    return hooks


def give_hook(module: Any, key: int, hook: Any) -> None:
    """Give a module a forward hook, which gets keywords, and is called also where the forward pass fails."""
    module._forward_hooks[key] = hook
    module._forward_hooks_with_kwargs[key] = module._forward_hooks_always_called[key] = True


def take_hook(module: Any, key: int) -> None:
    """Take that hook away."""
    module._forward_hooks.pop(key, None)
    module._forward_hooks_with_kwargs.pop(key, None)
    module._forward_hooks_always_called.pop(key, None)


def compiling(torch: Any) -> Callable[[], bool]:
    """Return what says whether torch.compile reads the script; never, where torch does not say it."""
    return getattr(torch.compiler, "is_compiling", _never)  # from torch 2.3 on


def run_as_written(torch: Any, modules: Iterable[Any]) -> None:
    """Have torch.compile not compile the functions of some modules, which it may still inline in others."""
    frames = torch._C._dynamo.eval_frame
    skip: Any = getattr(frames, "skip_code", None)
    if skip is None:  # from torch 2.6 on
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)

        def skip_code(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

        skip = skip_code

    files = {module.__file__ for module in modules}
    codes = [each.__code__ for module in modules for each in _functions(module)]
    while codes:
        code = codes.pop()
        if code.co_filename in files:
            skip(code)
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _functions(module: Any) -> Iterable[Any]:
    for value in vars(module).values():
        parts = vars(value).values() if isinstance(value, type) else (value,)
        yield from (
            each for part in parts if isinstance(each := getattr(part, "__func__", part), FunctionType)
        )


def watch_compiling(begin: Callable[..., object], end: Callable[..., object]) -> bool:
    """Have torch.compile call two functions around what it makes; return whether this torch can, now.

    Its part of torch is imported by the script, or never.
    """
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is None:  # from torch 2.3 on
        return False
    handler.register_start_callback(begin)
    handler.register_end_callback(end)
    return True


def generated_products() -> str | None:
    """Return what torch.compile has generated that multiplies matrices in no operator of torch."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    modules: Any = getattr(cache, "modules", None) or getattr(cache, "cache", {})
    for module in [*(modules.values() if isinstance(modules, dict) else modules)]:
        with open(module.__file__) as file:
            text = file.read()
        if any(mark in text for mark in GENERATED):
            return "kernels that torch.compile generated from its templates"
    return None


def drawing(torch: Any) -> Callable[[], bool]:
    """Return what says whether torch.jit traces a model, in a tenth of the time of torch.jit.is_tracing."""
    return getattr(torch._C, "_is_tracing", torch.jit.is_tracing)


def tracing(torch: Any) -> Callable[[], bool]:
    """Return what says whether torch.fx calls a model to see what it consists of."""
    trace = torch.fx._symbolic_trace
    return getattr(trace, "is_fx_symbolic_tracing", None) or getattr(trace, "is_fx_tracing", _never)


def _never() -> bool:
    return False
