"""Make a site's folder a data set: a table of runs, an index, badges, and headers for archives.

The folder is a Hugging Face data set (README.md with its header) and a Zenodo deposit (.zenodo.json). Both
are only written to disk. Nothing is sent anywhere.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from mlbench.record import fields
from mlbench.record.record import Record
from mlbench.report import leaderboard
from mlbench.report.leaderboard import LeaderboardEntry
from mlbench.tracking.submission import Checked

SCHEMA = 1  # of index.json, raised if a field changes its meaning
TITLE = "mlbench results"
ABOUT = "Time to accuracy, cost and speed-up of distributed training, each run with its log."
# The core contributors of MLBench, as its documentation lists them, docs 3.8.1.
ORIGIN = ("Ralf Grubenmann", "Lie He", "Tao Lin", "Fabian Pedregosa", "Martin Jaggi")
ORIGIN_URL = "https://mlbench.github.io"
COLOURS = dict(zip(leaderboard.TIERS, ("#6e6e6e", "#0072b2", "#00795a", "#9a4a00"), strict=True))
LETTER = 6.6  # pixels of a letter of a badge at 11 px


def write(
    folder: Path, entries: Sequence[LeaderboardEntry], runs: Sequence[tuple[Checked, Record]]
) -> list[Path]:
    """Write everything but pages into the folder, and return the paths."""
    submissions = list({id(submission): submission for submission, _ in runs}.values())
    points = [leaderboard.row(entry) for entry in entries]
    index = {"schema": SCHEMA, "tiers": leaderboard.TIERS, "points": points}
    texts: dict[str, str] = {
        "index.json": json.dumps(index, indent=2, allow_nan=False) + "\n",
        "README.md": readme(submissions),
        ".zenodo.json": json.dumps(_zenodo(submissions), indent=2) + "\n",
        "CITATION.cff": yaml.safe_dump(_citation(submissions), sort_keys=False, allow_unicode=True),
    }
    for submission in submissions:
        if submission.about:
            tier = leaderboard.tier(submission, entries)
            texts[f"badges/{submission.entity}-{submission.name}.svg"] = badge("mlbench", tier, COLOURS[tier])
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), _table(runs, entries, folder / "runs.parquet")]


def badge(label: str, text: str, colour: str) -> str:
    """Return an SVG of two words side by side, for a README."""
    left, right = (round(len(word) * LETTER + 14) for word in (label, text))
    texts = escape(label), escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{texts[0]}: {texts[1]}"><title>{texts[0]}: {texts[1]}</title>'
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{texts[0]}</text>'
        f'<text x="{left + right / 2}" y="14">{texts[1]}</text></g></svg>\n'
    )


def readme(submissions: Sequence[Checked]) -> str:
    """Return the page of the data set, whose header the Hugging Face Hub reads."""
    header: dict[str, Any] = {
        "pretty_name": TITLE,
        "license": _licence(submissions).lower(),
        "tags": ["benchmark", "distributed-training", "time-to-accuracy", "mlbench"],
        "configs": [{"config_name": "runs", "data_files": "runs.parquet"}],
    }
    text = f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n# {TITLE}\n\n{ABOUT} "
    text += (
        "`runs.parquet` has one row per run, `index.json` one entry per point, `index.html` is the site.\n\n"
    )
    text += "| tier | meaning |\n|---|---|\n"
    text += "".join(f"| {name} | {meaning} |\n" for name, meaning in leaderboard.TIERS.items())
    text += "\n| submission | licence |\n|---|---|\n"
    for submission in filter(lambda submission: submission.about, submissions):
        licence = submission.about.licence if submission.about else ""
        text += f"| `{submission.entity}/{submission.name}` | {licence} |\n"
    return text


def _licence(submissions: Sequence[Checked]) -> str:
    """Return the licence of the whole: attribution if any submission requires it."""
    licences = {submission.about.licence if submission.about else "CC-BY-4.0" for submission in submissions}
    return "CC0-1.0" if licences == {"CC0-1.0"} else "CC-BY-4.0"


def _creators(submissions: Sequence[Checked]) -> list[str]:
    names = dict.fromkeys(submission.about.entity for submission in submissions if submission.about)
    return list(names) or ["The mlbench maintainers"]


def _zenodo(submissions: Sequence[Checked]) -> dict[str, Any]:
    return {
        "title": TITLE,
        "upload_type": "dataset",
        "description": ABOUT,
        "creators": [{"name": name} for name in _creators(submissions)],
        "contributors": [{"name": name, "type": "Other"} for name in ORIGIN],
        "license": _licence(submissions).lower(),
        "access_right": "open",
        "keywords": ["benchmark", "distributed training", "time to accuracy"],
        "related_identifiers": [{"identifier": ORIGIN_URL, "relation": "isDerivedFrom"}],
    }


def _citation(submissions: Sequence[Checked]) -> dict[str, Any]:
    return {
        "cff-version": "1.2.0",
        "message": "Please cite the entity whose results you use, with the point's name in index.json.",
        "title": TITLE,
        "type": "dataset",
        "license": _licence(submissions),
        "authors": [{"name": name} for name in _creators(submissions)],
        "references": [
            {
                "type": "software",
                "title": "MLBench, whose tasks and goals mlbench continues",
                "url": ORIGIN_URL,
                "authors": [{"name": name} for name in ORIGIN],
            }
        ],
    }


def _table(runs: Sequence[tuple[Checked, Record]], entries: Sequence[LeaderboardEntry], path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A run may be in two submissions of one entity, and be handed in loose, too.
    of_point = {(id(e.submission), run.run_id): e for e in entries for run in e.point.attempts}
    rows = [_row(submission, run, of_point.get((id(submission), run.run_id))) for submission, run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    pq.write_table(pa.table(columns), path)
    return path


def _row(submission: Checked, run: Record, point: LeaderboardEntry | None) -> Mapping[str, Any]:
    beside = {
        "entity": submission.entity or None,
        "submission": submission.name or None,
        "tier": point.tier if point else leaderboard.SELF,
        "section": point.section if point else None,
    }
    return beside | {name.replace("/", "_"): v for name, v in fields.flat(run, fields.FIELDS).items()}


def _column(values: Sequence[Any]) -> list[Any]:
    """Return values of one type: numbers as float64, all else as text if the types differ."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float, bool} and len(kinds) > 1:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1 or kinds - {int, float, bool, str}:
        return [None if value is None else str(value) for value in values]
    return list(values)
