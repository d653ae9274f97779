"""Read records from disk, and check them against their logs."""

import json
import os
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mlbench.config.errors import ResultError, UserError, is_comparable, unreadable
from mlbench.record import consistency, events, official
from mlbench.record.build_record import verify_against_log
from mlbench.record.record import Record

VERDICTS = ("as logged", "different", "without a log", "not checked")  # the first is good
EDITED = "edited: "  # begins the reason why a record that calls itself eligible is not
_real = cache(os.path.realpath)  # of many records it is one path


def load(path: Path) -> Record:
    """Read a record.json. Raises FileNotFoundError, or UserError if it cannot be used.

    A record cannot be used if this version cannot read it, or if it contradicts itself. A record that may
    count in an official point must also agree with its event log.
    """
    values = None
    try:
        values = json.loads(path.read_bytes())
        record = Record.model_validate(values)
        wrong = consistency.contradiction(record) if record.source == "mlbench" else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError, ArithmeticError, RecursionError) as error:
        raise unreadable(path, values, hint=_hint(path)) from error
    if wrong:
        raise ResultError(f"{path} was changed or is damaged: {wrong}", hint=_hint(path))
    record = _located(record, path.parent)
    return _as_logged(record, path.parent) if official.eligible(record.official_reasons) else record


def is_readable(folder: Path) -> bool:
    """Return whether a run's folder has a record that can be used."""
    try:
        load(folder / "record.json")
    except (FileNotFoundError, UserError):
        return False
    return True


def _as_logged(record: Record, folder: Path) -> Record:
    """Return a record as it is, or not eligible, with why its event log does not bear it out."""
    try:
        verify_against_log(record, events.read(folder / events.NAME))
    except (OSError, ValueError, UserError) as error:
        return record.model_copy(update={"eligible": False, "official_reasons": [f"{EDITED}{error}"]})
    return record


def verdict(folder: Path) -> tuple[str, str]:
    """Return which of VERDICTS applies to the record in a run's folder, and why."""
    path = folder / "record.json"
    alike = True
    try:
        alike = is_comparable(load(path).mlbench)
        log = events.read(folder / events.NAME)
        verify_against_log(Record.model_validate_json(path.read_bytes()), log)
    except FileNotFoundError:
        return "without a log", ""
    except (OSError, UserError) as error:
        return "different" if alike else "not checked", str(error)
    return "as logged", ""


def find_all(output_root: Path, trials: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Record]]:
    """Return the records of runs measured here by key and seed, oldest first. Each record is read once.

    A run folder's name ends in the seed. Imported runs do not count, because they are of other machines.
    """
    runs: dict[tuple[str, int], list[Record]] = {trial: [] for trial in trials}
    ends = {f"{seed:x}" for _, seed in runs}
    for name in sorted(os.listdir(output_root)) if output_root.is_dir() else ():
        begin, _, end = name.rpartition("-")
        if not begin or end not in ends:
            continue
        try:
            record = load(output_root / name / "record.json")
        except (FileNotFoundError, UserError):
            continue  # not finished, damaged, or another version's, which has another key
        if (record.key, record.seed) in runs and not record.imported:
            runs[record.key, record.seed].append(record)
    return runs


def command_line(output_root: Path, name: str, *words: str) -> str:
    """Return the line of `mlbench NAME` for runs that may lie elsewhere than `runs`, the default."""
    command = ["mlbench", name, *words]
    if output_root.absolute() != Path("runs").absolute():
        command.append(f"output_root={output_root}")
    return shlex.join(command)


def results_command(verb: str, output_root: Path, *words: str) -> str:
    """Return the command line of `mlbench results` (see `command_line`)."""
    return command_line(output_root, "results", verb, *words)


def _hint(path: Path) -> str:
    sync = results_command("sync", path.parent.parent)
    delete = results_command("delete", path.parent.parent, path.parent.name)
    return f"{sync} makes it again from a complete event log, {delete} deletes the run"


def _located(record: Record, folder: Path) -> Record:
    """Return the record, with `recorded_in` set to its original output_root if its folder is not there.

    The folder was then copied, moved, or mounted elsewhere. A submitted run was recorded in its cluster, and
    an imported one always elsewhere.
    """
    there, here = record.experiment.output_root, os.path.abspath(folder.parent)
    if record.imported or record.submission or there.is_absolute() and _real(str(there)) == _real(here):
        return record
    return record.model_copy(update={"recorded_in": str(there)})
