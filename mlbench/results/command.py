"""What the verbs of `mlbench results` share: the command, its settings, folders and totals."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlbench.config.errors import UserError
from mlbench.config.store_uri import default_store
from mlbench.record.record import Record
from mlbench.terminal.args import (
    CONFIG_DIR,
    Args,
    Command,
    flag,
)

MLFLOW_ID = "[0-9a-f]{32}"
FILE_SUFFIX = r"(?i)\.(html?|zip|gz|tgz|tar|bz2|xz|zst|7z|csv|json|parquet|pdf|png|svg|md|txt|tex)"
TRACKING_URI = {"tracking_uri": ("", "any MLflow tracking URI (default: the SQLite file in output_root)")}
WITH_DISTURBED = flag("--with-disturbed", "also count runs whose machine ran other processes")
FILTERS = (
    ("task=resnet20 workers=1,2", "values as on the command line, alternatives with a comma"),
    ("status=goal_reached", "also source=, key=, recipe=, seed=, eligible="),
    ("source=mlbench", "measured here (source=imported, source=copied: elsewhere)"),
    ("key:01ab", "the beginning of a configuration's key"),
    ("study:scaling", "the runs of a study (study:a,b of two)"),
    ("w4-1c9", "any part of a run's name"),
    ("last", "the newest of those that all other filters select"),
)
EXIT_CODES = (
    ("0", "done"),
    (
        "1",
        "a run could not be uploaded or does not follow from its log, a submission was refused, "
        "score: no goal, or --fail-if-slower",
    ),
    ("2", "a mistake in the command, no run is selected, or an archive was refused"),
    ("3", "--fail-if-slower: also fail if a pair has no verdict"),
)
COMMAND = Command(
    "results",
    "Finished runs: what was measured in output_root, and how it compares.",
    sections=lambda: [("filters (all must match)", FILTERS), ("exit codes", EXIT_CODES)],
    options=CONFIG_DIR,
)


def destination(args: Args, default: Path, *, files: tuple[str, ...] = ()) -> Path:
    """Return the folder that to= names. Raises UserError for the name of a file that is none of `files`."""
    to = Path(args.settings["to"] or default)
    if args.settings["to"] and re.fullmatch(FILE_SUFFIX, to.suffix) and to.suffix not in files:
        raise UserError(
            f"to={to} is the name of a {to.suffix} file, {args.verb} writes a folder"
            + (f" or one {' or '.join(files)} file" if files else ""),
            hint=f"to={to.with_suffix('')}",
        )
    return to


def store_of(args: Args, record: Record | None = None) -> str:
    """Return the store that has a run: the one given, else the run's, else the default."""
    own = record.experiment.tracking_uri if record else None
    return args.settings.get("tracking_uri") or own or default_store(args.output_root)


def total(args: Args, outcomes: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Print how many there were of each outcome, or all of them as JSON."""
    if args.json:
        print(json.dumps(outcomes, indent=2))
        return
    counts = {word: sum(outcome["outcome"] == word for outcome in outcomes) for word in names}
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count))
