"""Runs of the past: `python -m mlbench.results list`, show, compare, export, import, plot, delete or sync.

Every command is one function here; what it does is in mlbench.analysis, report and tracking, how it
looks in mlbench.terminal.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbench.analysis import compare, select
from mlbench.experiment import record, run_folders
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.terminal import command, help_text, live_view, tables
from mlbench.terminal.args import Given, parse
from mlbench.tracking import parent_runs, uploader

SETTINGS = {"output_root": "runs"}  # name=value words of every command, with their defaults


@dataclass(frozen=True)
class Command:
    """One word after `python -m mlbench.results`; `settings` are name=value words beside SETTINGS."""

    run: Callable[[Given], int]
    settings: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""

    def body() -> int:
        with command.readers_may_leave():
            return _run(list(arguments))
        return 0  # the reader left

    return command.ended(body)


def _run(arguments: list[str]) -> int:
    asked = [word for word in arguments if word in ("-h", "--help")]
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is None or (name not in COMMANDS and asked):
        print(help_text.RESULTS, end="")
        return 0 if asked else command.USER_ERROR
    if name not in COMMANDS:
        raise UserError(f"{name!r} is not a command", hint=f"say {', '.join(COMMANDS)} or --help")
    if asked:
        print(help_text.COMMANDS[name], end="")
        return 0
    arguments.remove(name)
    return COMMANDS[name].run(parse(name, arguments, SETTINGS | COMMANDS[name].settings))


def _list(given: Given) -> int:
    """Print one line a run, oldest first."""
    found = _selected(given)
    if given.json:
        print(json.dumps([tables.summary(one) for one in found], indent=2))
    elif found:
        rows = [[tables.cell(value) for value in tables.summary(one).values()] for one in found]
        print(tables.table([tables.heading(name) for name in tables.summary(found[0])], rows))
    else:
        print(f"no finished run below {given.output_root}{_that(given.words)}", file=sys.stderr)
    return 0


def _show(given: Given) -> int:
    """Print one run's result card, or its whole record as JSON."""
    if len(given.words) != 1:
        raise UserError(f"show takes one RUN, given: {' '.join(given.words) or 'nothing'}")
    folder = run_folders.folder(given.output_root, given.words[0])
    found = record.load(folder / "record.json")
    if given.json:
        print(found.model_dump_json(indent=2))
        return 0
    live_view.show_stored(found, folder=folder, tracking_uri=_uri(given, found))
    return 0


def _compare(given: Given) -> int:
    """Print A and B side by side; the exit code is 1 if B is slower than --fail-if-slower allows."""
    if len(given.words) < 2:
        raise UserError("compare takes A and B, two selections", hint="e.g. compare workers=1 workers=2")
    *sides, narrow = given.words[0], given.words[1], given.words[2:]
    if any("=" not in word for word in narrow):
        raise UserError(f"compare takes two selections, given a third: {narrow[0]}", hint="quote a selection")
    limit = given.share("--fail-if-slower")
    a, b = (_selected(given, [*side.split(), *narrow]) for side in sides)
    found = compare.compare(a, b, limit=limit)
    if given.json:
        print(json.dumps(tables.plain(found), indent=2, allow_nan=False))
    else:
        print(tables.compared(found, limit=limit))
    return 1 if any(pair.slower_than for pair in found.pairs) else 0


def _export(given: Given) -> int:
    """Write one zip a run."""
    from mlbench.tracking.archive import export

    found = _some(given)
    to = Path(given.settings["to"])
    single = to.suffix == ".zip"
    if single and len(found) > 1:
        raise UserError(f"{to} is one file, {len(found)} runs are selected", hint="to=FOLDER takes them all")
    for one in found:
        target = to if single else to / f"{one.run_id}.zip"
        target.parent.mkdir(parents=True, exist_ok=True)
        print(export(given.output_root / one.run_id, target), flush=True)
    return 0


def _import(given: Given) -> int:
    """Read zip files into output_root and MLflow; the exit code is 2 if one was refused, after all others."""
    from mlbench.tracking import archive, importer

    if not given.words:
        raise UserError("import takes zip files or folders", hint="import --help")
    uri = given.settings["tracking_uri"] or uploader.default_uri(given.output_root)
    complete = uploader.complete_in(uri)
    outcomes = []
    for path, found, log in archive.load(archive.paths(given.words)):
        if isinstance(found, UserError):
            outcomes.append({"file": str(path), "outcome": "refused", "why": str(found)})
            print(f"mlbench: {found}", file=sys.stderr)
            continue
        outcome = importer.keep(found, log, output_root=given.output_root, uri=uri, complete=complete)
        outcomes.append({"file": str(path), "outcome": outcome, "run": found.run_id})
        if not given.json:
            print(f"{found.run_id}: {outcome}", flush=True)
    _total(given, outcomes, ("imported", "present", "refused"))
    return command.USER_ERROR if any(one["outcome"] == "refused" for one in outcomes) else 0


def _plot(given: Given) -> int:
    """Write the report of a selection."""
    from mlbench.report import writer

    if not given.settings["to"]:
        raise UserError("plot needs a folder to write to", hint="to=FOLDER")
    found = _some(given) if given.words else _selected(given)
    if not found:
        raise UserError(f"no finished run below {given.output_root}")
    words = " ".join(["python -m mlbench.results plot", *given.words])
    text = writer.StudyText(
        title=f"Runs: {' '.join(given.words) or 'all'}",
        question=given.settings["question"] or f"What do the runs {' '.join(given.words) or 'here'} show?",
        commands=(words,),
    )
    for path in writer.write(found, Path(given.settings["to"]), study=text):
        print(path)
    return 0


def _delete(given: Given) -> int:
    """Delete runs after asking."""
    from mlbench.tracking import importer

    found = _some(given)
    if "--yes" not in given.options:
        for one in found:
            print(one.run_id, file=sys.stderr)
        if not sys.stdin.isatty():
            raise UserError(f"delete asks before it deletes {len(found)} runs", hint="--yes says yes")
        print(
            f"delete these {len(found)} runs from {given.output_root} and MLflow? [y/N] ", end="", flush=True
        )
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return 0
    outcomes = []
    for one in found:
        known = importer.delete(given.output_root / one.run_id, _uri(given, one))
        outcomes.append({"run": one.run_id, "outcome": "deleted", "mlflow": known})
        if not given.json:
            print(f"{one.run_id}: deleted" + ("" if known else ", MLflow did not have it"), flush=True)
    _total(given, outcomes, ("deleted",))
    return 0


def _sync(given: Given) -> int:
    """Bring every run into MLflow; the exit code is 1 if one could not be brought."""
    if given.words:
        raise UserError(f"sync takes no further word, given: {' '.join(given.words)}")
    outcomes = []
    for one in uploader.sync(given.output_root, given.settings["tracking_uri"] or None):
        outcomes.append(vars(one))
        if not given.json and one.outcome != "present":
            print(f"{one.run_id}: {one.outcome}" + (f": {one.why}" if one.why else ""), flush=True)
    for name in parent_runs.sync(given.output_root, given.settings["tracking_uri"] or None):
        if not given.json:
            print(f"study {name}: written", flush=True)
    if outcomes or given.json:
        _total(given, outcomes, uploader.OUTCOMES)
    else:
        print(f"no run below {given.output_root}")
    return 1 if any(one["outcome"] == "failed" for one in outcomes) else 0


def _selected(given: Given, words: Sequence[str] | None = None) -> list[Record]:
    """Return the records that the words select."""
    found, complaints = run_folders.records(given.output_root)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return select.select(
        found,
        given.words if words is None else words,
        studies=lambda name: run_folders.study(given.output_root, name),
    )


def _some(given: Given) -> list[Record]:
    """Return the records that the words select, of which there must be both."""
    if not given.words:
        raise UserError("say which runs: a part of a name, or name=value words", hint="--help has examples")
    found = _selected(given)
    if not found:
        hint = run_folders.results_command("list", given.output_root)
        raise UserError(f"no finished run below {given.output_root}{_that(given.words)}", hint=hint)
    return found


def _that(words: Sequence[str]) -> str:
    return f" that is {' '.join(words)}" if words else ""


def _uri(given: Given, one: Record) -> str:
    """Return the store that has a run: the one asked for, else its own, else the default."""
    own = one.experiment["tracking_uri"]
    return given.settings.get("tracking_uri") or own or uploader.default_uri(given.output_root)


def _total(given: Given, outcomes: list[dict[str, Any]], known: Sequence[str]) -> None:
    """Print how many there were of each outcome, or all of them as JSON."""
    if given.json:
        print(json.dumps(outcomes, indent=2))
        return
    counts = {word: sum(one["outcome"] == word for one in outcomes) for word in known}
    print(", ".join(f"{count} {word}" for word, count in counts.items() if count))


COMMANDS = {
    "list": Command(_list, {}),
    "show": Command(_show, {}),
    "compare": Command(_compare, {}),
    "export": Command(_export, {"to": "."}),
    "import": Command(_import, {"tracking_uri": ""}),
    "plot": Command(_plot, {"to": "", "question": ""}),
    "delete": Command(_delete, {"tracking_uri": ""}),
    "sync": Command(_sync, {"tracking_uri": ""}),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
