"""The result card: what one run measured, in words, with what qualifies it and how to make it again."""

import re
import textwrap
from typing import Any

from rich import box
from rich.panel import Panel
from rich.text import Text

from mlbench.experiment import format
from mlbench.experiment.division import Deviation
from mlbench.experiment.goal import Goal
from mlbench.experiment.record import Record
from mlbench.tasks import rcp, registry
from mlbench.terminal import time_breakdown

WIDTH = 79  # columns of the plain card
NARROWEST = 40  # columns of the panel; a narrower terminal breaks its lines itself
WIDEST = 100  # columns of the panel; longer lines are hard to read
LABEL = 18  # columns of the first column
ERROR_CHARACTERS = 400  # of a failure's reason; all of it is in record.json
UNFINISHED = ("failed", "interrupted")
STYLES = {
    "goal_reached": "green",
    "completed": "green",
    "goal_not_reached": "yellow",
    "interrupted": "yellow",
}
MARKED: dict[str, str] = dict.fromkeys(
    ("next", "worker failures", "deviation", "caveat", "implausible", "noise"), "yellow"
)

Rows = list[tuple[str, str]]


def verdict(record: Record) -> str:
    """Return how the run ended, in one sentence."""
    last, goal = _progress(record), _goal(record)
    reached = record.validations[-1].metrics.get(goal.metric) if goal and record.validations else None
    if (
        record.status == "goal_reached"
        and goal
        and reached is not None
        and record.time_to_accuracy is not None
    ):
        value = format.measured(reached, _unit(record), goal)
        after = format.duration(record.time_to_accuracy)
        return f"GOAL REACHED: {goal.metric} {value} ({_asked(record)}) after {after}, {last}"
    if record.status == "goal_not_reached":
        return f"GOAL NOT REACHED: {_best(record)} ({_asked(record)}) after {last}"
    if record.status == "completed":
        return f"COMPLETED: {last}" + (f", {_best(record)}; no goal was asked" if record.validations else "")
    if record.status == "diverged":
        return f"DIVERGED: loss or validation stopped being a finite number in {last}, update {record.steps}"
    reason = " ".join(format.printable(record.error or "no reason was recorded").split())
    if len(reason) > ERROR_CHARACTERS:
        reason = reason[:ERROR_CHARACTERS] + " ..."
    return f"{record.status.upper()}: {reason}"


def advice(record: Record) -> str | None:
    """Return what to do after a run that did not end well."""
    task = record.experiment.task
    if record.status == "goal_not_reached":
        return (
            f"The recipe ends at {format.counted(getattr(task, 'epochs', 0), 'epoch')}. "
            "Another seed may reach the goal; goal=light or a number of your own asks for less."
        )
    if record.status == "diverged":
        return "Another seed or fewer workers may do; a lower task.lr needs division=open."
    if record.status == "failed":
        return (
            "Run it with verbose=true to see what Ray and the workers say. max_failures=N allows N restarts "
            "from the last checkpoint."
        )
    if record.status == "interrupted":
        return "What was measured until then is kept. The command below measures it again."
    return None


def rows(record: Record) -> Rows:
    """Return label and text of every line of the card that has something to say."""
    found: list[tuple[str, str | None]] = [
        ("next", advice(record)),
        ("what", _what(record)),
        *time_breakdown.lines(record),
        ("best in budget", _best_in_time(record)),
        *_facts(record),
        ("cost", _cost(record)),
        ("worker failures", _failures(record)),
        *(("deviation", _deviation(deviation)) for deviation in record.deviations),
        *(("caveat", caveat) for caveat in record.caveats),
        ("implausible", rcp.warning([record])),
        *(("busy machine", warning) for warning in record.warnings),
        ("official", _official(record)),
    ]
    return [(label, format.printable(text)) for label, text in found if text]


def plain(record: Record) -> str:
    """Return the card as lines of at most 79 columns without boxes or colours."""
    lines = wrapped(verdict(record), WIDTH)
    for label, text in rows(record):
        first, *others = wrapped(text, WIDTH - LABEL - 2)
        lines.append(f"  {label:{LABEL}}{first}")
        lines += [" " * (LABEL + 2) + line for line in others]
    return "\n".join(lines)


def panel(record: Record, *, width: int) -> Panel:
    """Return the card as a rich panel of at most `width` columns; without sides, so it can be copied."""
    style = STYLES.get(record.status, "red")
    width = max(NARROWEST, min(width, WIDEST))
    inner = width - 4  # the box's sides are blank, but there
    lines = [Text("\n".join(wrapped(verdict(record), inner)) + "\n", style=f"bold {style}")]
    for label, text in rows(record):
        first, *others = wrapped(text, inner - LABEL)
        lines.append(Text.assemble((f"{label:{LABEL}}", "dim"), (first, MARKED.get(label, ""))))
        lines += [Text(" " * LABEL + line, style=MARKED.get(label, "")) for line in others]
    return Panel(Text("\n").join(lines), box=box.HORIZONTALS, border_style=style, width=width)


def wrapped(text: str, width: int) -> list[str]:
    """Return text as lines, none of which parts a number from its unit."""
    glued = re.sub(r"(?<=\d) (?=(?:%|us|ms|s|min|h|d|USD)(?![\w/]))", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(glued, width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _goal(record: Record) -> Goal | None:
    return record.goal


def _unit(record: Record) -> str:
    return record.experiment.task.metric_unit


def _asked(record: Record) -> str:
    goal = _goal(record)
    return f"goal {format.asked(goal, _unit(record))}" if goal else "no goal"


def _best(record: Record) -> str:
    if record.best is None:
        return "no validation"
    value = format.measured(record.best, _unit(record), _goal(record))
    return f"best {record.experiment.task.metric} {value}"


def _progress(record: Record) -> str:
    if not record.epochs:
        return (
            "no epoch"
            if getattr(record.experiment.task, "epochs", None)
            else f"{len(record.table)} rows measured"
        )
    of = getattr(record.experiment.task, "epochs", None)
    return f"epoch {record.epochs:g}" + (f" of {of}" if of else "")


def _what(record: Record) -> str:
    given = record.experiment
    threads = {node.threads_per_worker for node in record.nodes if node.threads_per_worker is not None}
    each = f" x {format.counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    return (
        f"{given.task.name}, scale={given.scale}, recipe={given.task.recipe}, "
        f"division={given.division.name}, {format.counted(record.workers, 'worker')}{each}, "
        f"{given.backend.name}, hardware={given.hardware.name}, "
        f"cluster={given.cluster.name}, seed={record.seed}"
    )


def _best_in_time(record: Record) -> str | None:
    if record.accuracy_after_time is None:
        return None
    value = format.measured(record.accuracy_after_time, _unit(record), _goal(record))
    budget = format.duration(record.experiment.task.time_budget_s)
    return f"{record.experiment.task.metric} {value} within {budget}"


def _cost(record: Record) -> str | None:
    name = record.experiment.hardware.name
    if record.cost is None:
        if record.status in UNFINISHED:
            return None
        why = "this machine has no list price" if name == "local" else "its profile states none"
        return (
            f"not priced: hardware={name} has no price, {why}; choose a hardware profile that has one "
            "(--help lists them) or write conf/hardware/NAME.yaml"
        )
    nodes = format.counted(record.cost.nodes, "node")
    text = f"{format.usd(record.cost.wall_usd)} on demand for the whole command on {nodes}"
    if record.cost.goal_usd is not None:
        text += f", {format.usd(record.cost.goal_usd)} from the first data to the goal"
    if record.cost.wall_usd_spot is None:
        text += "; no spot price stated"
    else:
        text += f"; spot {format.usd(record.cost.wall_usd_spot)}"
        if record.cost.goal_usd_spot is not None:
            text += f", {format.usd(record.cost.goal_usd_spot)} to the goal"
    return f"{text}; prices of {record.cost.date}: {record.cost.source}"


def _failures(record: Record) -> str | None:
    if record.status == "failed" and len(record.restarts) == 1:
        return None  # the verdict has said it
    reasons = [reason for restart in record.restarts for reason in format.failures(restart.failures)]
    return f"{len(record.restarts)}; {'; '.join(reasons)}" if reasons else None


def _facts(record: Record) -> Rows:
    """Return the rows of the task's table, unless a report of the task's own presents them."""
    if registry.report(record.experiment.task.name):
        return []
    return [(row["kind"].replace("_", " "), _fact(row)) for row in record.table]


def _fact(row: dict[str, Any]) -> str:
    values = ((name.replace("_", " "), value) for name, value in row.items() if name != "kind")
    return ", ".join(
        f"{name} {format.number(value) if isinstance(value, float) else value}" for name, value in values
    )


def _deviation(deviation: Deviation) -> str:
    return (
        f"{deviation.field} is {deviation.given}, the reference is {deviation.reference} ({deviation.rule})"
    )


def _official(record: Record) -> str | None:
    return "yes: division=closed scale=official" if record.official else not_official(record)


def not_official(record: Record) -> str | None:
    """Return why this is not an official result; None where it is one, or where there is no result."""
    if record.official:
        return None
    if record.status in (*UNFINISHED, "diverged"):
        return None
    reasons = [
        one if not one.startswith("caveat: ") else "see the caveats" for one in record.official_reasons
    ]
    return f"not official: {'; '.join(dict.fromkeys(reasons))}"
