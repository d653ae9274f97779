"""Judge a model or log of a task, made in any framework, by the task's validation and goal."""

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbench.config.errors import UserError, first_line
from mlbench.config.experiment import Experiment, TrainingConfig, bounds
from mlbench.config.goal import better
from mlbench.tasks import registry

if TYPE_CHECKING:
    import torch

WRAPPERS = ("model", "state_dict", "model_state_dict")  # keys below which trainers save the weights
PREFIX, COMPILED = "module.", "_orig_mod."  # that DistributedDataParallel and torch.compile put into names


@dataclass(frozen=True)
class Score:
    """What a foreign model or log is worth.

    - metrics: of the task's validation, or the best value of a log. reached: whether the goal is. None
      without one. seconds: time to it (s) from the log. None for a model, or if it was missed.
    """

    metrics: dict[str, float]
    reached: bool | None
    seconds: float | None = None


def model(experiment: Experiment, path: Path) -> Score:
    """Return the score of a file of weights: safetensors, or what `torch.save` wrote of plain tensors.

    The names are those of the task's model. Nothing in the file is executed. Raises UserError for a file that
    cannot be read, for weights that are not the model's, and if data are not prepared.
    """
    import torch

    from mlbench.training.worker import Worker

    if not isinstance(experiment.task, TrainingConfig):
        raise UserError(f"task={experiment.task.name} trains no model")
    weights = _weights(path)
    registry.require_data(experiment.task, experiment.scale, experiment.data_root)
    registry.load(experiment.task.name).prepare(experiment.task, experiment.data_root)
    device = torch.device(experiment.backend.device)
    worker = Worker(device=device, data_root=experiment.data_root, seed=experiment.seed or 0)
    setup = registry.build(experiment.task, worker)
    try:
        _fill(setup.model, weights, path)
        setup.model.eval()
        data = setup.load()
        with torch.no_grad():
            metrics = setup.validate(setup.model, data)
    finally:
        setup.close()
    goal = experiment.target
    return Score(metrics, None if goal is None else goal.reached(metrics[goal.metric]))


def log(experiment: Experiment, path: Path) -> Score:
    """Return the score of JSON lines with `time` (s from the first access to data) and the task's metric.

    Raises UserError for a line that is none, for a time that goes back, and for a metric in another unit.
    """
    task, goal = experiment.task, experiment.target
    low, high = bounds(task.metric, task.metric_unit)
    best, seconds, before = None, None, 0.0
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a UTF-8 text file") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        time, value = _entry(line, task.metric, f"{path}, line {number}")
        if time < before:
            raise UserError(
                f"{path}, line {number}: its time {time:g} s is less than {before:g} s of the previous line"
            )
        if not low <= value <= high:
            raise UserError(
                f"{path}, line {number}: {task.metric} {value:g} must be from {low:g} to {high:g}"
            )
        before = time
        best = value if better(value, best, task.direction) else best
        if seconds is None and goal is not None and goal.reached(value):
            seconds = time
    if best is None:
        raise UserError(f"{path} has no line", hint=f'e.g. {{"time": 12.5, "{task.metric}": 80.0}}')
    if task.metric_unit == "%" and task.direction == "max" and 0 < best <= 1:
        raise UserError(
            f"{path}: {task.metric} is in %, and its best value is {best:g}", hint="write 97 for 97 %"
        )
    return Score({task.metric: best}, None if goal is None else seconds is not None, seconds)


def _entry(line: str, metric: str, where: str) -> tuple[float, float]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON") from error
    values = []
    for name in ("time", metric):
        value = entry.get(name) if isinstance(entry, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(
                f"{where} has no number {name!r}", hint=f'e.g. {{"time": 12.5, "{metric}": 80.0}}'
            )
        values.append(float(value))
    return values[0], values[1]


def _weights(path: Path) -> dict[str, "torch.Tensor"]:
    """Return the tensors of a file by name, without what trainers and DDP put around them."""
    import torch

    with path.open("rb") as file:
        magic = file.read(2)
    if magic in (b"PK", b"\x80\x02"):  # torch.save's zip, and its older form
        try:
            saved: Any = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            hint = "torch.save(model.state_dict(), FILE), or safetensors"
            raise UserError(
                f"{path} is damaged or holds objects other than tensors, which are not loaded", hint=hint
            ) from error
    else:
        from safetensors.torch import load_file

        try:
            saved = load_file(path)
        except Exception as error:  # of a class that the library does not export
            raise UserError(f"{path} is not a valid weights file: {first_line(error)}") from error
    for key in WRAPPERS:
        if isinstance(saved, Mapping) and isinstance(saved.get(key), Mapping):
            saved = saved[key]
    if not isinstance(saved, Mapping) or not all(isinstance(each, torch.Tensor) for each in saved.values()):
        raise UserError(f"{path} holds no tensors by name", hint="torch.save(model.state_dict(), FILE)")
    return {str(name).replace(COMPILED, "").removeprefix(PREFIX): tensor for name, tensor in saved.items()}


def _fill(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"], path: Path) -> None:
    own = model.state_dict()
    if lacking := own.keys() - weights.keys():
        counted = f"{len(lacking)} of the {len(own)} tensors of the task's model"
        raise UserError(f"{path} lacks {counted}", hint=f"e.g. {min(lacking)}")
    if more := weights.keys() - own.keys():
        raise UserError(f"{path} has tensors that the task's model lacks", hint=f"e.g. {min(more)}")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            given, expected = (list(each.shape) for each in (weights[name], tensor))
            raise UserError(f"{path}: {name} has the shape {given}, the task's model {expected}")
    model.load_state_dict(dict(weights))
