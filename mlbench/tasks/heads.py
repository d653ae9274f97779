"""What both tasks with attention ask of their widths."""

from typing import Any

from mlbench.config.errors import UserError


def check(config: Any) -> None:
    """Raise UserError where the attention heads do not share the width `d_model` equally."""
    if config.d_model % config.heads:
        raise UserError(
            f"task.heads={config.heads} does not divide task.d_model={config.d_model}",
            hint="every head has d_model / heads numbers: give a divisor",
        )
