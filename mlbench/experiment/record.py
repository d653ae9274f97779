"""All that one run measured, with what is needed to trust it and to make it again."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

STATUSES = (
    "goal_reached",
    "goal_not_reached",
    "completed",  # nothing was asked of it: goal=none, or a task without goals
    "diverged",
    "failed",
    "interrupted",
)
# Fields of an experiment that mlbench 0.1 named otherwise; those of single tasks are left as they were.
RENAMED = {
    "instrument": "phase_timing",
    "rerun": "force",
    "task.unit": "metric_unit",
    "task.budget_s": "time_budget_s",
}
FINISHED = ("goal_reached", "goal_not_reached", "completed", "diverged")


class Spread(BaseModel):
    """One quantity over the ranks."""

    model_config = ConfigDict(frozen=True)

    min: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of one value a rank."""
        return cls(min=min(values), mean=math.fsum(values) / len(values), max=max(values))


class Record(BaseModel):
    """One run. Durations are seconds; times over ranks are the slowest rank's unless a Spread."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = "mlbench"  # "mlbench-published": read from a results archive of the original MLBench
    run_id: str
    key: str
    mlbench: str  # version
    command: str
    experiment: dict[str, Any]
    deviations: list[dict[str, Any]]
    official: bool
    status: Annotated[str, Field(pattern=f"^({'|'.join(STATUSES)})$")]
    goal: str | None
    error: str | None
    seed: int
    workers: int
    oversubscribed: bool
    caveats: list[str]  # why this number is not what it seems, one sentence each
    warnings: list[str]  # what may have made the machine noisy
    started_at: str
    ended_at: str
    wall: float
    startup: dict[str, float]
    startup_time: float | None
    time_to_accuracy: float | None
    accuracy_after_time: float | None
    best: float | None  # best validation value of the goal's metric
    train_time: float | None
    epochs: float
    steps: int
    samples: int
    unit: str
    samples_per_s: float | None
    samples_per_s_per_worker: float | None
    phases: dict[str, Spread]
    overlapped_communication: Spread | None
    exposed_communication_share: float | None
    outside: dict[str, Spread]
    step_s: dict[str, float]  # p50, p95, p99 over batches and ranks
    flops_per_sample: float | None
    gradient_bytes: int | None = None  # of one worker and update; None: nothing was trained
    model_flops_per_s: float | None
    mfu: float | None
    cost: dict[str, Any] | None
    validations: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    restarts: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    software: dict[str, Any]
    data_manifest: str | None  # SHA-256 of the prepared data set's manifest
    ray: dict[str, Any]
    table: list[dict[str, Any]]

    @field_validator("experiment", mode="before")
    @classmethod
    def _names_of_today(cls, experiment: Any) -> Any:
        """Read fields under the names that mlbench 0.1 gave them."""
        if not isinstance(experiment, dict) or not isinstance(experiment.get("task"), dict):
            return experiment
        task = {RENAMED.get(f"task.{name}", name): value for name, value in experiment["task"].items()}
        return {RENAMED.get(name, name): value for name, value in (experiment | {"task": task}).items()}

    def save(self, folder: Path) -> None:
        """Write record.json and record.parquet (one row; nested columns)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = {
            name: json.dumps(value) if isinstance(value, (dict, list)) else value
            for name, value in self.model_dump(mode="json").items()
        }
        pq.write_table(pa.Table.from_pylist([row]), folder / "record.parquet")
        whole = folder / "record.json.part"  # who finds record.json finds all of it
        whole.write_text(self.model_dump_json(indent=2))
        whole.replace(folder / "record.json")


def load(path: Path) -> Record:
    """Read a record.json."""
    return Record.model_validate_json(path.read_text())


def find(output_root: Path, *, key: str, seed: int) -> list[Record]:
    """Return the records of runs measured here with this key and seed, oldest first.

    A run folder's name ends in the seed. Runs that were imported do not count: they are of other machines.
    """
    found = []
    for path in sorted(output_root.glob(f"*-{seed:x}/record.json")):
        try:
            one = load(path)
        except (OSError, ValueError):
            continue  # damaged, or another version's, which has another key
        if one.key == key and one.seed == seed and "imported" not in one.software:
            found.append(one)
    return found
