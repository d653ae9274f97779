"""The runs below an output_root, as folders: one a run, named as the run."""

import shlex
from pathlib import Path

from mlbench.experiment import events, record
from mlbench.experiment import study as studies
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record


def records(output_root: Path) -> tuple[list[Record], list[str]]:
    """Return all records, oldest first, and a sentence for every folder whose record cannot be used.

    A record's run_id is its folder's name, so whoever has a record knows its folder.
    """
    found, complaints = [], []
    for path in sorted(output_root.glob("*/record.json")):
        try:
            one = record.load(path)
        except (OSError, ValueError):
            complaints.append(f"{path} is damaged or of another version of mlbench")
            continue
        if one.run_id == path.parent.name:
            found.append(one)
        else:
            complaints.append(f"{path} is the record of another run, {one.run_id}")
    return found, complaints


def folder(output_root: Path, word: str) -> Path:
    """Return the run's folder by its name or by a part that no other run has."""
    folders = [path.parent for path in sorted(output_root.glob("*/record.json"))]
    exact = [folder for folder in folders if folder.name == word]
    found = exact or [folder for folder in folders if word in folder.name]
    if len(found) == 1:
        return found[0]
    if not found:
        unfinished = (output_root / word / events.NAME).exists()
        hint = results_command("sync" if unfinished else "list", output_root)
        raise UserError(f"no finished run {word!r} below {output_root}", hint=hint)
    raise UserError(f"{word!r} is a part of {len(found)} runs' names", hint=f"e.g. {found[-1].name}")


def study(output_root: Path, name: str) -> list[Record]:
    """Return the records of a study; UserError if there is none of this name."""
    plan = studies.load(studies.folder(output_root, name))
    if plan is None:
        known = sorted(path.parent.name for path in (output_root / "studies").glob(f"*/{studies.PLAN}"))
        raise UserError(f"there is no study {name!r}", hint=f"studies: {', '.join(known) or 'none'}")
    return studies.records(plan, output_root)


def results_command(verb: str, output_root: Path) -> str:
    """Return the command line of mlbench.results for runs that may lie elsewhere than `runs`, the default."""
    words = ["python", "-m", "mlbench.results", verb]
    if output_root.absolute() != Path("runs").absolute():
        words.append(f"output_root={output_root}")
    return shlex.join(words)
