"""Private names of torch 2.13 that mlbench uses; tests/script/test_torch_private.py says for what."""

from typing import Any

NO_BACKWARD = -1


def add_comm_hook(model: Any, state: Any, hook: Any) -> bool:
    """Give a DistributedDataParallel a communication hook; return False where it has one of its own.

    The model's list of hooks stays empty, for it is copied and saved with the model.
    """
    if model._comm_hooks:
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
