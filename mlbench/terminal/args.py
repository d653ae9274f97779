"""The command lines of all commands: argparse sub-commands and options, with `name=value` words beside them.

A command is described once, as a `Command` of `Verb`s; parser, help and error sentences come from that. How
every command ends is here too: with an exit code, and with one sentence instead of a traceback.
"""

import argparse
import difflib
import errno
import os
import re
import select
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import mlbench
from mlbench.config import compose, overrides, plugins
from mlbench.config.errors import UserError, suggest
from mlbench.config.experiment import Experiment
from mlbench.record import format
from mlbench.terminal import streams

OK, FAILED, USER_ERROR, NO_VERDICT, INTERRUPTED = 0, 1, 2, 3, 130  # 130: 128 + SIGINT, as shells expect
WIDTH = 79  # columns of the help; fits a terminal of 80
COLUMN = 26  # at which the meaning of a term begins
OUTPUT_ROOT = {"output_root": ("runs", "the folder that has the runs and studies")}
JSON: dict[str, dict[str, Any]] = {"--json": {"action": "store_true", "help": "print JSON, for scripts"}}
COMPLETION = "mlbench --completion bash (or zsh, fish) prints the shell's completion script"
CONFIG_DIR: dict[str, dict[str, Any]] = {
    "--config-dir": {
        "metavar": "FOLDER",
        "help": "more YAML files: FOLDER/hardware/NAME.yaml and so on (always read: ~/.config/mlbench)",
    }
}
BEFORE: dict[str, dict[str, Any]] = {  # options of what measures
    "--cfg": {"choices": ("job",), "help": "print the resolved configuration and stop"},
    "--dry-run": {
        "action": "store_true",
        "help": "print the plan, what is reused, and an estimate of time and money; start nothing",
    },
}
HYDRA = {  # options of Hydra's own command line, and what to use instead
    "-m": "several values make a sweep: python -m mlbench.sweep workers=1,2",
    "--multirun": "several values make a sweep: python -m mlbench.sweep workers=1,2",
    "--config": "--config-dir FOLDER adds YAML files; the values of a run are its name=value words",
    "-c": "--cfg job prints the resolved configuration",
    "--cfg": "python -m mlbench.run --cfg job prints the resolved configuration of one run",
    "--dryrun": "--dry-run shows the plan and an estimate, and starts nothing",
    "-n": "--dry-run shows the plan and an estimate, and starts nothing",
    "--info": "use --cfg job to print the resolved configuration",
    "--hydra-help": "use --help",
    "--package": "packages cannot be changed; write name=value",
    "--run": "a run needs no option; write name=value",
    "--resolve": "--cfg job prints resolved values",
    "--shell-completion": COMPLETION,
    "-sc": COMPLETION,
    "-cd": "--config-dir FOLDER adds a folder of YAML files",
    "--config-path": "--config-dir FOLDER adds a folder of YAML files",
    "--config-name": "conf/config.yaml is the only one; write name=value",
}


@dataclass(frozen=True)
class Args:
    """What was written after a command.

    - arguments: neither settings nor options, in the order written: overrides, filters, names.
    - settings: the name=value words that the verb declares, with defaults filled in.
    """

    verb: str
    arguments: list[str]
    settings: dict[str, str]
    options: argparse.Namespace

    @property
    def output_root(self) -> Path:
        return Path(self.settings["output_root"])

    @property
    def json(self) -> bool:
        return self.options.json


@dataclass(frozen=True)
class Verb:
    """One sub-command, or the whole of a command that has none.

    - run: does it and returns the exit code.
    - arguments: for the usage line, what it takes beside settings and options; "" is nothing.
    - settings: default and meaning of its own name=value words.
    - overrides: whether all other name=value words are passed on (as overrides or filters) or refused.
    - options: keyword arguments of `add_argument` by option.
    - examples: a command line and, if it needs one, a sentence.
    """

    run: Callable[[Args], int]
    help: str
    description: str = ""
    arguments: str = ""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    overrides: bool = False
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    examples: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Command:
    """One file of mlbench/: `verbs` by name, or one verb named "" for a command without sub-commands.

    - sections: heading and text of what follows in the help; read only when the help is printed.
    - empty: whether the command does something when nothing is written after it.
    """

    name: str
    description: str
    verbs: Mapping[str, Verb]
    sections: Callable[[], Iterable[tuple[str, str]]] = lambda: ()
    empty: bool = False

    @property
    def program(self) -> str:
        return f"python -m mlbench.{self.name}"


def run_command(command: Command, argv: Sequence[str]) -> int:
    """Run a command line; return its exit code.

    0: done. 1: it ran, and the answer is no. 2: a mistake, in one sentence. 3: it ran, and there is no
    answer. 130: interrupted.
    """
    streams.open_standard_streams()
    try:
        with ignore_broken_pipe():
            _require_current_folder()
            if not argv and not command.empty:
                print(parser(command).format_help(), end="")
                return USER_ERROR
            try:
                args = parse(command, argv)
            except SystemExit as answered:  # argparse has printed the help or the version
                return int(answered.code or OK)
            return command.verbs[args.verb].run(args)
        return OK
    except UserError as error:
        say(f"mlbench: {error}", file=sys.stderr)
        return USER_ERROR
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            streams.discard(sys.stdout)
            print("mlbench: the output cannot be written: no space left on device", file=sys.stderr)
            return FAILED
        if error.filename is None:
            raise
        print(f"mlbench: {_path_error(error, argv)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("mlbench: interrupted; run the same command again to continue", file=sys.stderr)
        return INTERRUPTED


def say(text: str, *, file: TextIO | None = None) -> None:
    """Print lines without terminal control codes: they may hold what others wrote, e.g. a folder's name."""
    print("\n".join(map(format.printable, text.splitlines())), file=file, flush=True)


def _require_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was deleted", hint="cd to one that exists") from error


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout, e.g. head, has left (docs.python.org, library/signal)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in stdout.poll(0)):
            raise  # another pipe or socket broke
        streams.discard(sys.stdout)


def _path_error(error: OSError, argv: Sequence[str]) -> str:
    """Return the sentence for a path that cannot be used, with the setting it came from."""
    path = Path(os.fsdecode(error.filename)).absolute()
    reason = f"cannot use {error.filename}: {(error.strerror or 'failed').lower()}"
    for word in argv:
        name, equals, value = word.partition("=")
        if equals and value and path.is_relative_to(Path(value).absolute()):
            return f"{word}: {reason} (give another {name})"
    return reason


def parse(command: Command, argv: Sequence[str]) -> Args:
    """Read a command line; UserError for every mistake, SystemExit for --help and --version."""
    name, rest = "", list(argv)
    if "" not in command.verbs:
        name = next((word for word in argv if not word.startswith("-")), None)
        if name is None:
            parser(command).parse_known_args(argv)
            hint = f"choose from {', '.join(command.verbs)}"
            raise UserError(f"{command.name} needs a sub-command", hint=hint)
        if name not in command.verbs:
            near = suggest(name, list(command.verbs))
            raise UserError(f"{name!r} is not a sub-command of {command.name}{near}")
        rest.remove(name)
    verb, label = command.verbs[name], f"{command.name} {name}".strip()
    namespace, rest = parser(command, name).parse_known_args(rest)
    settings = {setting: default for setting, (default, _) in verb.settings.items()}
    arguments: list[str] = []
    for word in rest:
        left, equals, value = word.partition("=")
        if word == "--" and word is not rest[-1]:
            continue  # what follows are words, as they are without it
        if word.startswith("-") and len(word) > 1:
            sentence, hint = _unknown_option(left, value, rest, verb, label)
            raise UserError(sentence, hint=hint)
        if equals and left in verb.settings:
            if not value:
                raise UserError(f"{word} has no value", hint="leave it out for the default")
            settings[left] = value
        elif equals and left not in Experiment.model_fields and (meant := _near(left, verb)):
            raise UserError(f"{left} is unknown: did you mean {meant}?")
        elif equals and not verb.overrides and re.fullmatch(r"[a-z_][\w.]*", left):
            raise UserError(f"{left} is unknown to {label}{suggest(left, list(verb.settings))}")
        else:
            arguments.append(word)
    if arguments and not verb.arguments:
        sentence = f"{label} takes no further word, got: {' '.join(arguments)}"
        raise UserError(sentence, hint=f"{label} --help")
    if getattr(namespace, "config_dir", None):
        arguments.append(overrides.search_word(namespace.config_dir))
    return Args(name, arguments, settings, namespace)


def check_overrides(words: Sequence[str]) -> None:
    """Refuse words that cannot be overrides, with what was probably meant.

    Raises UserError for a word without "=", for several overrides in one word, and for a name given twice.
    """
    names: dict[str, str] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith(("+", "~")):
            meant = word.lstrip("+") if equals and word[0] == "+" else "name=value"
            raise UserError(f"{word}: keys cannot be added or removed", hint=f"write {meant}")
        if not equals or not name:
            raise UserError(f"{word!r} is not of the form name=value", hint=_meant(words, place))
        if re.search(r"\s[\w.]+=", value) and value[0] not in "\"'[{":
            parts = " ".join(shlex.quote(part) for part in word.split())
            raise UserError(f"{word!r} holds several overrides", hint=f"write {parts} without quotes around")
        if name in ("workers", "seed") and (ends := re.fullmatch(r"(\d+) ?(?:-|\.\.|:|to) ?(\d+)", value)):
            raise UserError(
                f"{word} is not a list of numbers",
                hint=f"write {name}=range({ends[1]},{int(ends[2]) + 1}) or {name}={ends[1]},{ends[2]}",
            )
        if name in ("workers", "seed") and (numbers := re.fullmatch(r"\[([\d, ]+)\]|([\d,]+),\.\.\.", value)):
            listed = (numbers[1] or numbers[2]).replace(" ", "")
            raise UserError(f"{word} is not a list of numbers", hint=f"write {name}={listed}")
        if name in names:
            raise UserError(f"{name} is given twice: {names[name]} and {word}", hint="keep one of them")
        names[name] = word


def percentage(text: str) -> float:
    """Return 0.05 for `5%`; an argparse type."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if not number:
        raise argparse.ArgumentTypeError(f"takes a percentage such as 5%, got: {text or 'nothing'}")
    return float(number[1]) / 100


def paragraph(text: str, *, indent: int = 0) -> str:
    """Return text wrapped to the width of the help."""
    space = " " * indent
    return textwrap.fill(text, WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def entry(term: str, meaning: str, *, column: int = COLUMN) -> str:
    """Return a term and its meaning beside it, or below it where the term is too long."""
    space = " " * column
    first = term.ljust(column) if len(term) <= column - 2 else ""
    text = textwrap.fill(
        meaning, WIDTH, initial_indent=first or space, subsequent_indent=space, break_on_hyphens=False
    )
    return text or term if first else f"{term}\n{text}"


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UserErrors and whose help ends with sections that are read late."""

    sections: Callable[[], Iterable[tuple[str, str]]] = staticmethod(lambda: ())

    def error(self, message: str) -> Any:
        raise UserError(message, hint=f"{self.prog} --help")

    def format_help(self) -> str:
        parts = [super().format_help().strip("\n")]
        parts += [f"{heading}:\n{text}" for heading, text in self.sections()]
        return "\n\n".join(parts) + "\n"


def parser(command: Command, name: str | None = None) -> _Parser:
    """Return the parser of a verb, or of a whole command, which then lists its verbs."""
    if name is None and "" in command.verbs:
        name = ""
    verb = None if name is None else command.verbs[name]
    made = _Parser(
        prog=f"{command.program} {name or ''}".strip(),
        usage=_usage(command, name),
        description=_list_of_verbs(command) if verb is None else _description(command, verb),
        allow_abbrev=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=WIDTH, max_help_position=COLUMN),
    )
    if not name:
        made.sections = command.sections
    for option, keywords in verb.options.items() if verb else ():
        made.add_argument(option, **keywords)
    made.add_argument("--version", action="version", version=f"mlbench {mlbench.__version__}")
    return made


def _usage(command: Command, name: str | None) -> str:
    if name is None:
        return f"{command.program} COMMAND [WORD ...] [OPTION ...]"
    verb = command.verbs[name]
    settings = "[name=value ...]" if verb.settings and not verb.overrides else ""
    options = "[OPTION ...]" if verb.options else ""
    return " ".join(filter(None, [command.program, name, verb.arguments, settings, options]))


def _list_of_verbs(command: Command) -> str:
    lines = "\n".join(entry(f"  {name}", verb.help, column=13) for name, verb in command.verbs.items())
    closing = f"`{command.program} COMMAND --help` has examples."
    return f"{paragraph(command.description)}\n\ncommands:\n{lines}\n\n{closing}"


def _description(command: Command, verb: Verb) -> str:
    """Return what a verb does, its examples and its settings."""
    description = verb.description or f"{verb.help.capitalize()}."
    text = [paragraph(command.description if "" in command.verbs else description)]
    if verb.examples:
        lines = (f"  {line}" + (f"\n{paragraph(about, indent=6)}" if about else "")
                 for line, about in verb.examples)  # fmt: skip
        text.append("examples:\n" + "\n".join(lines))
    if verb.settings:
        listed = (entry(f"  {name}={default}", about) for name, (default, about) in verb.settings.items())
        text.append("settings (name=value, with their defaults):\n" + "\n".join(listed))
    return "\n\n".join(text)


def _near(name: str, verb: Verb) -> str | None:
    """Return the setting that is meant by an unknown name, None where a field of an experiment is nearer."""
    known = [*verb.settings, *Experiment.model_fields]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return close[0] if close and close[0] in verb.settings else None


def _unknown_option(name: str, value: str, rest: Sequence[str], verb: Verb, label: str) -> tuple[str, str]:
    """Return the sentence for an option that is not there, and the way out."""
    bare = name.lstrip("-").replace("-", "_")
    if bare in verb.settings or (verb.overrides and bare in Experiment.model_fields):
        following = rest[rest.index(name) + 1 :] if name in rest else []
        example = value or next((word for word in following if not word.startswith("-")), "VALUE")
        return f"{name} is not an option", f"write {bare}={example}"
    if name in HYDRA and verb.overrides:
        return f"{name} is not an option of {label}", HYDRA[name]
    known = [*verb.options, "--help", "--version"]
    return f"{name} is not an option of {label}{suggest(name, known)}", f"{label} --help"


def _meant(words: Sequence[str], place: int) -> str:
    """Return what was probably meant by a word that is not of the form name=value."""
    word = words[place]
    before, after = words[place - 1] if place else "", words[place + 1] if place + 1 < len(words) else ""
    if before.endswith(","):
        return f"write {before}{word} without spaces"
    if word == "=" or after == "=" or after.startswith("=") or word.endswith("="):
        name, value = (before, after) if word == "=" else (word, words[-1])
        return f"write {name.strip('=')}={value.strip('=')} without spaces"
    if word in (*plugins.GROUPS, *Experiment.model_fields):
        return f"write {word}={after or 'VALUE'}"
    if word in ("help", "list"):
        return "--help explains the command; python -m mlbench.results list shows the runs"
    for group in (*plugins.GROUPS, "study"):
        if Path(word).name.removesuffix(".yaml") in compose.choices(group):
            return f"write {group}={Path(word).name.removesuffix('.yaml')}"
    return "e.g. task=logreg workers=2"
