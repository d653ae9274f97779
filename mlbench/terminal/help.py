"""Explain the configuration in `mlbench run --help`. Everything is read from conf/."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from mlbench.config import compose, plugins
from mlbench.terminal.args import Content

GROUPS = {
    "task": "what is trained",
    "hardware": "one node: its shape, price and peak",
    "backend": "how tensors travel between workers",
    "cluster": "where Ray runs",
    "sync": "how gradients are combined",
    "network": "the link between workers, of the machines or emulated",
    "division": "what may differ from the task's reference",
}

TERMS = (
    (
        "scale",
        "official: the published data and model. mini: the same code on small data that needs no "
        "download, so that a laptop reaches the goal in minutes, never an official result.",
    ),
    (
        "division",
        "closed: everything that decides what is computed is fixed, a deviation is refused with the rule "
        "that forbids it. open: everything may differ except the data set, the metric and the goals, the "
        "result lists every deviation.",
    ),
    (
        "goal",
        "The validation value at which the clock stops: the task's official or light goal, a number, or "
        "none, which trains to the last epoch.",
    ),
    (
        "recipe",
        "A task's published hyper-parameters, chosen with task.recipe=NAME. The fields of a task are "
        "those of conf/task/TASK.yaml, set with task.FIELD=value.",
    ),
)


def sections() -> Iterator[tuple[str, Content]]:
    """Yield heading and content of the groups with their choices, the values, and the terms."""
    yield "groups (group=choice, * is the default)", list(_groups())
    values = [(f"{name}={default}", meaning) for name, default, meaning in scalars()]
    yield "values (name=value, with their defaults)", values
    yield "terms", TERMS


def defaults() -> dict[str, str]:
    """Return the default choice of every group."""
    choices: dict[str, str] = {}
    for line in plugins.values(plugins.own_conf() / "config.yaml")["defaults"]:
        if isinstance(line, dict):
            choices |= line
    return choices


def scalars() -> list[tuple[str, str, str]]:
    """Return name, default and comment of every single value in conf/config.yaml."""
    source = (plugins.own_conf() / "config.yaml").read_text()
    lines = source.splitlines()
    root: Any = yaml.compose(source, yaml.SafeLoader)
    return [
        (name.value, value.value, lines[value.end_mark.line][value.end_mark.column :].strip("# "))
        for name, value in root.value
        if isinstance(value, yaml.ScalarNode)
    ]


def description(path: Path) -> str:
    """Return a choice's description: its `description`, or its opening comment's first sentence."""
    described = plugins.values(path).get("description")
    if described:
        return described
    comment = list(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    bases = [base for base in plugins.values(path).get("defaults", ()) if base != "_self_"]
    if bases and not comment:
        return f"{path.parent}'s variant of {', '.join(map(str, bases))}."
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(line.strip("# ") for line in comment))[0]


def names(path: Path, part: str) -> list[str]:
    """Return the names of a task's `recipes`, or of its further `datasets` at mini scale."""
    return list(plugins.values(path).get(part, {}))


def _groups() -> Iterator[tuple[str, str]]:
    default = defaults()
    for group in plugins.GROUPS:
        yield f"{group}: {GROUPS[group]}", ""
        for name in compose.choices(group):
            path = plugins.files(group)[name]
            meaning = description(path)
            if group == "task":
                if recipes := names(path, "recipes"):
                    meaning += f" Recipes: {', '.join(recipes)}."
                if datasets := names(path, "datasets"):
                    meaning += f" Other mini data: task.dataset={', '.join(datasets)}."
            yield f"{'*' if default[group] == name else ' '} {name}", meaning
