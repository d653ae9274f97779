"""Show the data sets of `data list`, and the progress of a preparation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlbench.config import compose, plugins
from mlbench.config.errors import UserError, suggest
from mlbench.config.experiment import Experiment
from mlbench.datasets import arrow
from mlbench.record.format import with_prefix
from mlbench.tasks import registry
from mlbench.terminal import help, tables
from mlbench.terminal.live_view import stderr

HEADINGS = ("task", "scale", "data set", "prepared", "on disk", "download", "licence")
STEPS = 10  # lines that a step of the work prints without a terminal for a bar


def text(overrides: list[str]) -> str:
    """Return a line per task and scale, and one per data set that it offers besides.

    Of the words task= and scale= choose lines, each with one value or several.
    """
    tasks = plugins.files("task")
    allowed: dict[str, list[str]] = {"task": list(tasks), "scale": ["official", "mini"]}
    chosen, others = dict(allowed), list[str]()
    for word in overrides:
        name, _, value = word.partition("=")
        if name not in allowed:
            others.append(word)
            continue
        chosen[name] = value.split(",")
        for choice in chosen[name]:
            if choice not in allowed[name]:
                raise UserError(f"{name}={choice} is unknown{suggest(choice, allowed[name])}")
    rows = [
        [task, scale, *_cells(compose.compose([*others, f"task={task}", f"scale={scale}", *options]))]
        for task, path in tasks.items()
        for scale, options in (
            ("official", []),
            ("mini", []),
            *(("mini", [f"task.dataset={name}"]) for name in help.names(path, "datasets")),
        )
        if task in chosen["task"] and scale in chosen["scale"]
    ]
    return tables.table(HEADINGS, rows, right=[name in ("on disk", "download") for name in HEADINGS])


def summary(folder: Path, manifest: dict[str, Any]) -> str:
    """Return rows, size and hash of a prepared data set, in one line."""
    rows = ", ".join(f"{name} {split['rows']:,} rows" for name, split in manifest["splits"].items())
    return f"{folder}: {rows}, {with_prefix(_size(manifest), 'B')}, manifest {arrow.manifest_hash(folder)}"


@contextmanager
def progress() -> Iterator[arrow.Progress]:
    """Show the preparation on stderr: bars on a terminal, else a line every tenth of a step."""
    console = stderr()
    if not console.is_interactive:
        yield _lines()
        return
    amount = TextColumn("{task.fields[amount]}")
    columns = TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()
    with Progress(*columns, console=console) as bars:
        steps = {}

        def show(step: str, done: int, total: int | None, unit: str) -> None:
            if step not in steps:
                steps[step] = bars.add_task(step, total=total, amount="")
            bars.update(steps[step], completed=done, total=total, amount=_amount(done, total, unit))

        yield show
        for bar in bars.tasks:  # what had no known end is at its end now
            bars.update(bar.id, total=bar.completed)


def _cells(experiment: Experiment) -> list[str]:
    """Return the prepared state of a task's data set, else the values that the task declares."""
    task = experiment.task
    datasets = registry.datasets(task.name)
    if datasets is None:
        return ["-"] * 5
    info = datasets.get(task.dataset)
    download = with_prefix(info.download, "B") if info and info.download is not None else "?"
    size, licence = (with_prefix(info.prepared, "B"), info.manifest["licence"]) if info else ("?", "?")
    folder, state = experiment.data_root / task.dataset, "no"
    if (folder / arrow.MANIFEST).is_file():
        try:
            manifest = arrow.read_manifest(folder)
            state, size, licence = "yes", with_prefix(_size(manifest), "B"), manifest["licence"]
        except UserError:
            state = "damaged"
    return [task.dataset, state, size, download, licence]


def _size(manifest: dict[str, Any]) -> int:
    return sum(split["bytes"] for split in manifest["splits"].values())


def _lines() -> arrow.Progress:
    last: dict[str, int] = {}

    def show(step: str, done: int, total: int | None, unit: str) -> None:
        part = done * STEPS // total if total else 0
        if step not in last or part > last[step]:
            last[step] = part
            amount = f": {_amount(done, total, unit)}" if total else ""
            sys.stderr.write(f"{step}{amount}\n")
            sys.stderr.flush()

    return show


def _amount(done: int, total: int | None, unit: str) -> str:
    if unit == "bytes":
        return f"{with_prefix(done, 'B')} of {with_prefix(total, 'B')}" if total else with_prefix(done, "B")
    return f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"
