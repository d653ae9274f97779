"""Explain numbers in words: a run's by the lines of its log, a study's speed-up by the times of its runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlbench.analysis import speedup
from mlbench.record import fields, format
from mlbench.record.formulas import Explanation
from mlbench.record.record import Record
from mlbench.report.grouping import Group

MOST_INPUTS = 20  # of a number that is explained
FORMULA = "median(time_to_accuracy of 1 worker) / median(time_to_accuracy of these workers)"


def of_run(found: Explanation, record: Record, log: Path) -> list[str]:
    """Return lines with a number's value, its formulas, and the lines of the log that it follows from."""
    shown = fields.Field(found.name, unit=found.unit).quantity(found.value, fields.units(record))
    lines = [f"{found.name} = {found.value!r} ({shown})"]
    lines += [f"  {name} = {formula}" for name, formula in found.formulas.items()]
    inputs = [
        f"  {path} = {value!r}  ({f'line {line}' if line else 'overhead.yaml'})"
        for path, (value, line) in found.inputs.items()
    ]
    lines += inputs[:MOST_INPUTS]
    if more := len(inputs[MOST_INPUTS:]):
        lines.append(f"  and {more} more values: --json prints all")
    return [*lines, f"  lines of {log}"]


def speedups(groups: Sequence[Group], workers: int) -> list[dict[str, Any]]:
    """Return value, formula and inputs of every speed-up of so many workers, with the times in s by run."""
    answers = []
    for found in speedup.speedups([point for group in groups for point in group.points]):
        if found.point.workers == workers and found.base is not None and found.total is not None:
            inputs = {
                format.counted(point.workers, "worker"): {
                    run.run_id: seconds for run, seconds in zip(point.records, point.times, strict=True)
                }
                for point in (found.base, found.point)
            }
            value = found.total.value
            answers.append({"quantity": "speedup", "value": value, "formula": FORMULA, "inputs": inputs})
    return answers


def of_speedup(answer: dict[str, Any]) -> str:
    """Return the lines that explain one of `speedups`."""
    lines = [f"speedup = {answer['value']!r}", f"  speedup = {answer['formula']}"]
    for side, times in answer["inputs"].items():
        lines += [f"  {side}: {run}: {seconds!r} s" for run, seconds in times.items()]
    return "\n".join(lines)
