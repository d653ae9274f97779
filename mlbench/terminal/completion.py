"""Complete `mlbench ...` with the tab key: commands, options, names, values from conf/ and results."""

import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from mlbench.config import compose, plugins
from mlbench.config.experiment import Experiment
from mlbench.record import study
from mlbench.record.record import STATUSES
from mlbench.terminal import help
from mlbench.terminal.args import Command, Verb, config_dir

SHELLS = {
    "bash": """\
# Write this into a file that your shell reads, e.g.: mlbench --completion bash >> ~/.bashrc
_mlbench() {
    local IFS=$'\\n'
    COMPREPLY=($(mlbench --complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -o default -F _mlbench mlbench""",
    "zsh": """\
# Write this into a file that your shell reads after compinit, e.g.: mlbench --completion zsh >> ~/.zshrc
_mlbench() {
    local -a replies
    replies=("${(@f)$(mlbench --complete zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    compadd -S '' -a replies
}
compdef _mlbench mlbench""",
    "fish": """\
# Write this into a file that your shell reads, e.g.:
#   mlbench --completion fish > ~/.config/fish/completions/mlbench.fish
complete -c mlbench -f -a '(mlbench --complete fish (commandline -cp) 2>/dev/null)'""",
}


def replies(shell: str, line: str, commands: Sequence[str]) -> list[str]:
    """Return what the shell may put in place of the last word of `line`, up to the cursor.

    bash takes what follows the last = or : for the word. fish sets the spaces itself.
    """
    arguments = shlex.split(line)[1:]
    if not arguments or line[-1].isspace():
        arguments.append("")
    current = arguments[-1]
    with plugins.searching(config_dir(arguments[:-1])):
        matches = [word for word in _candidates(arguments, commands) if word.startswith(current)]
    start = max(current.rfind("="), current.rfind(":")) + 1 if shell == "bash" else 0
    return [match.rstrip() if shell == "fish" else match[start:] for match in matches]


def _candidates(arguments: Sequence[str], commands: Sequence[str]) -> Iterator[str]:
    """Yield whole words that the last of `arguments`, those after `mlbench`, may become."""
    *before, current = arguments
    if not before:
        yield from (f"{name} " for name in (*commands, "--help", "--version", "--completion"))
        return
    if before[0] not in commands:
        return
    command: Command = import_module(f"mlbench.{before[0]}").COMMAND
    name = next((word for word in before[1:] if word in command.verbs), "")
    if name not in command.verbs:
        yield from (f"{verb} " for verb in command.verbs)
        return
    verb = command.verbs[name]
    field, equals, value = current.partition("=")
    if equals:
        several = command.name == "sweep" or "FILTER" in verb.arguments
        done = current[: current.rfind(",") + 1] if several and "," in value else f"{field}="
        yield from (f"{done}{choice}{'' if several else ' '}" for choice in _values(field, before))
        return
    yield from (f"{option} " for option in (*verb.options, "--help"))
    yield from (f"{name}=" for name in _names(verb, before))
    yield from _runs(verb, before)


def _names(verb: Verb, before: Sequence[str]) -> Iterator[str]:
    """Yield settings, and the fields of an experiment if the verb takes them."""
    yield from verb.settings
    if verb.overrides:
        yield from (name for name in Experiment.model_fields if name != "deviations")
        parts = ("name", "recipes", "scales", "datasets")
        yield from (f"task.{name}" for name in _task(before) if name not in parts)
    if "FILTER" in verb.arguments:
        yield from ("status", "source", "key", "recipe", "run", "eligible")


def _values(field: str, before: Sequence[str]) -> list[str]:
    if field in plugins.GROUPS:
        return compose.choices(field)
    if field == "on":
        return compose.choices("hardware")
    if field == "task.recipe":
        return list(_task(before)["recipes"])
    if field == "task.dataset":
        return list(_task(before).get("datasets", {}))
    if field == "status":
        return list(STATUSES)
    definition = Experiment.model_fields.get(field)
    return list(_choices(definition.annotation)) if definition else []


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the words that a type allows: those of a Literal, true and false."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif annotation is bool:
        yield from ("true", "false")
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def _task(before: Sequence[str]) -> dict[str, Any]:
    """Return the YAML of the task that the words choose."""
    chosen = next((word.removeprefix("task=") for word in before if word.startswith("task=")), "")
    paths = plugins.files("task")
    return plugins.values(paths.get(chosen, paths[help.defaults()["task"]]))


def _runs(verb: Verb, before: Sequence[str]) -> Iterator[str]:
    """Yield the runs and studies that the verb's words may name."""
    places = [word.removeprefix("output_root=") for word in before if word.startswith("output_root=")]
    root = Path(places[-1] if places else "runs")
    studies = sorted(path.parent.name for path in (root / "studies").glob(f"*/{study.PLAN}"))
    if "STUDY" in verb.arguments:
        yield from (f"{name} " for name in studies)
    if "RUN" in verb.arguments:
        yield "last "
    if "RUN" in verb.arguments or "FILTER" in verb.arguments:
        yield from (f"{path.parent.name} " for path in sorted(root.glob("*/record.json")))
    if "FILTER" in verb.arguments:
        yield from (f"study:{name} " for name in studies)
