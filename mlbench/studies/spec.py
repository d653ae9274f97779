"""What a sweep measures: overrides of the command line, or a study of conf/study."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from mlbench import clock
from mlbench.config import compose, identity, overrides, plugins
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ResultError, UserError
from mlbench.config.experiment import Experiment, FrozenModel, PositiveFloat
from mlbench.config.overrides import SEARCH_PATH
from mlbench.record import study
from mlbench.record.study import Invocation, Study
from mlbench.studies import grid, sequential
from mlbench.terminal.args import seconds

# name=value words of the sweep itself. It shares study= with run.
OPTIONS = ("repeats", "max_usd", "max_time", "question", "extend")
AUTO = "auto"  # repeats=auto: as many as it takes (studies/sequential.py)
REPEATS = 5  # the fewest runs whose range holds the median in 94 % of studies (docs/statistics.md)


class StudyFile(FrozenModel):
    """A file of conf/study."""

    question: Annotated[str, Field(min_length=1)]
    sweeps: Annotated[tuple[str, ...], Field(min_length=1)]  # command lines of mlbench.sweep
    max_usd: PositiveFloat | None = None  # for all runs of the study together


@dataclass(frozen=True)
class SweepSpec:
    """What is to be measured.

    - grids: grids with the command line of each. Without any: what the study on disk still lacks.
    - output_settings: overrides that set the results' paths and how runs are carried out, by name.
    - extend: whether tasks may be added to a study that was begun without them.
    - max_time_s: after so long no further run starts.
    - auto: whether points get seeds until their order is decided.
    """

    name: str
    question: str
    grids: tuple[tuple[grid.Grid, Invocation], ...]
    output_settings: Mapping[str, str]
    max_usd: float | None = None
    extend: bool = False
    max_time_s: float | None = None
    auto: bool = False


def read(arguments: Sequence[str]) -> SweepSpec:
    """Parse a command line. `study=NAME` takes its grids from conf/study, which the other words override.

    Without other words it takes them from the study on disk as well.
    """
    options, overrides = _options(arguments)
    parsed = grid.parse(overrides)
    over = [word for word in overrides if word not in parsed.output_settings.values()]
    files = plugins.files("study", _searchpath(parsed.output_settings))
    if not parsed.parameters and "study" not in options:
        raise UserError("nothing to sweep over", hint="e.g. task=logreg workers=1,2, or study=quick")
    if options.get("study") in files or not over:
        return named(options["study"], over, output_settings=parsed.output_settings, options=options)
    name = options.get("study") or _name(parsed)
    question = options.get("question") or _question(parsed)
    settings = {word for setting, word in parsed.output_settings.items() if setting != SEARCH_PATH}
    words = [word for word in arguments if word not in settings]
    grids = ((parsed, _invocation(words, options, seeds=parsed.seeds)),)
    return SweepSpec(name, question, grids, parsed.output_settings, **_limits(options))


def named(
    name: str,
    over: Sequence[str] = (),
    *,
    output_settings: Mapping[str, str],
    options: Mapping[str, str] | None = None,
) -> SweepSpec:
    """Return the sweep of a study in conf/study, which the words `over` override, or of a begun one."""
    options, files = dict(options or {}), plugins.files("study", _searchpath(output_settings))
    path = files.get(name)
    if path is None:
        output_root = sample_of(output_settings).output_root
        plan = study.load(study.folder(output_root, name))
        if plan is None:
            begun = sorted(path.parent.name for path in (output_root / "studies").glob(f"*/{study.PLAN}"))
            choices = sorted({*files, *begun})
            if name.endswith(".yaml"):
                hint = f"copy it to FOLDER/study, and write --config-dir FOLDER study={Path(name).stem}"
                raise UserError(f"study={name} is a file, not a study name", hint=hint)
            raise ResultError(
                f"unknown study={name}: neither in conf/study nor below {output_root}",
                hint=f"choose one of {', '.join(choices)}, or give its points: task=logreg workers=1,2",
            )
        return SweepSpec(name, plan.question, (), output_settings, **_limits(options))
    file = load_file(path)
    if "repeats" in options:  # the plan has the command that was given, and not that of the file
        over = [*over, f"repeats={options['repeats']}"]
    grids = []
    for line in file.sweeps:
        by_name = {word.partition("=")[0]: word for word in (*shlex.split(line), *over)}
        if any(word.startswith("seed=") for word in over):
            by_name.pop("repeats", None)  # as many as there are seeds
        arguments = list(by_name.values())
        own, overrides = _options(arguments)
        if unread := [f"{option}={value}" for option, value in own.items() if option != "repeats"]:
            raise UserError(
                f"{path}: a line of sweeps cannot have {' '.join(unread)}",
                hint="write max_usd: NUMBER next to sweeps:, and the others after study=NAME",
            )
        parsed = grid.parse(overrides)
        grids.append((parsed, _invocation(arguments, own | options, seeds=parsed.seeds)))
    limits = _limits(options)
    limits["max_usd"] = limits["max_usd"] or file.max_usd
    limits["auto"] |= any(f"repeats={AUTO}" in invocation.overrides for _, invocation in grids)
    question = options.get("question") or file.question
    return SweepSpec(name, question, tuple(grids), output_settings, **limits)


def sample_of(output_settings: Mapping[str, str]) -> Experiment:
    """Return an experiment with the settings' paths, without cluster fields, which need a cluster."""
    return compose.compose(
        [word for name, word in output_settings.items() if not name.startswith("cluster.")]
    )


Points = tuple[dict[str, Experiment], list[dict[str, tuple[str, ...]]]]


def compose_points(spec: SweepSpec) -> Points:
    """Compose every point of the grids, or raise every fault at once.

    Returns all experiments by key, and for each grid its points' words by key.
    """
    experiments: dict[str, Experiment] = {}
    grids: list[dict[str, tuple[str, ...]]] = []
    faults: dict[str, str] = {}  # by their text: a fault of all points is listed once
    for parsed, _ in spec.grids:
        for word in chain.from_iterable(parsed.points):
            if word.startswith("task.args=") and without_credentials(word) != word:
                raise UserError(
                    "task.args holds a secret, which the study's plan would keep",
                    hint="let the script read it from an environment variable",
                )
        overrides: dict[str, tuple[str, ...]] = {}
        grids.append(overrides)
        for point in parsed.points:
            try:
                experiment = _compose(point, spec)
            except UserError as error:
                faults.setdefault(error.message, f"{shlex.join(point)}: {error}")
                continue
            key = identity.key(experiment)
            experiments[key] = experiment
            overrides.setdefault(key, point)
    if faults:
        raise UserError("\n         ".join(faults.values()))
    return experiments, grids


def plan_experiments(
    plan: Study, experiments: Mapping[str, Experiment], spec: SweepSpec
) -> dict[str, Experiment]:
    """Return the experiments of all points of the plan by key. Those of the sweep are composed already."""
    return {point.key: experiments.get(point.key) or _compose(point.overrides, spec) for point in plan.points}


def _compose(overrides: Sequence[str], spec: SweepSpec) -> Experiment:
    return compose.compose([*overrides, *spec.output_settings.values(), f"study={spec.name}"])


def require_measurable(wanted: Mapping[str, Experiment], spec: SweepSpec) -> None:
    """Refuse what would fail in every run."""
    if not wanted:
        raise UserError(f"study {spec.name} has no points", hint="give a setting, e.g. workers=1,2")
    if spec.max_usd is not None:
        free = {
            experiment.hardware.name for experiment in wanted.values() if experiment.hardware.price is None
        }
        if free:
            raise UserError(
                f"max_usd= needs a price, but hardware={', '.join(sorted(free))} has none",
                hint="choose hardware with a price, or leave max_usd out",
            )
    if spec.auto and any(experiment.target is None for experiment in wanted.values()):
        raise UserError("repeats=auto needs a goal", hint="e.g. repeats=5")
    if any(experiment.force for experiment in wanted.values()):
        raise UserError("a study measures a seed once", hint="raise repeats= instead of force=true")


def require_same_study(
    before: Study, wanted: Mapping[str, Experiment], every: Mapping[str, Experiment], spec: SweepSpec
) -> None:
    """Refuse to add points to a begun study that have another task, or lack a word that all its points have.

    `extend=true` adds them on purpose. Words that restate all that the study has are no mistake.
    """
    keys = {point.key for point in before.points}
    old, new = ([every[key] for key in every if (key in keys) == flag] for flag in (True, False))
    if not old or not new or spec.extend:
        return
    tasks = dict.fromkeys(experiment.task.name for experiment in old)
    added = dict.fromkeys(experiment.task.name for experiment in new if experiment.task.name not in tasks)
    if added:
        raise UserError(
            f"study={spec.name} measures task={','.join(tasks)}, this command would add "
            f"task={','.join(added)}",
            hint="give another study=NAME, or extend=true to add it",
        )
    given = {word.partition("=")[0] for parsed, _ in spec.grids for word in parsed.parameters}
    first, *others = (point.overrides for point in before.points)
    left_out = [
        w for w in first if all(w in overrides for overrides in others) and w.partition("=")[0] not in given
    ]
    fields = [identity.identity(experiment.plain()).items() for experiment in (*old, *new)]
    fixed = set.intersection(*({(n, str(v)) for n, v in items} for items in fields[: len(old)]))
    same = all(fixed <= {(n, str(v)) for n, v in items} for items in fields[len(old) :])
    if left_out and not same and not keys <= wanted.keys():
        command = shlex.join(["mlbench", "sweep", *left_out, *spec.grids[-1][1].overrides])
        raise UserError(
            f"study={spec.name} measures {shlex.join(left_out)}, which is left out here",
            hint=f"give another study=NAME, extend=true to add it, or type {command}",
        )


def load_file(path: Path) -> StudyFile:
    """Read a file of conf/study. UserError names what is wrong with it."""
    try:
        return StudyFile.model_validate(plugins.values(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{path}: {where}: {first['msg'].lower()}",
            hint="a study has question: TEXT, sweeps: a list of command lines, and may have max_usd: NUMBER",
        ) from error


def _options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split the words into options of the sweep itself and overrides."""
    options: dict[str, str] = {}
    overrides = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals and name in (*OPTIONS, "study"):
            options[name] = value
        else:
            overrides.append(word)
    return options, overrides


def _invocation(
    arguments: Sequence[str], options: Mapping[str, str], *, seeds: tuple[int, ...] | None
) -> Invocation:
    """Return the command line as the study's plan records it."""
    text = options.get("repeats", str(REPEATS))
    if text == AUTO:
        if seeds is not None:
            raise UserError("repeats=auto draws seeds, so seed= cannot be given", hint="remove seed=")
        text = str(sequential.FIRST)
    if not text.isdecimal() or not 1 <= int(text) <= grid.MOST:
        raise UserError(f"repeats={text} must be auto or a whole number from 1 to {grid.MOST}")
    if seeds is not None and "repeats" in options and int(text) != len(seeds):
        sentence = f"repeats={text} and {len(seeds)} given seeds contradict each other"
        raise UserError(sentence, hint="remove repeats=")
    repeats = int(text) if seeds is None else len(seeds)
    recorded = tuple(without_credentials(word) for word in arguments)
    return Invocation(at=clock.iso(clock.wall()), overrides=recorded, repeats=repeats)


def _limits(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a SweepSpec that limit it."""
    if (extend := options.get("extend", "false")) not in ("true", "false"):
        raise UserError(f"extend={extend} must be true or false")
    return {
        "max_usd": _max_usd(options),
        "max_time_s": seconds("max_time", options["max_time"]) if "max_time" in options else None,
        "auto": options.get("repeats") == AUTO,
        "extend": extend == "true",
    }


def _max_usd(options: Mapping[str, str]) -> float | None:
    if "max_usd" not in options:
        return None
    try:
        limit = float(options["max_usd"])
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise UserError(
            f"max_usd={options['max_usd']} must be a number of USD above 0", hint="e.g. max_usd=5"
        )
    return limit


def _searchpath(settings: Mapping[str, str]) -> tuple[str, ...]:
    word = settings.get(SEARCH_PATH)
    return overrides.parse([word]).searchpath if word else ()


def _name(parsed: grid.Grid) -> str:
    """Return a name that stays when a parameter gets more values: what varies, and a hash of the rest."""
    swept = parsed.swept
    fixed = [overrides[0] for name, overrides in parsed.parameters.items() if name not in swept]
    task = next((word.partition("=")[2] for word in fixed if word.startswith("task=")), None)
    rest = sorted(word for word in fixed if not word.startswith("task="))
    parts = ([task] if task else []) + swept
    parts += [hashlib.sha256("\0".join(rest).encode()).hexdigest()[:6]] if rest else []
    return "-".join(parts) or "default"


def _question(parsed: grid.Grid) -> str:
    task = " and ".join(word.partition("=")[2] for word in parsed.parameters.get("task", []))
    swept = " and ".join(name for name in parsed.swept if name != "task")
    return f"How do time and price of {task or 'the default task'} change with {swept or 'the seed'}?"
