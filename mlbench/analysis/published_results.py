"""Read results of others as rows of one form: MLPerf's logs, speedrun logs and tables.

docs/results-command.md lists the columns of a table. MLPerf's files are `result_*.txt` with lines `:::MLLOG
{json}` in SUBMITTER/results/SYSTEM/BENCHMARK, and SUBMITTER/systems/SYSTEM.json (v4.0 to v5.1). A speedrun's
log has lines `step:750/1750 val_loss:3.27 train_time:125373ms`.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from mlbench.analysis.bootstrap import olympic_mean
from mlbench.config.errors import ResultError, suggest

FOLDER = Path(str(files("mlbench.analysis"))) / "results"  # its README has the sources
MARK = ":::MLLOG "
RESULT = "result_*.txt"
NOT_STATED = "not stated"
MS_A_MINUTE = 60_000
SPEEDRUN = re.compile(
    r"step:(?P<step>\d+)(?:/(?P<last>\d+))?\s+val_loss:(?P<loss>[\d.]+)\s+train_time:(?P<ms>[\d.]+)ms"
)
SYSTEM = {  # column: key of MLPerf's system description
    "submitter": "submitter",
    "division": "division",
    "nodes": "number_of_nodes",
    "accelerators_per_node": "accelerators_per_node",
    "accelerator": "accelerator_model_name",
    "interconnect": "accelerator_interconnect",
    "network": "host_networking",
    "framework": "framework",
}


Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid", str_strip_whitespace=True))
class PublishedResult:
    """The result of one system in one benchmark. None or empty: the source does not state it.

    - global_batch: samples of a step.
    - runs, of: runs that reached the goal, and runs handed in.
    - minutes_mean_of_middle: to the goal, without the fastest and the slowest of five or more runs.
    - samples_to_goal: mean over runs.
    - throughput: as the log states it. Its unit differs by submitter.
    """

    submitter: Text
    system: Text
    benchmark: Text
    minutes_mean_of_middle: Positive
    accelerator: str = ""
    nodes: Count | None = None
    accelerators_per_node: Count | None = None
    global_batch: Positive | None = None
    round: str = ""
    division: str = ""
    interconnect: str = ""
    network: str = ""
    framework: str = ""
    runs: Count = 1
    of: Count = 1
    minutes_min: Positive | None = None
    minutes_max: Positive | None = None
    samples_to_goal: Positive | None = None
    throughput: Positive | None = None
    source: str = NOT_STATED
    licence: str = NOT_STATED

    @property
    def accelerators(self) -> int:
        """How many accelerators the system has, or 0 if the source does not state it."""
        return (self.nodes or 0) * (self.accelerators_per_node or 0)


COLUMNS = tuple(field.name for field in fields(PublishedResult))
REQUIRED = COLUMNS[:7]


class Evaluation(NamedTuple):
    """One evaluation of the goal's metric."""

    seconds: float  # since the clock's start
    position: float | None  # samples or steps trained
    value: float | None


class PublishedRun(NamedTuple):
    """One run of a result. A table's rows have no known runs."""

    name: str
    seconds: float
    reached: bool
    evaluations: tuple[Evaluation, ...] = ()
    samples: float | None = None  # to the goal
    throughput: float | None = None
    begun: float = 0.0  # s since 1970 (0: not stated)


@dataclass(frozen=True)
class Published:
    """A result with its runs."""

    result: PublishedResult
    runs: tuple[PublishedRun, ...] = ()


def paths(arguments: Sequence[Path]) -> list[Path]:
    """Return the files and folders to read one by one, each MLPerf folder of a system and benchmark alone."""
    found: dict[Path, None] = {}
    for path in arguments:
        logs = sorted(path.rglob(RESULT)) if path.is_dir() else []
        found |= dict.fromkeys([log.parent for log in logs] or [path])
    return list(found)


def read(path: Path, *, about: Mapping[str, str] | None = None) -> list[Published]:
    """Return the results in a table (.csv), a log, or a folder of the logs of one system and benchmark.

    Args:
        path: file or folder.
        about: columns that override what the files state, and that a speedrun's log needs.

    Raises:
        UserError: the path is missing, or a file is damaged (names the line).
    """
    about = dict(about or {})
    if path.is_dir():
        logs = sorted(path.rglob(RESULT))
        if not logs:
            raise ResultError(
                f"{path} has no {RESULT}", hint="give a folder of MLPerf results, a log or a .csv"
            )
        folders = dict.fromkeys(log.parent for log in logs)
        return [_mlperf(folder, sorted(folder.glob(RESULT)), about) for folder in folders]
    text = _text(path)
    if path.suffix.lower() == ".csv":
        return [Published(_checked(asdict(row) | about, str(path))) for row in table(text, str(path))]
    if MARK in text:
        return [_mlperf(path.parent, [path], about)]
    return [_speedrun(path, text, about)]


def table(text: str, name: str) -> list[PublishedResult]:
    """Return the rows of a table with the columns of PublishedResult. Raises UserError with the line."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    rows = []
    try:
        header = reader.fieldnames or []
        for column in header:
            if column not in COLUMNS:
                raise ResultError(
                    f"{name}: line 1: unknown column {column!r}", hint=suggest(column, COLUMNS).strip(": ")
                )
        if missing := [column for column in REQUIRED if column not in header]:
            raise ResultError(
                f"{name}: line 1: no column {missing[0]}", hint=f"needed: {', '.join(REQUIRED)}"
            )
        for row in reader:
            if None in row or None in row.values():
                raise ResultError(
                    f"{name}: line {reader.line_num}: not {len(header)} cells, as the header has"
                )
            rows.append(
                _checked({key: cell for key, cell in row.items() if cell}, f"{name}: line {reader.line_num}")
            )
    except csv.Error as error:
        raise ResultError(f"{name}: line {reader.line_num}: {error}") from error
    if not rows:
        raise ResultError(f"{name} has no rows", hint="one row a result below the header")
    return rows


@cache
def shipped() -> tuple[PublishedResult, ...]:
    """Return the results of MLPerf Training that ship with mlbench: v4.0, v4.1 and a part of v5.1."""
    tables = sorted(FOLDER.glob("mlperf-training-*.csv"))
    return tuple(row for path in tables for row in table(path.read_text("utf-8"), path.name))


def with_shipped(rows: Sequence[PublishedResult]) -> list[PublishedResult]:
    """Return these results and, after them, the shipped ones that are not among them."""

    def name(row: PublishedResult) -> tuple[str, ...]:
        return row.round.removeprefix("v"), row.submitter, row.system, row.benchmark

    held = set(map(name, rows))
    return [*rows, *(row for row in shipped() if name(row) not in held)]


def _checked(values: Mapping[str, Any], where: str) -> PublishedResult:
    try:
        return PublishedResult(**values)
    except ValidationError as error:
        first = error.errors()[0]
        column, given = str(first["loc"][0]), first["input"]
        given = f"={given}" if column in values else " is missing"
        raise ResultError(f"{where}: {column}{given}: {first['msg'][0].lower()}{first['msg'][1:]}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except UnicodeDecodeError as error:
        raise ResultError(f"{path} is not UTF-8 text: byte {error.start:,} is invalid") from error
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error


def _mlperf(folder: Path, logs: Sequence[Path], about: dict[str, str]) -> Published:
    """Return the result in the folder of one system and benchmark."""
    events = {log: list(_events(log)) for log in logs}
    runs = tuple(_mlperf_run(log, events[log]) for log in logs)
    first = {key: value for _, key, value, _ in reversed(events[logs[0]])}
    system = folder.parent.name
    description = folder.parents[2] / "systems" / f"{system}.json"
    try:
        described = json.loads(_text(description))
        values = {column: str(described[key]) for column, key in SYSTEM.items() if described.get(key)}
    except (ValueError, TypeError, AttributeError) as error:
        raise ResultError(f"{description} is not a JSON system description: {error}") from error
    reached = [run for run in runs if run.reached]
    if not reached:
        raise ResultError(f"{folder}: none of {len(runs)} runs reached the goal, so there is no time")
    minutes = [run.seconds / 60 for run in reached]
    samples = [run.samples for run in reached if run.samples]
    rates = [run.throughput for run in reached if run.throughput]
    values |= {
        "system": system,
        "benchmark": str(first.get("submission_benchmark") or folder.name),
        "global_batch": first.get("global_batch_size"),
        "minutes_mean_of_middle": olympic_mean(minutes) or fmean(minutes),
        "minutes_min": min(minutes),
        "minutes_max": max(minutes),
        "runs": len(reached),
        "of": len(runs),
        "samples_to_goal": fmean(samples) if samples else None,
        "throughput": median(rates) if rates else None,
        "source": str(folder),
    }
    return Published(_checked(values | about, str(folder)), runs)


def _events(log: Path) -> Iterator[tuple[float, str, Any, dict[str, Any]]]:
    """Yield time in ms, key, value and metadata of each line of MLPerf's log."""
    for number, line in enumerate(_text(log).splitlines(), start=1):
        _, mark, rest = line.partition(MARK)
        if not mark:
            continue
        try:
            event = json.loads(rest)
            yield float(event["time_ms"]), str(event["key"]), event["value"], event.get("metadata") or {}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{log}: line {number} is cut or damaged: {error}") from error


def _mlperf_run(log: Path, events: Iterable[tuple[float, str, Any, dict[str, Any]]]) -> PublishedRun:
    start, stop, status, samples = None, None, "", None
    evaluations, rates = [], []
    for ms, key, value, about in events:
        samples = about.get("samples_count", samples)
        if key == "run_start":
            start = ms
        elif key == "run_stop":
            stop, status = ms, about.get("status", "")
        elif key == "eval_accuracy" and start is not None:
            number = value if isinstance(value, int | float) else None
            evaluations.append(Evaluation((ms - start) / 1e3, samples, number))
        elif key == "tracked_stats" and isinstance(value, dict) and value.get("throughput"):
            rates.append(float(value["throughput"]))
    if start is None or stop is None or stop <= start:
        missing = "run_start" if start is None else "run_stop"
        raise ResultError(f"{log}: no {missing} after its last line", hint="download the complete file")
    seconds = (stop - start) / 1e3
    rate = median(rates) if rates else None
    reached = status == "success"
    return PublishedRun(log.name, seconds, reached, tuple(evaluations), samples, rate, begun=start / 1e3)


def _speedrun(log: Path, text: str, about: Mapping[str, str]) -> Published:
    """Return the run of a speedrun's log, whose clock stopped at its last validation."""
    found = [match for line in text.splitlines() if (match := SPEEDRUN.search(line))]
    if not found:
        lines = len(text.splitlines())
        hint = "lines are ':::MLLOG {...}' or 'step:1/9 val_loss:3.3 train_time:5ms'; a table ends in .csv"
        raise ResultError(f"{log}: none of its {lines:,} lines is a result", hint=hint)
    last = found[-1]
    if last["last"] and int(last["step"]) < int(last["last"]):
        sentence = f"{log}: the last validation is of step {last['step']} of {last['last']}"
        raise ResultError(sentence, hint="download the complete log")
    evaluations = [Evaluation(float(m["ms"]) / 1e3, float(m["step"]), float(m["loss"])) for m in found]
    seconds = evaluations[-1].seconds
    values = {"system": log.stem, "minutes_mean_of_middle": seconds / 60, "source": str(log)}
    run = PublishedRun(log.name, seconds, True, tuple(evaluations))
    return Published(_checked(values | dict(about), str(log)), (run,))
