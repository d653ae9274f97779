"""What `python -m mlbench.run --help` teaches; groups, choices and defaults are read from conf/."""

import re
import textwrap
from pathlib import Path

from mlbench.experiment import config

WIDTH = 79  # columns; fits a terminal of 80

OPENING = """\
usage: python -m mlbench.run [name=value ...]

Trains one task on several workers under Ray Train until its goal is reached,
measures where the time goes, and records the run.

Examples
  python -m mlbench.run
      The default task at mini scale on this machine, in a minute or two.
  python -m mlbench.run task=logreg workers=8
      Another task, eight workers; more workers than CPUs run, but marked.
  python -m mlbench.run task=resnet20 scale=official data_root=/data \\
      workers=4 hardware=gcp_n1_t4 backend=nccl goal=light cluster=attached
      The published task on four GPU nodes, to its lighter goal; called on a
      node of the Ray cluster that they form.
"""

GROUPS = {
    "task": "what is trained",
    "hardware": "one node: its shape, price and peak",
    "backend": "what carries the gradients",
    "cluster": "where Ray runs",
    "sync": "how gradients are combined",
    "division": "what may differ from the task's reference",
}

WORDS = (
    (
        "scale",
        "official is the published data and model. mini runs the same code on small data that needs no "
        "download, so that a laptop reaches a goal in minutes; it is never an official result.",
    ),
    (
        "division",
        "closed fixes everything that decides what is computed; a deviation is refused with the rule that "
        "forbids it. open lets all differ but data set, split, metric and goal, and lists every deviation "
        "in the result.",
    ),
    (
        "goal",
        "The validation value at which the clock stops: the task's official or light goal, a number of "
        "your own, or none, which trains to the last epoch.",
    ),
    (
        "recipe",
        "The task's published hyper-parameters, chosen with task.recipe=NAME. A task's fields are the "
        "names in conf/task/TASK.yaml, given as task.NAME=value.",
    ),
)

CLOSING = (
    (
        "Results",
        "A run gets its own folder below output_root: events.jsonl (what happened, written as it happens), "
        "record.json and record.parquet (the result). The same goes to the MLflow store at tracking_uri, "
        "by default a SQLite file in output_root; the result card ends with the line that opens it. A "
        "finished run with the same configuration, seed and data is shown again, unless force=true; one that "
        "only a shared store has, if the hardware profile states its CPUs or they are those of this machine.",
    ),
    (
        "Exit codes",
        "0: measured, whether or not the goal was reached. 1: the run failed or diverged. 2: a mistake in "
        "the command, or a cluster too small for it, told before any worker trains. 130: interrupted.",
    ),
    (
        "See also",
        "python -m mlbench.sweep --help (grids of runs, repeated: studies), python -m mlbench.predict --help "
        "(more workers than were measured), python -m mlbench.results --help (runs of the past), "
        "python -m mlbench.data --help (data sets), python -m mlbench.cluster --help (a Ray that stays).",
    ),
)


def text() -> str:
    """Return the help, at most 79 columns wide."""
    parts = [OPENING, "Groups (group=choice, * is the default)"]
    chosen = defaults()
    for group in config.GROUPS:
        parts.append(f"  {group}: {GROUPS[group]}")
        parts += [_choice(group, name, default=chosen[group] == name) for name in config.choices(group)]
    parts.append("\nValues (name=value, with their defaults)")
    parts += [_entry(f"  {name}={default}", meaning, column=26) for name, default, meaning in scalars()]
    parts.append("\nWords")
    parts += [_entry(f"  {word}", meaning, column=13) for word, meaning in WORDS]
    for heading, sentences in CLOSING:
        parts.append(f"\n{heading}\n" + _filled(sentences, first="  ", rest=2))
    return "\n".join(parts) + "\n"


def defaults() -> dict[str, str]:
    """Return the default choice of every group, as conf/config.yaml lists them."""
    return dict(re.findall(r"^  - (\w+): (\w+)", _config(), flags=re.MULTILINE))


def scalars() -> list[tuple[str, str, str]]:
    """Return name, default and comment of every single value in conf/config.yaml, as they stand there."""
    found = re.findall(r"^(\w+): *([^#\n]*?) *(?:# *(.*))?$", _config(), flags=re.MULTILINE)
    return [(name, value, comment) for name, value, comment in found if value]


def description(path: Path) -> str:
    """Return what a YAML file says of itself: its `description`, or the first sentence of its comment."""
    source = path.read_text()
    own = re.search(r"^description: *(.+)$", source, flags=re.MULTILINE)
    if own:
        return own[1].strip("\"'")
    comment = re.match(r"(?:#.*\n)+", source)
    if not comment:
        return ""
    sentences = " ".join(line.strip("# ") for line in comment[0].splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", sentences)[0]


def recipes(path: Path) -> list[str]:
    """Return the names below `recipes:` in a task's YAML file."""
    block = re.search(r"^recipes:\n((?: +.*\n|\n)*)", path.read_text(), flags=re.MULTILINE)
    return re.findall(r"^  (\w[\w-]*):", block[1], flags=re.MULTILINE) if block else []


def _choice(group: str, name: str, *, default: bool) -> str:
    path = config.CONF / group / f"{name}.yaml"
    meaning = description(path)
    if group == "task":
        meaning += f" Recipes: {', '.join(recipes(path))}."
    return _entry(f"  {'*' if default else ' '} {name}", meaning, column=26)


def _entry(term: str, meaning: str, *, column: int) -> str:
    """Return a term and its meaning beside it, or below it where the term is too long."""
    if len(term) > column - 2:
        return f"{term}\n{_filled(meaning, first=' ' * column, rest=column)}"
    return _filled(meaning, first=term.ljust(column), rest=column) or term


def _filled(sentences: str, *, first: str, rest: int) -> str:
    return textwrap.fill(sentences, WIDTH, initial_indent=first, subsequent_indent=" " * rest)


def _config() -> str:
    return (config.CONF / "config.yaml").read_text()
