"""Build the lines of the full card: everything that one run measured."""

from collections import Counter
from collections.abc import Iterator

from rich.text import Text

from mlbench.config import plugins
from mlbench.record import fields, format
from mlbench.record.record import Record
from mlbench.tasks import rcp, registry
from mlbench.terminal.result_card import (
    LABEL,
    NO_RESULT,
    WIDTH,
    advice,
    heading,
    reason,
    unofficial,
    unpriced,
    verdict,
    wrapped,
)

SERIES = 10  # rows of a kind; of more the last is shown
MARKED = ("next", "worker failures", "deviation", "caveat", "implausible", "warning")  # labels in yellow
LOST = "lost time is included in 'rest'"

Rows = list[tuple[str, str]]


def full(record: Record, width: int = WIDTH) -> list[Text]:
    """Return everything that was measured, in lines of at most `width` columns."""
    lines = heading(record, wrapped(verdict(record), width))
    for label, text in rows(record):
        style = "yellow" if label in MARKED else ""
        if len(label) >= LABEL:  # it would run into its text
            lines.append(Text(f"  {label}", "dim"))
            label = ""
        for number, line in enumerate(wrapped(text, width - LABEL - 2)):
            lines.append(Text.assemble((f"  {'' if number else label:{LABEL}}", "dim"), (line, style)))
    return lines


def rows(record: Record) -> Rows:
    """Return label and text of every nonempty line of the full card."""
    label, sentence = reason(record)
    lines: list[tuple[str, str | None]] = [
        ("next", advice(record)),
        *fields.rows(record).items(),
        ("cost", f"not priced: {why}" if (why := unpriced(record)) else None),
        (label, sentence),
        *_facts(record),
        *profile(record),
        *extras(record),
        ("worker failures", _failures(record)),
        ("implausible", rcp.warning([record])),
        *_sentences(record),
    ]
    if record.eligible:
        lines.append(("eligible", "yes: one run of an official point"))
    return [(label, format.printable(text)) for label, text in lines if text]


def _sentences(record: Record) -> Rows:
    """Return the rows of fields that are lists of sentences. A run without a result is not unofficial."""
    lists = {field.row: field.value(record) for field in fields.FIELDS if field.row}
    lists["not official"] = [] if record.status in NO_RESULT else unofficial(record)
    return [(row, text) for row, texts in lists.items() if isinstance(texts, list) for text in texts]


def profile(record: Record) -> Rows:
    """Return the folder of the profiler's traces, and the most expensive operators, one a row."""
    result = record.profile
    if result is None:
        return []
    device = "device" if record.experiment.backend.device == "cuda" else "CPU"
    where = (
        f"{format.counted(result.steps, 'step')} of each rank, in the run's folder: {', '.join(result.files)}"
    )
    rows = [("profile", f"{where} (https://ui.perfetto.dev opens rank0.trace.json)")]
    for number, operator in enumerate(result.operators, start=1):
        calls, seconds = format.counted(operator.calls, "call"), format.duration(operator.seconds)
        share = f"{format.percent(operator.share)} of {device} time"
        rows.append((f"operator {number}", f"{operator.name}: {share}, {calls}, {seconds}"))
    return rows


def extras(record: Record) -> Rows:
    """Return what packages have added to the record, in their words."""
    lines: Rows = []
    for name in record.extras:
        module = plugins.extra(name)
        absent = [(name, "recorded by a package that is not installed")]
        lines += module.rows(record) if module else absent
    return lines


def _failures(record: Record) -> str | None:
    if record.status == "failed" and len(record.restarts) == 1:
        return None  # it is in the verdict
    reasons = [reason for restart in record.restarts for reason in format.failures(restart.failures)]
    return "; ".join([str(len(record.restarts)), *reasons, LOST]) if reasons else None


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the rows of the task's table, unless a report of the task presents them.

    Of a kind with many rows, a series, it yields the last. The record has all.
    """
    table = [] if registry.report(record.experiment.task.name) else record.table
    count = Counter(row["kind"] for row in table)
    last = {row["kind"]: row for row in table}
    for row in table:
        if count[row["kind"]] > SERIES and row is not last[row["kind"]]:
            continue
        texts = (
            f"{name.replace('_', ' ')} {format.number(value) if isinstance(value, float) else value}"
            for name, value in row.items()
            if name != "kind"
        )
        yield row["kind"].replace("_", " "), ", ".join(texts)
