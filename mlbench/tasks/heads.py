"""Check the widths of both tasks with attention."""

from typing import Any

from mlbench.config.errors import UserError


def check(config: Any) -> None:
    """Raise UserError if the width `d_model` is not a multiple of the attention heads."""
    if config.d_model % config.heads:
        raise UserError(
            f"task.heads={config.heads} does not divide task.d_model={config.d_model}",
            hint="every head has d_model / heads numbers: give a divisor",
        )
