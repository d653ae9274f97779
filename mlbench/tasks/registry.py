"""Tasks, found by name: `task=NAME` imports `mlbench.tasks.NAME`, or what an installed package calls NAME.

A task is a module with three names, and `conf/task/NAME.yaml` with the values of its closed division:

- `Config`: a frozen `TaskConfig` with the task's fields. It has no defaults, as the YAML has them all.
- `prepare(config, root, *, progress=None) -> Path`: makes the data set below `root` once and returns its
  folder. Not timed. `progress(step, done, total, unit)` shows a person how far it is (datasets/arrow.py).

It may have a fourth, `check(config, *, workers, folder)`, which raises UserError for what cannot run. The
driver calls it before any worker starts. A fifth, `LIBRARIES`, lists the optional libraries that the workers
import (mlbench/config/libraries.py).

A module next to it, `torch`, has one more, which may import torch:

- `build(config, worker) -> TrainingSetup`: what `mlbench.training.loop.train` trains. Or, of a task that does
  not train, `measure(config, worker) -> TaskResult`.

A task whose result is a table may have a module `report`. The tables of others are shown row by row:

- `charts(tables, *, about, network_gbit_per_s=None) -> list[altair.LayerChart]` (mlbench.analysis.marks) and
  `summary(tables) -> list[str]`. `tables` has rows by the label of the runs that measured them.
- `terminal(table, *, network_gbit_per_s=None)`, which rich can print.

The module itself must import quickly (no torch), because the driver only needs `Config` and `prepare`.
"""

import json
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlbench.config import libraries, plugins
from mlbench.config.errors import DataError, UserError

if TYPE_CHECKING:
    from mlbench.training.worker import Worker

NO_DATASET = "none"  # of tasks that generate what they need


def load(name: str) -> ModuleType:
    """Import the task `name`. Raise UserError if there is none or it breaks the contract."""
    return plugins.load("task", name)


def build(config: Any, worker: "Worker", framework: str = plugins.TORCH) -> Any:
    """Return what the loop trains for the task that `config` configures, of torch a TrainingSetup."""
    return plugins.implementation("task", config.name, framework).build(config, worker)


def require_libraries(name: str) -> None:
    """Raise UserError if a library that the task's workers import is not installed."""
    libraries.require(*getattr(load(name), "LIBRARIES", ()), user=f"task={name}")


def own_data(task: Any) -> bool:
    """Return whether a user's custom files take the place of the task's data set."""
    return any(getattr(task, field) for field in task.OWN_DATA)


def needs_preparation(task: Any, scale: str) -> bool:
    """Return whether a run reads an official data set, which is prepared once and beforehand."""
    return scale == "official" and not own_data(task) and task.dataset != NO_DATASET


def require_data(task: Any, scale: str, root: Path) -> None:
    """Raise UserError if the task's official data set is not prepared below `root`, which can take hours."""
    if needs_preparation(task, scale) and not (root / task.dataset / "manifest.json").exists():
        raise DataError(
            f"data set {task.dataset!r} is not prepared in {root}",
            hint=f"mlbench data prepare task={task.name} scale=official data_root={root}",
        )


def check(task: Any, *, workers: int, folder: Path | None) -> None:
    """Raise UserError if the task cannot run with so many workers, or on the prepared data in `folder`.

    The driver calls it before any worker starts. `folder` is None if it has no data or cannot look at it.
    """
    function = getattr(load(task.name), "check", None)
    if function is not None:
        function(task, workers=workers, folder=folder)
    info = None if own_data(task) else (datasets(task.name) or {}).get(task.dataset)
    if info is not None and info.train_rows is not None and task.global_batch(workers) > info.train_rows:
        raise UserError(
            f"a step of {workers} workers needs {task.global_batch(workers):,} rows, "
            f"{task.dataset} has {info.train_rows:,}",
            hint="use fewer workers or a smaller task.batch_size",
        )


def mlperf(name: str) -> ModuleType | None:
    """Return the module with MLPerf's names of hyper-parameters, or None if MLPerf has no such task."""
    return part(name, "mlperf")


def reference_convergence(name: str) -> dict[str, Any]:
    """Return the task's reference convergence points in MLPerf's format (rcp.json), empty without any."""
    path = Path(load(name).__file__ or "").parent / "rcp.json"
    return json.loads(path.read_text()) if path.exists() else {}


@cache
def expected(name: str) -> dict[str, Any] | None:
    """Return about how many `seconds` a mini run on its `dataset` takes, and the `source`, or None."""
    return plugins.values(Path(__file__).parent / "expected.yaml").get(name)


def report(name: str) -> ModuleType | None:
    """Return the module that presents the task's table, or None if the task has none."""
    return part(name, "report")


def datasets(name: str) -> dict[str, Any] | None:
    """Return the data sets in the task's module `data` by name. None for a task without data."""
    data = part(name, "data")
    return getattr(data, "DATASETS", {}) if data else None


def part(name: str, module: str) -> ModuleType | None:
    """Import a further module of the task, or return None if it has none of that name."""
    path = f"{load(name).__name__}.{module}"
    return import_module(path) if find_spec(path) else None
