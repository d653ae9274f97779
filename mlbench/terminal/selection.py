"""Select finished runs by the words of a command, and name the nearest value if none is selected."""

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlbench.analysis import run_index, select
from mlbench.config.errors import UserError, suggest
from mlbench.config.overrides import VERBATIM
from mlbench.record import reader, run_folders
from mlbench.record.record import Record
from mlbench.terminal.args import OUTPUT_ROOT, Args, warn


def load(args: Args, names: Sequence[str]) -> list[Record]:
    """Return the records of runs, without those that were deleted since they were selected."""
    records = []
    for name in names:
        with suppress(FileNotFoundError):
            records.append(reader.load(args.output_root / name / "record.json"))
    return records


def names(args: Args, runs: Mapping[str, run_index.IndexEntry], filters: Sequence[str]) -> list[str]:
    """Return the names of the runs that the words select."""
    names = [word.partition("=")[0] for word in filters if "=" in word]
    if twice := next((name for name in names if names.count(name) > 1), None):
        values = ",".join(word.partition("=")[2] for word in filters if word.startswith(f"{twice}="))
        raise UserError(f"{twice} is given twice", hint=f"give alternatives with a comma: {twice}={values}")

    def in_studies(names: str) -> list[str]:
        chosen = []
        for name in names.split(","):
            members = [run for run in runs if runs[run].fields.get("study") == name]
            planned = run_folders.study(args.output_root, name, members=members)
            chosen += [*members, *(record.run_id for record in planned)]
        return chosen

    if compared := next((word for word in filters if re.match(r"[\w.]+ *[<>!]", word)), None):
        raise UserError(f"{compared} is not a filter", hint="list the values: workers=2,4")
    filters = [run_name(args, word) for word in filters]
    chosen = select.select(list(runs), filters, fields=lambda name: runs[name].fields, studies=in_studies)
    for name, _, value in (word.partition("=") for word in filters if chosen):
        for text in value.split(",") if "," in value else ():
            if not any(select.matches(entry.fields, name, [text]) for entry in runs.values()):
                warn(f"no finished run has {name}={text}")
    plain = [word for word in filters if not chosen and not {"=", ":"} & set(word)]
    named = {entry.fields.get("study") for entry in runs.values()}
    if name := next((w for w in plain if w in named or run_folders.is_study(args.output_root, w)), None):
        raise UserError(f"no finished run matches {name!r}", hint=f"it is a study: study:{name}")
    if word := next((word for word in plain if Path(word).is_dir()), None):
        raise UserError(f"{word} is a folder, not a run", hint=f"output_root={word} reads the runs in it")
    return chosen


def run_name(args: Args, word: str) -> str:
    """Return the run in a folder that a word names, e.g. runs/RUN/ as the tab key completes it."""
    path = Path(word)
    return path.name if "/" in word and path.parent in (args.output_root, Path()) and path.name else word


def entries(args: Args) -> dict[str, run_index.IndexEntry]:
    """Return all runs by name, oldest first, and name those that cannot be read."""
    runs, complaints = run_index.entries(output_root(args))
    for complaint in complaints:
        warn(complaint)
    return runs


def output_root(args: Args) -> Path:
    """Return output_root. Raises UserError if it is not the default and does not exist."""
    root = args.output_root
    if str(root) != OUTPUT_ROOT["output_root"][0] and not root.is_dir():
        fault = "it is a file" if root.is_file() else "it does not exist"
        raise UserError(f"output_root={root}: {fault}", hint="name the folder that has your runs")
    return root


def terms(text: str) -> list[str]:
    """Return the terms of a selection in one word, split as a shell does.

    A value that a user's script has, such as task.args=--lr 0.1, goes on up to the next name=value.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text} cannot be split: {error}", hint="close the quote") from error
    found: list[str] = []
    for word in words:
        own = found and found[-1].partition("=")[0] in VERBATIM
        if own and not re.match(r"[a-z_][\w.]*=|study:|key:", word):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def records(args: Args, *, or_all: bool = False) -> list[Record]:
    """Return the records that the words select, or without words all if `or_all`. UserError for none."""
    if not args.arguments and not or_all:
        raise UserError(
            "name the runs: a part of their name, or name=value filters", hint="--help has examples"
        )
    records = load(args, names(args, entries(args), args.arguments))
    if not records:
        listing = run_folders.results_command("list", args.output_root) if args.arguments else ""
        raise UserError(nothing_found(args, args.arguments), hint=listing)
    return records


def nothing_found(args: Args, filters: Sequence[str] = ()) -> str:
    """Return that nothing was selected, with the nearest value that a run has."""
    where = f"no finished run in {args.output_root}"
    if not filters:
        return f"{where} ({run_folders.command_line(args.output_root, 'run')} makes one)"
    runs, _ = run_index.entries(args.output_root)
    rows = [entry.fields for entry in runs.values()]
    for word in filters:
        name, equals, value = word.partition("=")
        fields = select.NAMES.get(name, (name,)) if equals else ()
        values = {str(row[field]) for row in rows for field in fields if row.get(field) is not None}
        values = {text.lower() if text in ("True", "False") else text for text in values}
        if values.isdisjoint(value.split(",")) and values:
            return f"{where} matches {word}{suggest(value.split(',')[0], sorted(values))}"
    return f"{where} matches {' '.join(filters)}"
