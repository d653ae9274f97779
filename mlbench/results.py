"""Runs of the past: `python -m mlbench.results list | show RUN | sync`, on the folders below output_root."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbench import events, record, store, units
from mlbench.errors import UserError
from mlbench.record import Record

EXIT_USER_ERROR = 2
SETTINGS = {"output_root": "runs"}  # name=value words of every command, with their defaults


@dataclass(frozen=True)
class Command:
    """One word after `python -m mlbench.results`.

    - operands: how the words that are not settings are called in the help, e.g. ("RUN",).
    - settings: name=value words beside those of every command, with their defaults.
    """

    run: Callable[["Given"], int]
    about: str
    operands: tuple[str, ...] = ()
    settings: dict[str, str] | None = None


@dataclass(frozen=True)
class Given:
    """What the user wrote after the command."""

    operands: list[str]
    settings: dict[str, str]
    json: bool

    @property
    def output_root(self) -> Path:
        return Path(self.settings["output_root"])


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    try:
        name, given = _parse(arguments)
        code = COMMANDS[name].run(given)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"mlbench: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BrokenPipeError:  # the reader, e.g. head, has seen enough (Python's note on SIGPIPE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(arguments: Sequence[str]) -> tuple[str, Given]:
    """Read the command, its settings and its operands; raise UserError with a sentence a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m mlbench.results",
        description=(__doc__ or "").split(":")[0] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Settings are written name=value, as for mlbench.run: "
        + ", ".join(f"{name}={default}" for name, default in SETTINGS.items()),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        usage = [*command.operands, *(f"[{setting}=...]" for setting in SETTINGS | (command.settings or {}))]
        one = commands.add_parser(
            name,
            help=command.about,
            description=command.about,
            usage=f"python -m mlbench.results {name} {' '.join(usage)} [--json]",
        )
        one.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        one.add_argument("--json", action="store_true", help="print JSON, for scripts")
    read = parser.parse_args(arguments)
    command = COMMANDS[read.command]
    settings = SETTINGS | (command.settings or {})
    operands = []
    for word in read.words:
        setting, equals, value = word.partition("=")
        if not equals:
            operands.append(word)
        elif setting in settings:
            settings[setting] = value
        else:
            raise UserError(f"{setting} is unknown", hint=f"choose from {', '.join(settings)}")
    if len(operands) != len(command.operands):
        wanted = " ".join(command.operands) or "no further word"
        raise UserError(f"{read.command} takes {wanted}, given: {' '.join(operands) or 'nothing'}")
    return read.command, Given(operands, settings, read.json)


def _list(given: Given) -> int:
    """Print one line a run, oldest first."""
    found = list(_records(given.output_root))
    if given.json:
        print(json.dumps([_summary(one) for one in found], indent=2))
        return 0
    if not found:
        print(f"no finished run below {given.output_root}", file=sys.stderr)
        return 0
    rows = [[_cell(value) for value in _summary(one).values()] for one in found]
    print(_table([_heading(name) for name in _summary(found[0])], rows))
    return 0


def _show(given: Given) -> int:
    """Print one run's result card, or its whole record as JSON."""
    from mlbench.terminal import card, footer

    folder = _folder(given.output_root, given.operands[0])
    found = record.load(folder / "record.json")
    if given.json:
        print(found.model_dump_json(indent=2))
        return 0
    print(card.plain(found))
    uri = found.experiment["tracking_uri"] or store.default_uri(folder.parent)
    for label, text in footer.stored(found, folder=folder, tracking_uri=uri):
        print(f"  {label}: {text}" if label else f"  {text}")
    return 0


def _sync(given: Given) -> int:
    """Bring every run into MLflow; the exit code is 1 if one could not be brought."""
    outcomes = []
    for one in store.sync(given.output_root, given.settings["tracking_uri"] or None):
        outcomes.append(one)
        if not given.json and one.outcome != "present":
            print(f"{one.run_id}: {one.outcome}" + (f": {one.why}" if one.why else ""), flush=True)
    if given.json:
        print(json.dumps([vars(one) for one in outcomes], indent=2))
    else:
        counts = {word: sum(one.outcome == word for one in outcomes) for word in store.OUTCOMES}
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        print(said or f"no run below {given.output_root}")
    return 1 if any(one.outcome == "failed" for one in outcomes) else 0


def _records(output_root: Path) -> Iterator[Record]:
    for path in sorted(output_root.glob("*/record.json")):
        try:
            yield record.load(path)
        except ValueError:
            print(f"{path} is damaged or of another version of mlbench", file=sys.stderr)


def _folder(output_root: Path, word: str) -> Path:
    """Return the run's folder by its name or by a part that no other run has."""
    folders = [path.parent for path in sorted(output_root.glob("*/record.json"))]
    exact = [folder for folder in folders if folder.name == word]
    found = exact or [folder for folder in folders if word in folder.name]
    if len(found) == 1:
        return found[0]
    if not found:
        unfinished = (output_root / word / events.NAME).exists()
        hint = "python -m mlbench.results sync" if unfinished else "python -m mlbench.results list"
        raise UserError(f"no finished run {word!r} below {output_root}", hint=hint)
    raise UserError(f"{word!r} is a part of {len(found)} runs' names", hint=f"e.g. {found[-1].name}")


def _summary(one: Record) -> dict[str, Any]:
    """Return what tells one run from the next, in the order of the table's columns."""
    return {
        "run": one.run_id,
        "task": one.experiment["task"]["name"],
        "scale": one.experiment["scale"],
        "workers": one.workers,
        "backend": one.experiment["backend"]["name"],
        "status": one.status,
        "goal": one.goal,
        "best": one.best,
        "time_to_accuracy": one.time_to_accuracy,
        "epochs": one.epochs,
        "samples_per_s": one.samples_per_s,
    }


def _heading(name: str) -> str:
    return name.replace("_", " ") + (" / s" if name == "time_to_accuracy" else "")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return units.number(value) if isinstance(value, float) else str(value)


def _table(headings: list[str], rows: list[list[str]]) -> str:
    """Return columns as wide as their widest cell."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.ljust, line, widths) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


COMMANDS = {
    "list": Command(_list, "list finished runs"),
    "show": Command(_show, "show one run; any part of its name that no other has will do", ("RUN",)),
    "sync": Command(
        _sync,
        "bring every run that is not complete there into MLflow",
        settings={"tracking_uri": ""},
    ),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
