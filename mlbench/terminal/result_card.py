"""The result card of a run: at most 12 lines at its end, or everything that was measured."""

import math
import re
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.text import Text

from mlbench.experiment import format
from mlbench.experiment.record import Record
from mlbench.tasks import rcp, registry
from mlbench.terminal import next_steps, time_breakdown

WIDTH = 79  # columns where stdout is no terminal
WIDEST = 100  # columns; longer lines are hard to read
LABEL = 18  # columns of the first column
ERROR_CHARACTERS = 400  # of a failure's reason; all of it is in record.json
NO_RESULT = ("failed", "interrupted", "diverged")
STYLES = {
    "goal_reached": "green",
    "completed": "green",
    "goal_not_reached": "yellow",
    "interrupted": "yellow",
}
MARKED = ("next", "worker failures", "deviation", "caveat", "implausible", "warning")  # labels in yellow
BAR = 14  # columns of a phase's bar
MOST_LINES = 12  # of the short card: half a terminal
SENTENCE_LINES = 2  # of the verdict, the doubts and the advice in the short card
MORE = " ... (--full)"
COLUMNS = (("data_wait", "forward", "backward"), ("wait", "transfer", "optimizer"))
JOINED = {"loss": "forward", "metrics": "optimizer"}  # short phases are added to their neighbours

Rows = list[tuple[str, str]]


def verdict(record: Record) -> str:
    """Return how the run ended, in one sentence."""
    task, goal = record.experiment.task, record.goal
    target = f"goal {format.target(goal, task.metric_unit)}" if goal else "no goal"
    best = "no validation"
    if record.best is not None:
        best = f"best {task.metric} {format.measured(record.best, task.metric_unit, goal)}"
    progress = _progress(record)
    if record.status == "goal_reached" and goal and record.validations:
        value = record.validations[-1].metrics.get(goal.metric)
        if value is not None and record.time_to_accuracy is not None:
            measured = format.measured(value, task.metric_unit, goal)
            after = format.duration(record.time_to_accuracy)
            return f"GOAL REACHED: {goal.metric} {measured} ({target}) after {after}, {progress}"
    if record.status == "goal_not_reached":
        return f"GOAL NOT REACHED: {best} ({target}) after {progress}"
    if record.status == "completed":
        return f"COMPLETED: {progress}" + (f", {best}; no goal was set" if record.validations else "")
    if record.status == "diverged":
        return (
            f"DIVERGED: loss or validation stopped being a finite number in {progress}, step {record.steps}"
        )
    reason = " ".join(format.printable(record.error or "no reason was recorded").split())
    if len(reason) > ERROR_CHARACTERS:
        reason = reason[:ERROR_CHARACTERS] + " ..."
    return f"{record.status.upper()}: {reason}"


def advice(record: Record) -> str | None:
    """Return what to do after a run that did not end well."""
    epochs = format.counted(getattr(record.experiment.task, "epochs", 0), "epoch")
    return {
        "goal_not_reached": f"The recipe ends at {epochs}. Another seed may reach the goal; goal=light or a "
        "number of your own asks for less.",
        "diverged": "Another seed or fewer workers may do; a lower task.lr needs division=open.",
        "failed": "Run it with verbose=true to see what Ray and the workers say. max_failures=N allows N "
        "restarts from the last checkpoint.",
        "interrupted": "What was measured until then is kept. The command below measures it again.",
    }.get(record.status)


def full(record: Record, width: int = WIDTH) -> list[Text]:
    """Return everything that was measured, in lines of at most `width` columns."""
    lines = _verdict(record, wrapped(verdict(record), width))
    for label, text in rows(record):
        style = "yellow" if label in MARKED else ""
        for number, line in enumerate(wrapped(text, width - LABEL - 2)):
            lines.append(Text.assemble((f"  {'' if number else label:{LABEL}}", "dim"), (line, style)))
    return lines


def rows(record: Record) -> Rows:
    """Return label and text of every line of the full card that has something to say."""
    lines: list[tuple[str, str | None]] = [
        ("next", advice(record)),
        ("what", _what(record)),
        *time_breakdown.lines(record),
        ("best in budget", _best_in_budget(record)),
        *_facts(record),
        *profile(record),
        ("data", _data(record)),
        ("cost", _cost(record)),
        ("energy", _energy(record)),
        ("worker failures", _failures(record)),
        *(("deviation", str(deviation)) for deviation in record.deviations),
        *(("caveat", caveat) for caveat in record.caveats),
        ("implausible", rcp.warning([record])),
        *(("warning", warning) for warning in record.warnings),
    ]
    if record.official:
        lines.append(("official", "yes: division=closed scale=official"))
    elif record.status not in NO_RESULT:
        lines += [("not official", reason) for reason in record.official_reasons]
    return [(label, format.printable(text)) for label, text in lines if text]


def profile(record: Record) -> Rows:
    """Return where the profiler's traces are, and the dearest operators, one a row."""
    found = record.profile
    if found is None:
        return []
    device = "device" if record.experiment.backend.device == "cuda" else "CPU"
    where = (
        f"{format.counted(found.steps, 'step')} of each rank, in the run's folder: {', '.join(found.files)}"
    )
    rows = [("profile", f"{where}; https://ui.perfetto.dev opens rank0.trace.json")]
    for number, one in enumerate(found.operators, start=1):
        calls, seconds = format.counted(one.calls, "call"), format.duration(one.seconds)
        share = f"{format.percent(one.share)} of {device} time"
        rows.append((f"operator {number}", f"{one.name}: {share}, {calls}, {seconds}"))
    return rows


def short(record: Record, *, folder: Path, width: int, tracking_uri: str, ascii_only: bool) -> list[Text]:
    """Return verdict, doubts, time, cost and phases: MOST_LINES lines, none wider but commands to copy."""
    ranked = [(0, line) for line in _verdict(record, _cut(wrapped(verdict(record), width), width))]
    ranked += [(1, line) for line in doubts(record, width)]
    what = record.experiment
    ranked.append((4, _row("run", f"{what.task.name} {what.scale}, {_where(record)}")))
    hint = wrapped(advice(record) or "", width - LABEL)[:SENTENCE_LINES]
    ranked += [(3, _row("" if number else "next", line)) for number, line in enumerate(hint)]
    ranked.append((2, _row("time", _time(record, width - LABEL))))
    if cost := _short_cost(record):
        ranked.append((2 if record.cost else 6, _row("cost", cost)))
    ranked += [(5, line) for line in _bars(record, width, "#" if ascii_only else "━")]
    ranked.append((0, _row("all numbers", next_steps.full(record, folder))))
    again = next_steps.again(record) if record.source == "mlbench" else ""
    if again and len(again) + LABEL <= width:
        ranked.append((3, _row("run again", again)))
    label, opening = next_steps.opening(tracking_uri)
    if len(opening) + LABEL <= width:
        ranked.append((6, _row(label, opening)))
    while len(ranked) > MOST_LINES:  # the least important goes; the full card has it
        ranked.remove(max(reversed(ranked), key=lambda line: line[0]))
    return [line for _, line in ranked]


def doubts(record: Record, width: int) -> list[Text]:
    """Return what a reader must know before trusting the numbers, in two lines at most."""
    sentences = []
    if record.source != "mlbench" or record.imported:
        sentences.append("imported: measured elsewhere, not checked here")
    sentences += record.caveats
    if record.oversubscribed and not any("oversubscribed" in one for one in record.caveats):
        sentences.append("oversubscribed: more threads than CPUs; excluded from speedups")
    sentences += record.warnings[:1]
    sentences += [str(deviation) for deviation in record.deviations]
    serious = bool(sentences)
    shown = {f"caveat: {one}" for one in record.caveats} | {f"deviation: {one}" for one in record.deviations}
    if reasons := [one for one in record.official_reasons if one not in shown]:
        sentences += [f"not official: {'; '.join(reasons)}"] if record.status not in NO_RESULT else []
    text = wrapped("; ".join(format.printable(one) for one in sentences), width - 2)
    lines = [f"{'  ' if number else '! '}{line}" for number, line in enumerate(text)]
    return [Text(line, style="yellow" if serious else "dim") for line in _cut(lines, width)]


def wrapped(text: str, width: int) -> list[str]:
    """Return text as lines, none of which parts a number from its unit."""
    glued = re.sub(r"(?<=\d) (?=(?:%|us|ms|s|min|h|d|USD)(?![\w/]))", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(glued, width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _verdict(record: Record, lines: list[str]) -> list[Text]:
    return [Text(line, style=f"bold {STYLES.get(record.status, 'red')}") for line in lines]


def _cut(lines: list[str], width: int) -> list[str]:
    """Return the first lines of a longer text, with the way to all of it."""
    if len(lines) <= SENTENCE_LINES:
        return lines
    return [*lines[: SENTENCE_LINES - 1], lines[SENTENCE_LINES - 1][: width - len(MORE)].rstrip() + MORE]


def _row(label: str, text: str) -> Text:
    return Text.assemble((f"{label:{LABEL}}", "dim"), format.printable(text))


def _progress(record: Record) -> str:
    of = getattr(record.experiment.task, "epochs", None)
    if record.epochs:
        return f"epoch {record.epochs:g}" + (f" of {of}" if of else "")
    return "no epoch" if of else f"{len(record.table)} rows measured"


def _where(record: Record) -> str:
    experiment = record.experiment
    workers = format.counted(record.workers, "worker")
    return f"{workers}, {experiment.backend.name}, {experiment.hardware.name}, seed={record.seed}"


def _what(record: Record) -> str:
    experiment = record.experiment
    threads = {node.threads_per_worker for node in record.nodes if node.threads_per_worker is not None}
    each = f" x {format.counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    return (
        f"{experiment.task.name}, scale={experiment.scale}, recipe={experiment.task.recipe}, "
        f"division={experiment.division.name}, {format.counted(record.workers, 'worker')}{each}, "
        f"{experiment.backend.name}, hardware={experiment.hardware.name}, "
        f"cluster={experiment.cluster.name}, seed={record.seed}"
    )


def _time(record: Record, width: int) -> str:
    """Return time, epochs, throughput and the whole command's time, as many of them as fit."""
    parts = []
    if record.time_to_accuracy is not None:
        parts.append(f"{format.duration(record.time_to_accuracy)} to the goal")
    elif record.validations:
        missed = ", goal not reached" if record.goal else ""
        parts.append(f"{format.duration(record.validations[-1].elapsed)} trained{missed}")
    if record.epochs and record.validations:
        each = record.validations[-1].elapsed / record.epochs
        parts.append(f"{record.epochs:g} epochs of {format.duration(each)}")
    if record.samples_per_s is not None:
        parts.append(f"{format.number(record.samples_per_s)} {record.sample_unit}/s")
    parts.append(f"command {format.duration(record.wall)}")
    while len(", ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


def _best_in_budget(record: Record) -> str | None:
    if record.accuracy_after_time is None:
        return None
    task = record.experiment.task
    value = format.measured(record.accuracy_after_time, task.metric_unit, record.goal)
    return f"{task.metric} {value} within {format.duration(task.time_budget_s)}"


def _short_cost(record: Record) -> str | None:
    if record.cost is None:
        name = record.experiment.hardware.name
        unfinished = record.status in ("failed", "interrupted")
        return None if unfinished else f"not priced (hardware={name} has no price)"
    text = f"{format.usd(record.cost.wall_usd)} for the whole command"
    if record.cost.goal_usd is not None:
        text = f"{format.usd(record.cost.goal_usd)} to the goal, {text}"
    return f"{text}, prices of {record.cost.date}"


def _cost(record: Record) -> str | None:
    name, cost = record.experiment.hardware.name, record.cost
    if cost is None:
        if record.status in ("failed", "interrupted"):
            return None
        why = "this machine has no list price" if name == "local" else "its profile states none"
        return (
            f"not priced: hardware={name} has no price, {why}; choose a hardware profile that has one "
            "(--help lists them) or write conf/hardware/NAME.yaml"
        )
    text = f"{format.usd(cost.wall_usd)} on demand for the whole command on "
    text += format.counted(cost.nodes, "node")
    if cost.goal_usd is not None:
        text += f", {format.usd(cost.goal_usd)} from the first data to the goal"
    if cost.wall_usd_spot is None:
        text += "; no spot price stated"
    else:
        text += f"; spot {format.usd(cost.wall_usd_spot)}"
        if cost.goal_usd_spot is not None:
            text += f", {format.usd(cost.goal_usd_spot)} to the goal"
    return f"{text}; prices of {cost.date}: {cost.source}"


def _data(record: Record) -> str | None:
    """Return how warm the start was, and what part of the training rows an epoch takes."""
    cached = [node.data_cached for node in record.nodes if node.data_cached is not None]
    parts = [f"{format.percent(min(cached))} were in memory when the clock started"] if cached else []
    rows = record.data_rows.get("train")
    if rows and record.epochs and record.sample_unit in ("images", "rows"):
        parts.append(
            f"an epoch takes {format.percent(record.samples / record.epochs / rows)} of {rows:,} rows"
        )
    return "; ".join(parts) or None


def _energy(record: Record) -> str | None:
    """Return what was read; nothing where nothing could be."""
    found = record.energy
    if found is None:
        return None
    parts = " + ".join(f"{name.replace('_', ' ')} {format.energy(j)}" for name, j in found.parts.items())
    text = (
        f"{format.energy(found.joules)} {'to the goal' if found.goal_joules else 'while training'} ({parts})"
    )
    if found.joules_per_sample is not None:
        text += f", {format.energy(found.joules_per_sample)} a sample"
    if found.carbon_g is not None:
        text += f"; {format.number(found.carbon_g)} g CO2e ({found.carbon_source})"
    return text


def _failures(record: Record) -> str | None:
    if record.status == "failed" and len(record.restarts) == 1:
        return None  # it is in the verdict
    reasons = [reason for restart in record.restarts for reason in format.failures(restart.failures)]
    return f"{len(record.restarts)}; {'; '.join(reasons)}" if reasons else None


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the rows of the task's table, unless a report of the task's own presents them."""
    for row in [] if registry.report(record.experiment.task.name) else record.table:
        values: dict[str, Any] = {name: value for name, value in row.items() if name != "kind"}
        texts = (
            f"{name.replace('_', ' ')} {format.number(value) if isinstance(value, float) else value}"
            for name, value in values.items()
        )
        yield row["kind"].replace("_", " "), ", ".join(texts)


def _bars(record: Record, width: int, mark: str) -> list[Text]:
    """Return the phases of a step as shares of it, the mean over the ranks, in two columns."""
    whole = math.fsum(stats.mean for stats in record.phases.values())
    seconds: dict[str, float] = {}
    for name, stats in record.phases.items():
        place = JOINED.get(name, name)
        seconds[place] = seconds.get(place, 0.0) + stats.mean
    cells = [[_bar(name, seconds[name] / whole, mark) for name in names if seconds.get(name)]
             for names in COLUMNS]  # fmt: skip
    return [Text("   ".join(row)[:width]) for row in zip_longest(*cells, fillvalue="")]


def _bar(name: str, share: float, mark: str) -> str:
    return f"{name:{LABEL}}{(mark * round(BAR * share)).ljust(BAR)} {100 * share:3.0f} %"
