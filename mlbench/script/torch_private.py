"""Private names of torch 2.13 that mlbench uses; tests/script/test_torch_private.py says for what."""

from typing import Any

NO_BACKWARD = -1


def add_comm_hook(model: Any, state: Any, hook: Any) -> bool:
    """Give a DistributedDataParallel a communication hook; return False where it has one of its own.

    Also in a `join(divide_by_initial_world_size=False)`, where DDP divides by the ranks that are left and a
    hook cannot. The model's list of hooks stays empty, for it is copied and saved with the model.
    """
    if model._comm_hooks or not getattr(model, "_divide_by_initial_world_size", True):
        return False
    try:
        model.register_comm_hook(state, hook)
    except (RuntimeError, TypeError, ValueError):  # e.g. one of torch's built-in hooks
        return False
    model._comm_hooks.clear()
    return True


def backward(torch: Any) -> Any:
    """Return what tells the number of the backward pass that this thread is in, NO_BACKWARD without one."""
    return torch._C._current_graph_task_id


def after_backward(torch: Any, call: Any) -> None:
    """Have `call` called when the backward pass has ended that this thread is in."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def tracing(torch: Any) -> Any:
    """Return what tells whether torch.fx calls a model to see what it consists of."""
    return torch.fx._symbolic_trace.is_fx_symbolic_tracing


def before_scripting(torch: Any, prepare: Any) -> None:
    """Have `torch.jit.script` compile what `prepare` returns for each module."""
    torch.nn.Module.__prepare_scriptable__ = lambda module: prepare(module)


def without(kind: type, module: Any) -> Any:
    """Return a module whose hooks of a kind are removed."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
            del hooks[key]
    return module
