"""Parse the command lines of all commands: sub-commands, options and `name=value` words, by argparse.

`@COMMAND.verb(...)` makes a function a verb. Parser, help, completion and error sentences come from that. How
every command ends is here too: with an exit code, and with one sentence instead of a traceback.
"""

import argparse
import difflib
import errno
import inspect
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

import mlbench
from mlbench.config import compose, libraries, overrides, plugins
from mlbench.config.errors import UserError, suggest
from mlbench.config.experiment import Experiment
from mlbench.record import format
from mlbench.terminal import streams

OK, FAILED, USER_ERROR, NO_VERDICT, INTERRUPTED = 0, 1, 2, 3, 130  # 130: 128 + SIGINT, as shells expect
WIDTH = 79  # columns of the help, which fits a terminal of 80
COLUMN = 26  # at which the meaning of a term begins at the latest
DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|d)")
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # seconds
OUTPUT_ROOT = {"output_root": ("runs", "the folder that has the runs and studies")}
COMPLETION = "mlbench --completion bash (or zsh, fish) prints the shell's completion script"
EXAMPLES = {"RUN": "last", "STUDY": "NAME (mlbench results list prints their names)"}  # of a word
Options = dict[str, dict[str, Any]]  # keyword arguments of `add_argument` by option
Content = str | Sequence[tuple[str, str]]  # of a section of the help: a paragraph, or terms with meanings
HYDRA = {  # options of Hydra's command line, and what to use instead
    **dict.fromkeys(("-m", "--multirun"), "several values make a sweep: mlbench sweep workers=1,2"),
    "--config": "--config-dir FOLDER adds YAML files, the values of a run are its name=value words",
    **dict.fromkeys(("-c", "--info"), "--cfg job prints the resolved configuration"),
    "--cfg": "mlbench run --cfg job prints the resolved configuration of one run",
    **dict.fromkeys(("-n", "--dryrun"), "--dry-run prints the plan and an estimate without starting a run"),
    "--hydra-help": "use --help",
    "--package": "packages cannot be changed: write name=value",
    "--run": "a run needs no option: write name=value",
    "--resolve": "--cfg job prints resolved values",
    **dict.fromkeys(("-sc", "--shell-completion"), COMPLETION),
    **dict.fromkeys(("-cd", "--config-path"), "--config-dir FOLDER adds a folder of YAML files"),
    "--config-name": "conf/config.yaml is the only one: write name=value",
}


def flag(option: str, help: str) -> Options:
    """Return an option that takes no value."""
    return {option: {"action": "store_true", "help": help}}


OUTPUTS = ("--json", "--csv", "--markdown", "--wide", "--cfg", "--dry-run", "--new")  # one at a time
JSON = flag("--json", "print JSON, for scripts")
CONFIG_DIR: Options = {
    "--config-dir": {
        "metavar": "FOLDER",
        "help": "more YAML files: FOLDER/hardware/NAME.yaml and so on (always read: ~/.config/mlbench)",
    }
}
BEFORE: Options = {  # options of what measures
    "--cfg": {"choices": ("job",), "help": "print the resolved configuration and stop"},
    **flag(
        "--dry-run", "print the plan, cached runs, and an estimate of time and money, without starting a run"
    ),
}


@dataclass(frozen=True)
class Args:
    """The words written after a command.

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
    def argument(self) -> str:
        """The one word of a verb that takes one."""
        return self.arguments[0]

    @property
    def json(self) -> bool:
        return self.options.json


@dataclass(frozen=True)
class Verb:
    """One sub-command, or the whole of a command that has none.

    - run: does it and returns the exit code. Its docstring, with examples, is the help.
    - arguments: what it takes besides settings and options, as in the usage line: NAME is one word, [NAME] at
      most one. Words of the form name=value are taken if it has `name=value` or `FILTER`.
    - settings: default and meaning of its name=value words.
    """

    run: Callable[[Args], int]
    arguments: str = ""
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    options: Options = field(default_factory=dict)

    @property
    def help(self) -> str:
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        """The first sentence of the help, without its full stop."""
        return " ".join(self.help.partition("\n\n")[0].split()).partition(". ")[0].removesuffix(".")

    @property
    def overrides(self) -> bool:
        """Whether it takes all other name=value words, as overrides or filters."""
        return "name=value" in self.arguments or "FILTER" in self.arguments


@dataclass(frozen=True)
class Command:
    """One file of mlbench/: `verbs` by name, or one verb named "" for a command without sub-commands.

    - sections: heading and content of what follows in the help, read only when the help is printed.
    - empty: whether the command does something when nothing is written after it.
    - options: those that all its verbs take.
    """

    name: str
    description: str | None = None
    sections: Callable[[], Iterable[tuple[str, Content]]] = tuple
    empty: bool = False
    options: Options = field(default_factory=dict)
    verbs: dict[str, Verb] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return f"mlbench {self.name}"

    def verb(self, name: str, *args: Any, **keywords: Any) -> Callable[[Callable[[Args], int]], Any]:
        """Return a decorator that makes a function a verb of this command. The arguments are `Verb`'s."""

        def add(run: Callable[[Args], int]) -> Callable[[Args], int]:
            verb = Verb(run, *args, **keywords)
            self.verbs[name] = replace(verb, options={**verb.options, **self.options})
            return run

        return add


def installed(name: str) -> Command:
    """Return the command of an installed package, or without one, a command that raises a UserError."""
    try:
        return plugins.command(name).COMMAND
    except UserError as error:
        command, absence = Command(name, empty=True), error

    @command.verb("", "[WORD ...]")
    def _absent(args: Args) -> int:
        """Raise the error that no installed package has this command."""
        raise absence

    return command


def run_command(command: Command, argv: Sequence[str]) -> int:
    """Run a command line, and return its exit code.

    0: done. 1: it ran, and the answer is no. 2: a mistake, in one sentence. 3: it ran, and there is no
    answer. 130: interrupted.
    """
    streams.open_standard_streams()
    try:
        with streams.ignore_broken_pipe(), plugins.searching(config_dir(argv)):
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
    except ModuleNotFoundError as error:
        missing = libraries.from_import_error(error, "this command")
        if missing is None:
            raise
        say(f"mlbench: {missing}", file=sys.stderr)
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
        print("mlbench: interrupted. Run the same command again to continue", file=sys.stderr)
        return INTERRUPTED


def say(text: str, *, file: TextIO | None = None) -> None:
    """Print lines without terminal control codes, as they may hold text from others, e.g. a folder's name."""
    print("\n".join(map(format.printable, text.splitlines())), file=file, flush=True)


def warn(text: str) -> None:
    """Print lines to standard error, as `say` does, after what was printed to a buffered stdout before."""
    sys.stdout.flush()
    say(text, file=sys.stderr)


def _require_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder no longer exists", hint="cd to one that exists") from error


def config_dir(words: Sequence[str]) -> str | None:
    """Return the folder of --config-dir among words, which --help needs before they are parsed."""
    words = words[: words.index("--")] if "--" in words else words
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if option == "--config-dir":
            return (value if equals else after) or None
    return None


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
    """Read a command line. Raises UserError for every mistake, SystemExit for --help and --version."""
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
    bare = any(word == "---" or not (word.startswith("-") or "=" in word) for word in argv)
    if bare and " -- COMMAND" in verb.arguments and not command.empty:  # no -- was there
        hint = f"write {command.program} {verb.arguments}"
        raise UserError("the -- before the command is missing", hint=hint)
    namespace, rest = parser(command, name).parse_known_args(rest)
    settings: dict[str, str] = {}
    arguments: list[str] = []
    for word, after in zip_longest(rest, rest[1:], fillvalue=""):
        left, equals, value = word.partition("=")
        if word == "--" and word is not rest[-1]:
            continue  # what follows are words, as they are without it
        if word.startswith("-") and len(word) > 1:
            sentence, hint = _unknown_option(left, value, rest, verb, label)
            raise UserError(sentence, hint=hint)
        if equals and left in verb.settings:
            if not value:
                raise UserError(f"{word} has no value", hint="remove it for the default")
            if value.endswith(",") and re.match("[^-=][^=]*$", after):
                raise UserError(f"{word!r} ends in a comma", hint=f"write {word}{after} without spaces")
            if left in settings:
                sentence = f"{left} is given twice: {left}={settings[left]} and {word}"
                raise UserError(sentence, hint="keep one of them")
            settings[left] = value
        elif equals and left not in Experiment.model_fields and (meant := _near(left, verb)):
            raise UserError(f"{left} is unknown: did you mean {meant}?")
        elif equals and not verb.overrides and re.fullmatch(r"[a-z_][\w.]*", left):
            raise UserError(f"{label} has no setting {left}{suggest(left, list(verb.settings))}")
        else:
            arguments.append(word)
    if arguments and not verb.arguments:
        sentence = f"{label} takes no positional arguments, got: {' '.join(arguments)}"
        names = ", ".join(f"{name}=" for name in verb.settings)
        raise UserError(sentence, hint=f"it takes {names}" if names else "leave it out")
    single = verb.arguments.strip("[]")
    if single.isalpha() and len(arguments) != 1 and (arguments or single == verb.arguments):
        sentence = f"{label} takes one {single}, got: {' '.join(arguments) or 'nothing'}"
        raise UserError(sentence, hint=f"mlbench {label} {EXAMPLES.get(single, single)}")
    if getattr(namespace, "config_dir", None) and "name=value" in verb.arguments:
        arguments.append(overrides.search_word(namespace.config_dir))
    defaults = {setting: default for setting, (default, _) in verb.settings.items()}
    return Args(name, arguments, defaults | settings, namespace)


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuse words that cannot be overrides, with the probable correction.

    Raises UserError for a word without "=", for several overrides in one word, and for a name given twice.
    """
    names: dict[str, str] = {}
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if word.startswith(("+", "~")):
            meant = word.lstrip("+") if equals and word[0] == "+" else "name=value"
            raise UserError(f"{word}: keys cannot be added or removed", hint=f"write {meant}")
        if not equals or not name:
            raise UserError(f"{word!r} is not of the form name=value", hint=_meant(arguments, index))
        text = name in overrides.VERBATIM or value[:1] in "\"'[{"
        if not text and re.search(r"\s[\w.]+=", value):
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


def seconds(name: str, text: str) -> float:
    """Return the seconds of a setting such as deadline=8h. Raises UserError for an invalid duration."""
    match = DURATION.fullmatch(text)
    if not match or float(match[1]) == 0:
        raise UserError(f"{name}={text} is not a duration", hint="write e.g. 8h, 90min, 2d or 5400s")
    return float(match[1]) * UNITS_S[match[2]]


def percentage(text: str) -> float:
    """Return 0.05 for `5%`, as an argparse type."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if not number:
        raise argparse.ArgumentTypeError(f"takes a percentage such as 5%, got: {text or 'nothing'}")
    return float(number[1]) / 100


def section(heading: str, content: Content) -> str:
    """Return a section of the help. A meaning follows its term, or is below it if the term is too long."""
    if isinstance(content, str):
        return f"{heading}:\n{_fill(content, indent='  ')}"
    column = min(COLUMN, 4 + max(len(term) for term, meaning in content if meaning))
    lines = [f"{heading}:"]
    for term, meaning in content:
        beside = meaning and len(term) <= column - 4
        if not beside:
            lines.append(f"  {term}")
        if meaning:
            lines.append(_fill(meaning, first=f"  {term}" if beside else "", indent=" " * column))
    return "\n".join(lines)


def _fill(text: str, *, first: str = "", indent: str = "") -> str:
    """Return text wrapped to the width of the help, with `first` in the indent of the first line."""
    start = first.ljust(len(indent))
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UserErrors and whose help ends with sections that are read late."""

    sections: Callable[[], Iterable[tuple[str, Content]]]

    def error(self, message: str) -> Any:
        raise UserError(message, hint=f"{self.prog} --help")

    def format_help(self) -> str:
        parts = [super().format_help().strip("\n")]
        parts += [section(*entry) for entry in self.sections()]
        return "\n\n".join(parts) + "\n"


def parser(command: Command, name: str | None = None) -> _Parser:
    """Return the parser of a verb, or of a whole command, which then lists its verbs."""
    if name is None and "" in command.verbs:
        name = ""
    verb = None if name is None else command.verbs[name]
    if verb is None:
        usage = f"{command.program} COMMAND [WORD ...] [OPTION ...]"
        verbs = section("commands", [(name, verb.summary) for name, verb in command.verbs.items()])
        closing = f"`{command.program} COMMAND --help` has examples."
        description = "\n\n".join([_fill(command.description or ""), verbs, closing])
    else:
        settings = "[name=value ...]" if verb.settings and not verb.overrides else ""
        options = "[OPTION ...]" if verb.options else ""
        usage = " ".join(filter(None, [command.program, name, verb.arguments, settings, options]))
        listed = [(f"{name}={default}", about) for name, (default, about) in verb.settings.items()]
        own = section("settings (name=value, with their defaults)", listed) if listed else ""
        description = f"{verb.help}\n\n{own}".strip()
    made = _Parser(
        prog=f"{command.program} {name or ''}".strip(),
        usage=_fill(usage, first="usage: ", indent=" " * len("usage: ")).removeprefix("usage: "),
        description=description,
        allow_abbrev=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=WIDTH, max_help_position=COLUMN),
    )
    made.sections = tuple if name else command.sections
    outputs = made.add_mutually_exclusive_group()
    for option, keywords in verb.options.items() if verb else ():
        (outputs if option in OUTPUTS else made).add_argument(option, **keywords)
    made.add_argument("--version", action="version", version=f"mlbench {mlbench.__version__}")
    return made


def _near(name: str, verb: Verb) -> str | None:
    """Return the setting nearest to an unknown name, or None if a field of an experiment is nearer."""
    names = [*verb.settings, *Experiment.model_fields]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return close[0] if close and close[0] in verb.settings else None


def _unknown_option(name: str, value: str, rest: Sequence[str], verb: Verb, label: str) -> tuple[str, str]:
    """Return the sentence for an option that is not there, and the way out."""
    bare = name.lstrip("-").replace("-", "_")
    if name in rest and any(word.startswith("task.args=") for word in rest[: rest.index(name)]):
        return f"{name} is not an option of {label}", "quote what the script gets: task.args='--lr 0.1 ...'"
    if bare in verb.settings or (verb.overrides and bare in Experiment.model_fields):
        following = rest[rest.index(name) + 1 :] if name in rest else []
        example = value or next((word for word in following if not word.startswith("-")), "VALUE")
        return f"{name} is not an option", f"write {bare}={example}"
    meant = HYDRA.get(name, "") if "name=value" in verb.arguments else ""
    if meant and (not meant.startswith("--") or meant.split()[0] in verb.options):
        return f"{name} is not an option of {label}", meant
    return f"{name} is not an option of {label}{suggest(name, [*verb.options, '--help', '--version'])}", ""


def _meant(arguments: Sequence[str], index: int) -> str:
    """Return the probable meaning of a word that is not of the form name=value."""
    before, word, after = ["", *arguments, ""][index : index + 3]
    if before.endswith(","):
        return f"write {before}{word} without spaces"
    if word == "=" or after == "=" or after.startswith("=") or word.endswith("="):
        name, value = (before, after) if word == "=" else (word, arguments[-1])
        return f"write {name.strip('=')}={value.strip('=')} without spaces"
    if word in (*plugins.GROUPS, *Experiment.model_fields):
        return f"write {word}={after or 'VALUE'}"
    if word in ("help", "list"):
        return "see --help, or mlbench results list for your runs"
    for group in (*plugins.GROUPS, "study"):
        if Path(word).name.removesuffix(".yaml") in compose.choices(group):
            return f"write {group}={Path(word).name.removesuffix('.yaml')}"
    return "e.g. task=logreg workers=2"
