"""The result card of a run, short enough for a terminal of 24 lines: verdict, doubts, time, cost, phases."""

import math
from itertools import zip_longest
from pathlib import Path

from rich.text import Text

from mlbench.experiment import format
from mlbench.experiment.record import Record
from mlbench.terminal import next_steps, result_card
from mlbench.terminal.result_card import STYLES, UNFINISHED, wrapped

LABEL = 18  # columns of the first column
BAR = 14  # columns of a phase's bar
MOST_LINES = 12  # half a terminal
SENTENCE_LINES = 2  # of the verdict, the doubts and the advice; the full card has all
MORE = " ... (--full)"
COLUMNS = (("data_wait", "forward", "backward"), ("wait", "transfer", "optimizer"))
JOINED = {"loss": "forward", "metrics": "optimizer"}  # short phases are added to their neighbours


def lines(record: Record, *, folder: Path, width: int, tracking_uri: str, ascii_only: bool) -> list[Text]:
    """Return at most MOST_LINES lines, none wider than `width` but commands to copy."""
    style = STYLES.get(record.status, "red")
    verdict = wrapped(result_card.verdict(record), width)
    if len(verdict) > SENTENCE_LINES:
        verdict = _cut(verdict, width)
    found = [(0, Text(line, style=f"bold {style}")) for line in verdict]
    found += [(1, line) for line in doubts(record, width)]
    found.append((4, _row("run", _what(record))))
    advice = wrapped(result_card.advice(record) or "", width - LABEL)[:SENTENCE_LINES]
    found += [(3, _row("" if number else "next", line)) for number, line in enumerate(advice)]
    found.append((2, _row("time", _time(record, width - LABEL))))
    if cost := _cost(record):
        found.append((2 if record.cost else 6, _row("cost", cost)))
    found += [(5, line) for line in _bars(record, width, "#" if ascii_only else "━")]
    found.append((0, _row("all numbers", next_steps.full(record, folder))))
    again = next_steps.again(record) if record.source == "mlbench" else ""
    if again and len(again) + LABEL <= width:
        found.append((3, _row("run again", again)))
    label, opening = next_steps.opening(tracking_uri)
    if len(opening) + LABEL <= width:
        found.append((6, _row(label, opening)))
    while len(found) > MOST_LINES:  # the least important goes; the full card has it
        found.remove(max(reversed(found), key=lambda line: line[0]))
    return [line for _, line in found]


def doubts(record: Record, width: int) -> list[Text]:
    """Return what a reader must know before trusting the numbers, in two lines at most."""
    sentences = []
    if record.source != "mlbench" or record.imported:
        sentences.append("imported: measured elsewhere, not checked here")
    sentences += record.caveats
    if record.oversubscribed and not any("oversubscribed" in one for one in record.caveats):
        sentences.append("oversubscribed: more threads than CPUs; excluded from speedups")
    if record.warnings:
        sentences.append(f"busy machine: {record.warnings[0]}")
    if record.deviations:
        sentences.append(format.counted(len(record.deviations), "deviation"))
    if official := result_card.not_official(record):
        sentences.append(official)
    if not sentences:
        return []
    text = wrapped("! " + "; ".join(format.printable(one) for one in sentences), width)
    if len(text) > SENTENCE_LINES:
        text = _cut(text, width)
    serious = record.caveats or record.oversubscribed or record.warnings or record.deviations
    return [Text(line, style="yellow" if serious else "dim") for line in text]


def _cut(sentence: list[str], width: int) -> list[str]:
    """Return the first lines of a longer text, with the way to all of it."""
    cut = sentence[:SENTENCE_LINES]
    return [*cut[:-1], cut[-1][: width - len(MORE)].rstrip() + MORE]


def _row(label: str, text: str) -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), format.printable(text))


def _what(record: Record) -> str:
    given = record.experiment
    return (
        f"{given.task.name} {given.scale}, {format.counted(record.workers, 'worker')}, "
        f"{given.backend.name}, {given.hardware.name}, seed={record.seed}"
    )


def _time(record: Record, width: int) -> str:
    """Return time, epochs, throughput and the whole command's time, as many of them as fit."""
    parts = []
    if record.time_to_accuracy is not None:
        parts.append(f"{format.duration(record.time_to_accuracy)} to the goal")
    elif record.validations:
        parts.append(f"{format.duration(record.validations[-1].elapsed)} trained, goal not reached")
        if record.goal is None:
            parts[-1] = parts[-1].removesuffix(", goal not reached")
    if record.epochs and record.validations:
        each = record.validations[-1].elapsed / record.epochs
        parts.append(f"{record.epochs:g} epochs of {format.duration(each)}")
    if record.samples_per_s is not None:
        parts.append(f"{format.number(record.samples_per_s)} {record.sample_unit}/s")
    parts.append(f"command {format.duration(record.wall)}")
    while len(", ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


def _cost(record: Record) -> str | None:
    if record.cost is None:
        name = record.experiment.hardware.name
        return None if record.status in UNFINISHED else f"not priced (hardware={name} has no price)"
    text = f"{format.usd(record.cost.wall_usd)} for the whole command"
    if record.cost.goal_usd is not None:
        text = f"{format.usd(record.cost.goal_usd)} to the goal, {text}"
    return f"{text}, prices of {record.cost.date}"


def _bars(record: Record, width: int, mark: str) -> list[Text]:
    """Return the phases of a step as shares of it, the mean over the ranks, in two columns."""
    whole = math.fsum(stats.mean for stats in record.phases.values())
    if not whole:
        return []
    seconds: dict[str, float] = {}
    for name, stats in record.phases.items():
        place = JOINED.get(name, name)
        seconds[place] = seconds.get(place, 0.0) + stats.mean
    cells = [
        [_bar(name, seconds[name] / whole, mark) for name in names if seconds.get(name)] for names in COLUMNS
    ]
    return [Text("   ".join(row)[:width]) for row in zip_longest(*cells, fillvalue="")]


def _bar(name: str, share: float, mark: str) -> str:
    return f"{name:{LABEL}}{(mark * round(BAR * share)).ljust(BAR)} {100 * share:3.0f} %"
