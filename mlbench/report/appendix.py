"""The artifact appendix of a study, as systems conferences ask for it, filled from its records.

The sections are those of the ACM artifact appendix (cTuning, https://ctuning.org/ae/submission_extra.html).
"""

from collections.abc import Iterable, Mapping, Sequence

from mlbench.record import attempts
from mlbench.record.attempts import History
from mlbench.record.format import counted, duration
from mlbench.record.record import Record
from mlbench.report import grouping, summary
from mlbench.report.page_input import StudyText
from mlbench.report.provenance_section import facts, provenance

INSTALLATION = "python3 -m venv .venv\n. .venv/bin/activate\npip install -r requirements.txt"
SEEDS = "The seeds that were drawn are in study.yaml; a run alone is repeated with its seed."
UNKNOWN = "to be filled in by the authors"


def text(study: StudyText, records: Sequence[Record], histories: Mapping[str, History] | None = None) -> str:
    """Return the appendix as Markdown; what records cannot know is left to the authors and marked so."""
    known = dict(provenance(records))
    wall = sum(one.wall for one in records)
    tasks = _each(f"{one.experiment.task.name}, scale {one.experiment.scale}" for one in records)
    metrics = _each(one.experiment.task.metric for one in records)
    data = _each(str(getattr(one.experiment.task, "dataset", "")) for one in records)
    checklist = {
        "Program": "mlbench " + ", ".join(known.get("mlbench", [UNKNOWN])),
        "Model": "; ".join(tasks),
        "Data set": _lines([*data, *known.get("prepared data (SHA-256 of the manifest)", [])]),
        "Run-time environment": _lines(known.get("packages", [UNKNOWN])),
        "Hardware": _lines([*known.get("hardware profile", []), *known.get("nodes", [])]),
        "Execution": counted(len(attempts.results(records)), "run")
        + ", one after the other, in random order",
        "Metrics": f"time to accuracy ({', '.join(metrics)}), speed-up, exposed communication, cost",
        "Output": "record.json and events.jsonl per run, report.html",
        "Time needed to prepare": UNKNOWN,
        "Time needed to complete": f"{duration(wall)} (sum of all commands)",
        "Publicly available": UNKNOWN,
        "Code licence": "Apache-2.0",
        "Data licences": "in the manifest of each data set (python -m mlbench.data list)",
        "Archived (DOI)": UNKNOWN,
    }
    groups = grouping.groups(records, histories=histories)
    answers = [f"**{one.title}.** {' '.join(summary.answer(one))}" for one in groups]
    commands = "\n".join(study.commands)
    doubts = [*known.get("caveats", []), *known.get("noise warnings", [])]
    parts = [
        f"# Artifact appendix: {study.title}",
        f"## Abstract\n\n{study.question} {', '.join(facts(records))}.",
        "## Artifact check-list\n\n"
        + "\n".join(f"- **{name}:** {value}" for name, value in checklist.items()),
        f"## How to access\n\n{UNKNOWN}. Sources: " + ", ".join(known.get("git", [UNKNOWN])) + ".",
        f"## Installation\n\n```\n{INSTALLATION}\n```",
        f"## Experiment workflow\n\n```\n{commands}\n```\n\n{SEEDS}",
        "## Evaluation and expected results\n\n" + "\n\n".join(answers),
        "Times on other hardware differ. Epochs to the goal do not depend on it: compare those first.",
        "## Notes\n\n" + ("\n".join(f"- {one}" for one in doubts) or "No run has a caveat."),
    ]
    return "\n\n".join(parts) + "\n"


def _each(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, values)))


def _lines(values: Sequence[str]) -> str:
    return "; ".join(values) or "-"
