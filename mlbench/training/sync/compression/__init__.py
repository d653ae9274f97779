"""Gradients compressed before they travel, with a memory of what was lost."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from mlbench.config.errors import UserError
from mlbench.config.experiment import PositiveFloat, PositiveInt, Precision, SyncConfig

Memory = Literal["none", "error_feedback", "ef21"]
# What each method can remember. The first is the default.
MEMORIES: dict[str, tuple[Memory, ...]] = {
    "fp16": ("none", "error_feedback", "ef21"),
    "bf16": ("none", "error_feedback", "ef21"),
    "topk": ("error_feedback", "ef21", "none"),
    "randomk": ("error_feedback", "ef21", "none"),
    "sign": ("error_feedback", "ef21", "none"),
    "sign_majority": ("none",),
    "qsgd": ("none",),
    "powersgd": ("error_feedback", "none"),
}
# Methods that lose an overflow, or how large a gradient is.
UNSCALED = ("randomk", "sign_majority", "powersgd")


class Config(SyncConfig):
    """What conf/sync/compression.yaml holds."""

    # What was lost, and how many draws were made, is local to each worker.
    restarts: ClassVar[bool] = False

    method: Literal["fp16", "bf16", "topk", "randomk", "sign", "sign_majority", "qsgd", "powersgd"]
    memory: Memory | None
    density: Annotated[float, Field(gt=0, le=1)]
    rank: PositiveInt
    levels: Annotated[int, Field(ge=1, le=127)]
    block: PositiveInt
    bucket_cap_mb: PositiveFloat

    @model_validator(mode="after")
    def _memory_fits_method(self) -> "Config":
        memories = MEMORIES[self.method]
        if self.memory is not None and self.memory not in memories:
            raise ValueError(f"method={self.method} has memory={' or '.join(memories)}, not {self.memory}")
        return self

    @property
    def feedback(self) -> Memory:
        """The memory of the run: the method's default unless one was chosen."""
        return self.memory or MEMORIES[self.method][0]

    def check(self, *, workers: int, precision: Precision) -> None:
        """Raise UserError if gradients carry a loss scale that the method does not."""
        if precision == "fp16" and (self.feedback != "none" or self.method in UNSCALED):
            raise UserError(
                f"sync.method={self.method} sync.memory={self.feedback}: fp16 scales gradients by a "
                "changing factor, and they overflow. This method carries over neither",
                hint="task.precision=bf16, or a method with memory=none: fp16, bf16, topk, sign, qsgd",
            )
