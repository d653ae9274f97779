"""How MLBench (2018-2021) named and wrote what its dashboard let one download.

One file `result_<metric> @ <rank>.json` a metric and rank, a JSON list of {date, value, cumulative} with
values as text; `<pod>_<resource>.json` a worker's resource; `official_result.txt`, one line, once a goal was
reached.
"""

import json
import math
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mlbench.exchange.archive import Archive

# The original's steps of a batch, and what mlbench calls them. `batch_load` was the copy to the device alone.
STEPS = {
    "batch_load": "data_wait",
    "fwd_pass": "forward",
    "comp_loss": "loss",
    "backprop": "backward",
    "agg": "communication",
    "opt_step": "optimizer",
    "comp_metrics": "metrics",
}
BETWEEN = ("init", "end")  # steps that no category counted: clearing gradients, and the batch's last lines
TOTAL = "TotalCumulativeTrainTime"
OF_EPOCH = "CumulativeTrainTimeEpoch"
OFFICIAL = "official_result.txt"
# Our metrics' names in the original. Accuracy of a binary classifier was Prec@1, too.
METRICS = {
    "top1_accuracy": "Prec@1",
    "accuracy": "Prec@1",
    "top5_accuracy": "Prec@5",
    "perplexity": "Perplexity",
    "bleu": "BLEU-Score",
}
_RESULT = re.compile(r"result_(?P<metric>.+) @ (?P<rank>\d+)\.json")
_RESOURCE = re.compile(r".+_(cpu|memory|network_in|network_out)\.json")
_GOAL = re.compile(
    r"(?:(?P<percent>[\d.]+)% Top 1 Validation Accuracy"
    r"|Validation (?P<metric>Perplexity|BLEU-Score) of (?P<target>[\d.]+))"
    r" reached in (?P<seconds>[\d.]+) seconds(?:, .*)?"
)


class Point(NamedTuple):
    """One value of a series, at a wall-clock time (s since 1970)."""

    wall: float
    value: float


Series = dict[tuple[str, int], list[Point]]  # by metric and rank


class Reached(NamedTuple):
    """What official_result.txt says."""

    metric: str  # the original's name
    target: float
    seconds: float


def parse(archive: Archive) -> Series:
    """Return all series of results; UserError for files that are none of the layout's."""
    series: Series = {}
    for name in archive.files:
        result = _RESULT.fullmatch(name)
        if result:
            series[result["metric"], int(result["rank"])] = _points(archive, name)
        elif _RESOURCE.fullmatch(name):
            _points(archive, name)  # checked like the rest; node metrics have no place in a record
        elif name != OFFICIAL:
            raise archive.refusal(f"{name!r} is no file of MLBench's results")
    if not series:
        raise archive.refusal("it holds no result of MLBench, e.g. 'result_train_loss @ 0.json'")
    return series


def is_layout(name: str) -> bool:
    """Return whether a file is named as the original named its results."""
    return bool(_RESULT.fullmatch(name) or _RESOURCE.fullmatch(name) or name == OFFICIAL)


def _points(archive: Archive, name: str) -> list[Point]:
    entries = archive.json(name)
    if not isinstance(entries, list):
        raise archive.refusal(f"{name} is not a list")
    points = []
    for entry in entries:
        try:
            wall = datetime.fromisoformat(entry["date"]).timestamp()
            value = float(entry["value"])
        except (TypeError, KeyError, ValueError) as error:
            raise archive.refusal(f"{name} holds {str(entry)[:60]}, not a date and a value") from error
        if not math.isfinite(value):
            raise archive.refusal(f"{name} holds {value}, which is no number")
        points.append(Point(wall, value))
    return points


def reached(archive: Archive) -> Reached | None:
    """Return what the official result says, None without one; UserError where it says nothing known."""
    if OFFICIAL not in archive.files:
        return None
    found = _GOAL.fullmatch(archive.text(OFFICIAL).strip())
    if found is None:
        raise archive.refusal(f"{OFFICIAL} is not of the form 'GOAL reached in N seconds, ...'")
    try:
        target = float(found["percent"] or found["target"])
        return Reached(found["metric"] or "Prec@1", target, float(found["seconds"]))
    except ValueError as error:
        raise archive.refusal(f"{OFFICIAL} holds a number that is none") from error


def file_name(metric: str, rank: int) -> str:
    """Return the name of the file with one metric of one rank."""
    return f"result_{metric} @ {rank}.json"


def written(points: list[Point]) -> str:
    """Return a series as the original wrote it."""
    return json.dumps([_entry(point) for point in points])


def _entry(point: Point) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(point.wall, UTC).isoformat(timespec="milliseconds")
    return {"date": stamp.replace("+00:00", "Z"), "value": str(point.value), "cumulative": False}
