"""Task 0: what a message between workers costs. Nothing is trained, every element is checked."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import PositiveInt, TaskConfig

# links: every two machines alone, with what `mlbench cluster check` tells of machines and GPUs
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "links"]
LIBRARIES = ("scipy",)


class Config(TaskConfig):
    """What conf/task/allreduce.yaml holds beyond the fields of every task."""

    sizes: Annotated[int, Field(ge=2)]
    max_elements: PositiveInt
    repeats: PositiveInt
    warmups: Annotated[int, Field(ge=5)]
    collectives: Annotated[tuple[Collective, ...], Field(min_length=1)]
    dtypes: Annotated[tuple[Literal["float32", "float16", "bfloat16"], ...], Field(min_length=1)]


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError for a single worker."""
    if workers < 2:
        raise UserError("allreduce needs at least 2 workers", hint="workers=2")


def prepare(config: Config, root: Path, *, progress: Any = None) -> Path:
    """Return `root`: there is no data to prepare."""
    return root
