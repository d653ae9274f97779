"""Find the runs below an output_root: one folder a run, named as the run."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mlbench.config.errors import ResultError, UserError
from mlbench.record import events, reader
from mlbench.record import study as studies
from mlbench.record.reader import command_line, results_command
from mlbench.record.record import Record

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a folder's name, never a path


def records(output_root: Path) -> tuple[list[Record], list[str]]:
    """Return all records, oldest first, and a sentence for every folder whose record cannot be used.

    A record's run_id is the name of its folder.
    """
    complaints: list[str] = []
    return list(readable(output_root, complaints.append)), complaints


def readable(output_root: Path, complain: Callable[[str], Any] | None = None) -> Iterator[Record]:
    """Yield the records that can be used, oldest first, one after the other, to save memory.

    `complain` is called with a sentence for every folder whose record cannot be used.
    """
    for name in names(output_root):
        try:
            yield load(output_root / name)
        except FileNotFoundError:
            pass  # deleted since
        except UserError as error:
            if complain:
                complain(str(error))


def load(folder: Path) -> Record:
    """Return the record of a run's folder. Raises UserError if it cannot be used or is another run's."""
    path = folder / "record.json"
    record = reader.load(path)
    if record.run_id != folder.name:
        raise ResultError(f"{path} is the record of another run, {record.run_id}")
    return record


def names(output_root: Path) -> list[str]:
    """Return the names of the folders that have a record, oldest first."""
    folders = sorted(os.listdir(output_root)) if output_root.is_dir() else []
    return [name for name in folders if os.path.exists(f"{output_root}/{name}/record.json")]


def without_record(output_root: Path) -> list[str]:
    """Return the names of the folders that have a log and no record: of runs in progress, or killed."""
    logs = sorted(output_root.glob(f"*/{events.NAME}"))
    return [log.parent.name for log in logs if not log.with_name("record.json").exists()]


def damaged(output_root: Path, word: str) -> Path | None:
    """Return the folder of this whole name if it is a run's that has no record which can be used."""
    candidate = output_root / word
    files = (candidate / "record.json", candidate / events.NAME)
    if candidate.parent == output_root and any(path.is_file() for path in files):
        try:
            load(candidate)
        except (FileNotFoundError, UserError):
            return candidate
    return None


def matching(names: Sequence[str], word: str) -> list[str]:
    """Return the runs that a word names, from `names`, oldest first.

    That is the run of this whole name, or for `last` the newest. Otherwise it is the runs with a name that
    ends in -word, or else those that contain the word.
    """
    if word == "last":
        return list(names[-1:])
    exact = [name for name in names if name == word]
    return exact or [n for n in names if n.endswith(f"-{word}")] or [n for n in names if word in n]


def is_study(output_root: Path, word: str) -> bool:
    """Return whether a word is the name of a study below output_root."""
    return (studies.folder(output_root, word) / studies.PLAN).exists()


def folder(output_root: Path, word: str) -> Path:
    """Return the folder of the one run that a word names (see `matching`)."""
    runs = names(output_root)
    matches = matching(runs, word)
    if len(matches) == 1:
        return output_root / matches[0]
    if not word.strip():
        raise ResultError(f"{word!r} matches no run", hint=results_command("show", output_root, "last"))
    if not runs and word == "last":
        hint = f"{command_line(output_root, 'run')} makes one"
        raise ResultError(f"no finished run in {output_root}", hint=hint)
    if not matches:
        unfinished = (output_root / word / events.NAME).exists()
        hint = results_command("sync" if unfinished else "list", output_root)
        if is_study(output_root, word):
            hint = f"it is a study: {results_command('show', output_root, f'study:{word}')}"
        raise ResultError(f"no finished run in {output_root} matches {word!r}", hint=hint)
    raise ResultError(
        f"{word!r} matches {len(matches)} runs",
        hint=f"the newest are {', '.join(matches[-2:])}, 'last' is the newest of all",
    )


def study(
    output_root: Path,
    name: str,
    *,
    members: Sequence[str] | None = None,
    complain: Callable[[str], Any] | None = None,
) -> list[Record]:
    """Return the records of a study: those of its plan, and those that name it.

    Imported runs come without a plan. `members` are the runs that the caller found to name the study, and no
    others are then read. Otherwise `complain` is called with what the result lacks: see `readable`, and
    trials of the plan. Raises UserError if there is neither a plan nor a run of this name.
    """
    plan = studies.load(studies.folder(output_root, name))
    planned = studies.records(plan, output_root) if plan else []
    if members is None:
        own = {run.run_id for run in planned}
        named = (run for run in readable(output_root, complain) if run.experiment.study == name)
        planned += [run for run in named if run.run_id not in own]
    if plan is None and not planned and not members:
        plans = sorted(path.parent.name for path in (output_root / "studies").glob(f"*/{studies.PLAN}"))
        raise ResultError(f"unknown study {name!r}", hint=f"studies: {', '.join(plans) or 'none'}")
    if complain and plan:
        trials = {trial.id for trial in studies.trials(plan)}
        done = {studies.trial_id(run.key, run.seed) for run in planned}
        if missing := len(trials - done):
            complain(f"study {name}: {missing} of {len(trials)} planned runs have no record that can be used")
        logged = studies.logged_trials(studies.attempts_log(studies.folder(output_root, name)))
        if lost := (trials & done) - logged:
            complain(
                f"study {name}: its log {studies.LOG} has no attempt at {len(lost)} of {len(trials)} planned "
                "runs, so the number of deleted runs is unknown"
            )
    return planned
