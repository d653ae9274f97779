"""`predict published:TABLE`: predict published systems at other sizes and on other accelerators."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from mlbench.analysis import published_results, systems
from mlbench.analysis.published_results import PublishedResult
from mlbench.config.errors import UserError, suggest
from mlbench.plugins.prediction.forecast import FURTHEST, WIDE
from mlbench.record.format import counted, duration

HEADINGS = ("accelerators", "predicted", "80 % interval", "from")
CHOICES = {"task": "benchmark", "on": "system"}  # setting: column
USED = {*CHOICES, "hardware", "max_workers", "output_root"}  # settings


def forecasts(
    found: list[PublishedResult], settings: Mapping[str, str], count: Callable[[str, str], int]
) -> tuple[str, list[dict[str, str]]]:
    """Return a title and the table's rows: nodes of the chosen system, doubled up to max_workers."""
    if given := [name for name, value in settings.items() if value and name not in USED]:
        raise UserError(f"{given[0]}= is not for published systems", hint=f"{', '.join(sorted(USED))} are")
    every = published_results.with_shipped(found)
    for setting, column in CHOICES.items():
        names = sorted({getattr(row, column) for row in found})
        wanted = settings[setting] or (names[0] if len(names) == 1 else "")
        if wanted not in names:
            sentence = f"{setting}={wanted} is none of {counted(len(names), column)}"
            raise UserError(sentence, hint=suggest(wanted, names).strip(": "))
        found = [row for row in found if getattr(row, column) == wanted]
    row, name = max(found, key=lambda row: (row.round, row.accelerators)), settings["hardware"]
    if name and not systems.accelerator(name).figures:
        raise UserError(f"hardware={name} is not an accelerator with data-sheet figures")
    most = count("max_workers", settings["max_workers"]) if settings["max_workers"] else 0
    node, nodes = row.accelerators_per_node or 1, [row.nodes or 1]
    while 2 * nodes[-1] * node <= (most or FURTHEST * row.accelerators):
        nodes.append(2 * nodes[-1])
    nodes = nodes if name else nodes[1:]
    if not nodes:
        raise UserError(f"max_workers={most} is too few", hint=f"e.g. max_workers={2 * row.accelerators}")
    targets = [replace(row, nodes=each, accelerator=name or row.accelerator) for each in nodes]
    model = systems.SystemsModel(every, targets=targets)
    rows = []
    for i, target in enumerate(targets, start=len(every)):
        best = model.forecasts(i)[0]  # based on the submitter's results, if there are any
        interval = " to ".join(duration(60 * end) for end in best.ends)
        interval += ", no advice" if best.ends[1] > WIDE * best.ends[0] else ""
        system = f"{target.accelerators:,} {systems.accelerator(target.accelerator).name}"
        cells = system, duration(60 * best.minutes), interval, best.kind
        rows.append(dict(zip(HEADINGS, cells, strict=True)))
    title = f"{row.benchmark} on {row.system}, published by {row.submitter}, not measured here: "
    return f"{title}{row.accelerators:,} {row.accelerator}, batch {row.global_batch or 0:,.0f}", rows
