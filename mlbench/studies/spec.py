"""What a sweep is asked for: words of the command line, or a study of conf/study."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from mlbench.experiment import clock, config, plugins, study
from mlbench.experiment.errors import UserError
from mlbench.experiment.provenance import without_credentials
from mlbench.experiment.study import Asked
from mlbench.studies import grid

OWN = ("repeats", "max_usd", "question")  # words of the sweep itself; study= it shares with run
REPEATS = 5  # the fewest runs whose range holds the median in 94 % of studies (docs/statistics.md)


@dataclass(frozen=True)
class Request:
    """What somebody wants measured.

    - grids: grids and repeats; none means what the study on disk still lacks.
    - place: words that say where results lie, by name.
    """

    name: str
    question: str
    grids: tuple[tuple[grid.Grid, Asked], ...]
    place: Mapping[str, str]
    max_usd: float | None = None


def read(words: Sequence[str]) -> Request:
    """Turn a command line into a request; `study=NAME` alone takes its grids from conf/study or the disk."""
    own, rest = _own(words)
    asked = grid.parse(rest)
    if not asked.axes:
        if "study" not in own:
            raise UserError(
                "nothing to measure is named", hint="e.g. task=logreg workers=1,2, or study=quick"
            )
        return named(own["study"], place=asked.place, own=own)
    name = own.get("study") or _name(asked)
    question = own.get("question") or _question(asked)
    said = [word for word in words if word not in asked.place.values()]
    line = _asked(said, own, seeds=asked.seeds)
    return Request(name, question, ((asked, line),), asked.place, _money(own))


def named(name: str, *, place: Mapping[str, str], own: Mapping[str, str] | None = None) -> Request:
    """Return the request of a study in conf/study, or else of one that has been begun."""
    own, path = dict(own or {}), plugins.files("study").get(name)
    if path is None:
        output_root = config.compose(list(place.values())).output_root
        plan = study.load(study.folder(output_root, name))
        if plan is None:
            raise UserError(
                f"there is no study {name!r} in conf/study or below {output_root}",
                hint=f"choose one of {', '.join(config.choices('study'))}, or say what it measures",
            )
        return Request(name, plan.question, (), place, _money(own))
    told = yaml.safe_load(path.read_text())
    grids = []
    for line in told["sweeps"]:
        words = shlex.split(line)
        mine, rest = _own(words)
        asked = grid.parse(rest)
        grids.append((asked, _asked(words, mine | own, seeds=asked.seeds)))
    limit = _money(own) if "max_usd" in own else told.get("max_usd")
    return Request(name, own.get("question") or told["question"], tuple(grids), place, limit)


def _own(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the words of the sweep itself."""
    own: dict[str, str] = {}
    rest = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in (*OWN, "study"):
            own[name] = value
        else:
            rest.append(word)
    return own, rest


def _asked(words: Sequence[str], own: Mapping[str, str], *, seeds: tuple[int, ...] | None) -> Asked:
    """Return the line as the study remembers it."""
    text = own.get("repeats", str(REPEATS))
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"repeats={text} is not a whole number from 1")
    if seeds is not None and "repeats" in own and int(text) != len(seeds):
        raise UserError(f"repeats={text} and {len(seeds)} given seeds contradict each other")
    repeats = int(text) if seeds is None else len(seeds)
    kept = tuple(without_credentials(word) for word in words)
    return Asked(at=clock.iso(clock.wall()), words=kept, repeats=repeats)


def _money(own: Mapping[str, str]) -> float | None:
    if "max_usd" not in own:
        return None
    try:
        limit = float(own["max_usd"])
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise UserError(f"max_usd={own['max_usd']} is not a number of USD above 0")
    return limit


def _name(asked: grid.Grid) -> str:
    """Return a study's name that stays when an axis gets more values: what varies, and a hash of the rest."""
    swept = asked.swept
    fixed = [words[0] for name, words in asked.axes.items() if name not in swept]
    task = next((word.partition("=")[2] for word in fixed if word.startswith("task=")), None)
    rest = sorted(word for word in fixed if not word.startswith("task="))
    parts = ([task] if task else []) + swept
    parts += [hashlib.sha256("\0".join(rest).encode()).hexdigest()[:6]] if rest else []
    return "-".join(parts) or "default"


def _question(asked: grid.Grid) -> str:
    task = " and ".join(word.partition("=")[2] for word in asked.axes.get("task", []))
    swept = " and ".join(name for name in asked.swept if name != "task")
    return f"How do time and price of {task or 'the default task'} change with {swept or 'the seed'}?"
