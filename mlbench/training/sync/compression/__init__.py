"""Gradients compressed before they travel, with a memory of what was lost."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlbench.experiment.config import PositiveFloat, PositiveInt, Sync

Memory = Literal["none", "error_feedback", "ef21"]
# What each method can remember; the first is the default.
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


class Config(Sync):
    """What conf/sync/compression.yaml holds."""

    method: Literal["fp16", "bf16", "topk", "randomk", "sign", "sign_majority", "qsgd", "powersgd"]
    memory: Memory | None
    density: Annotated[float, Field(gt=0, le=1)]
    rank: PositiveInt
    levels: Annotated[int, Field(ge=1, le=127)]
    block: PositiveInt
    bucket_cap_mb: PositiveFloat

    @model_validator(mode="after")
    def _memory_fits_method(self) -> "Config":
        known = MEMORIES[self.method]
        if self.memory is not None and self.memory not in known:
            raise ValueError(f"method={self.method} has memory={' or '.join(known)}, not {self.memory}")
        return self

    @property
    def feedback(self) -> Memory:
        """The memory of the run: the method's own unless one was chosen."""
        return self.memory or MEMORIES[self.method][0]

    @property
    def restarts(self) -> bool:
        """False: what was lost, and how many draws were made, is each worker's own."""
        return False
