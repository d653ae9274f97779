"""Tasks, sync strategies, clusters, commands and YAML files by name: mlbench's own and those of packages.

A package brings its own by entry points; docs/extending.md shows them, and says what such a module and its
YAML contain. The folders of mlbench/wings are found in the same way: pyproject.toml has their entry points,
and nothing else names them. A user's own YAML files are in ~/.config/mlbench, or in the folder that
MLBENCH_CONFIG_DIR names.
"""

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import mlbench
from mlbench.config import strict_yaml
from mlbench.config.errors import UserError

OWN = {"task": "mlbench.tasks", "sync": "mlbench.training.sync", "cluster": "mlbench.clusters"}
ENTRY_POINTS = {"task": "mlbench.tasks", "sync": "mlbench.syncs", "cluster": "mlbench.clusters"}
EMULATORS = "mlbench.networks"  # to the module that emulates networks; one package at most has it
EXTRAS = "mlbench.extras"  # to a module that says in `rows(record)` what its package added to a record
LIBRARIES = "mlbench.backends"  # to a module that says what a backend's library takes
TORCH = "torch"  # the framework of the core; a framework's name is that of its package
FRAMEWORKS = "mlbench.frameworks"  # to a module that says what another framework needs and cannot do
# Their modules run while something is measured.
DECISIVE = (*ENTRY_POINTS.values(), LIBRARIES, EMULATORS, FRAMEWORKS)
CONTRACT = {
    "task": ("Config", "prepare"),
    "sync": ("Config",),
    "cluster": ("shares_files", "connect or submit"),
}
IMPLEMENTATION = {"task": ("build", "measure"), "sync": ("synchronise",)}  # one of these, in `torch`
EXTENDING = "see docs/extending.md"
CONF_PACKAGES = "mlbench.conf"  # entry points to packages of YAML files
VERBS = "mlbench.verbs"  # by command, to a module whose `add(command)` adds sub-commands to mlbench's own
CHECKS = "mlbench.checks"  # to a module whose `checks()` says what of its package this machine can run
FORECASTS = "mlbench.forecasts"  # to a module that predicts other hardware for pages: `part`, `published`
COMMANDS = "mlbench.commands"  # to a module with the `COMMAND` that `python -m mlbench.NAME` runs
OWN_CONF = f"pkg://{mlbench.__name__}."  # Hydra's addresses of the wings' YAML files
AGAIN = "install that package again"
GROUPS = ("task", "hardware", "backend", "cluster", "sync", "network", "division")
FOLDERS = (*GROUPS, "study")  # of YAML files
USER_CONF = "MLBENCH_CONFIG_DIR"  # environment variable; empty: no folder of one's own


def load(group: str, name: str) -> ModuleType:
    """Import the module of a task, sync strategy or cluster.

    Raises UserError where there is none, where two packages have one of that name, and where it lacks a part
    of its contract.
    """
    own = f"{OWN[group]}.{name}"
    places = [own] if name.isidentifier() and find_spec(own) else []
    places += [point.value for point in _points(ENTRY_POINTS[group]) if point.name == name]
    if not places:
        raise UserError(f"there is no {group} {name!r} in mlbench or an installed package", hint=EXTENDING)
    module = _imported(places, f"{group} {name!r}")
    missing = [
        part for part in CONTRACT[group] if not any(hasattr(module, each) for each in part.split(" or "))
    ]
    if missing:
        raise UserError(f"{group} {name!r} lacks {', '.join(missing)}", hint=EXTENDING)
    return module


def name(group: str, given: str) -> str:
    """Return the name of a plug-in that is given by its name or its module, e.g. my_package.my_task."""
    return next((point.name for point in _points(ENTRY_POINTS[group]) if point.value == given), given)


def implementation(group: str, name: str, framework: str = TORCH) -> ModuleType:
    """Import the part of a task or sync strategy that needs a framework.

    It is the module `torch` in its folder; of a task in another framework, what an entry point names.
    """
    own = load(group, name)
    module = import_module(f"{own.__name__}.torch" if framework == TORCH else trained_by(framework)[name])
    if not any(hasattr(module, part) for part in IMPLEMENTATION[group]):
        parts = " or ".join(IMPLEMENTATION[group])
        raise UserError(f"{module.__name__} lacks {parts}", hint=EXTENDING)
    return module


def frameworks() -> list[str]:
    """Return the names of all frameworks, torch first."""
    return [TORCH, *sorted({point.name for point in _points(FRAMEWORKS)} - {TORCH})]


def framework(name: str) -> ModuleType:
    """Import the module of a framework other than torch, which imports nothing of it.

    - require(): raises UserError where its package is not installed.
    - faults(experiment): yields a sentence for each value that it cannot have.

    Raises UserError where two packages have one of that name, or its package is gone.
    """
    values = [point.value for point in _points(FRAMEWORKS) if point.name == name]
    return _imported(values, f"framework={name}")


def trained_by(framework: str) -> dict[str, str]:
    """Return the modules of the tasks that a framework other than torch trains, by the task's name."""
    return {point.name: point.value for point in _points(f"{FRAMEWORKS}.{framework}")}


def library(backend: str) -> ModuleType | None:
    """Import the module that a backend's package has for its library; None where there is none.

    It may have ALGORITHMS, the names of all-reduce's, and VARIABLES: the environment variable by field of
    `Backend`. It does not import the library, which workers alone may have.
    """
    values = [point.value for point in _points(LIBRARIES) if point.name == backend]
    return import_module(values[0]) if values and _is_there(values[0]) else None


def emulator() -> ModuleType:
    """Import the module that emulates networks; UserError where no installed package, or two, have one.

    - connect(experiment): a context manager that yields the Connection to a Ray on emulated hosts.
    - resources(experiment): the WorkerResources that a worker gets of its host.
    - faults(experiment): yields a sentence for each value that they cannot have.
    """
    values = [point.value for point in _points(EMULATORS)]
    if len(values) != 1:
        several = f"{' and '.join(values)} all emulate" if values else "no installed package emulates"
        raise UserError(f"{several} networks", hint="network=host is the machines' own")
    return _imported(values, "network emulation")


def extra(name: str) -> ModuleType | None:
    """Import the module for a part of a record's extras; None where its package is not installed."""
    values = [point.value for point in _points(EXTRAS) if point.name == name]
    return import_module(values[0]) if values and _is_there(values[0]) else None


def command(name: str) -> ModuleType:
    """Import the module of a command that a package brings; UserError where none does, or it is gone."""
    values = [point.value for point in _points(COMMANDS) if point.name == name]
    if not values:
        hint = f"install a package with an entry point {name!r} of {COMMANDS}"
        raise UserError(f"no installed package has the command {name}", hint=hint)
    return _imported(values[:1], f"the command {name}")


def extend(command: Any) -> None:
    """Add the sub-commands that installed packages have for one of mlbench's own commands."""
    for point in _points(VERBS):
        if point.name == command.name and _is_there(point.value):
            import_module(point.value).add(command)


def checks() -> list[ModuleType]:
    """Import the modules that say for `python -m mlbench.doctor` what their packages can run here."""
    return [import_module(point.value) for point in _points(CHECKS) if _is_there(point.value)]


def forecasts() -> list[ModuleType]:
    """Import the modules whose predictions stand in reports and on sites.

    - part(records, title): a report.page.PagePart from the runs of one curve, or None.
    - published(today): those from what others published, at prices that are current on that day.
    """
    return [import_module(point.value) for point in _points(FORECASTS) if _is_there(point.value)]


def absent() -> str:
    """Return how a sentence ends where YAML files of an installed package are gone; else nothing."""
    gone = [point.value for point in _points(CONF_PACKAGES) if not _is_there(point.value)]
    return f"; {_absence(gone)}: {AGAIN}" if gone else ""


def _imported(modules: Sequence[str], what: str) -> ModuleType:
    """Import the module of a plug-in; UserError where it is gone, or several packages have one."""
    if gone := [module for module in modules if not _is_there(module)]:
        raise UserError(f"{what}: {_absence(gone)}", hint=AGAIN)
    if len(modules) != 1:
        raise UserError(f"{what} is in {' and in '.join(modules)}", hint="uninstall one package")
    return import_module(modules[0])


def _absence(modules: Sequence[str]) -> str:
    return f"{' and '.join(modules)}, which an installed package names, is not there"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def packages() -> tuple[Path, ...]:
    """Return the folders (of a package that is one file: the file) that bring plug-ins which decide numbers.

    Of mlbench's own that is a wing's folder, of another package the whole.
    """
    modules = [point.module.split(".") for group in DECISIVE for point in _points(group)]
    names = {".".join(parts[: 3 if parts[0] == mlbench.__name__ else 1]) for parts in modules}
    specs = [spec for name in sorted(names) if (spec := find_spec(name))]
    places = [spec.submodule_search_locations or [spec.origin] for spec in specs]
    return tuple(Path(location) for several in places for location in several if location)


def own_conf() -> Path:
    """Return the folder of mlbench's YAML files: in the installed package, or at the top of the checkout."""
    package = Path(mlbench.__file__).parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def shipped(group: str, name: str) -> Path | None:
    """Return the YAML file of a choice that is mlbench's own; None for another package's or the user's."""
    folders = (own_conf(), *(folder(address) for address in conf_packages() if address.startswith(OWN_CONF)))
    paths = (root / group / f"{name}.yaml" for root in folders)
    return next((path for path in paths if path.is_file()), None)


@cache
def conf_packages() -> tuple[str, ...]:
    """Return Hydra's addresses of the YAML files of installed packages, e.g. pkg://my_package.conf."""
    return tuple(f"pkg://{point.value}" for point in _points(CONF_PACKAGES) if _is_there(point.value))


def user_conf() -> tuple[str, ...]:
    """Return the folder of the user's own YAML files, if there is one with one of FOLDERS."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.environ.get(USER_CONF, os.path.join(config, "mlbench"))
    if os.environ.get(USER_CONF) and not os.path.isdir(path):
        raise UserError(
            f"{USER_CONF}={path} is not a folder", hint="unset it, or name a folder of YAML files"
        )
    # There may be other files, e.g. the user's prices.
    return (os.path.abspath(path),) if path and _has_groups(Path(path)) else ()


def search_folders(searchpath: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the folders of YAML files of packages, of the user, and of the search path."""
    return tuple(dict.fromkeys(map(folder, (*conf_packages(), *user_conf(), *searchpath))))


def folder(address: str) -> Path:
    """Return the folder that an address of Hydra's search path names; UserError where there is none.

    It is pkg://package.conf, file:///folder, or a folder with at least one of FOLDERS.
    """
    if address.startswith("pkg://"):
        spec = find_spec(address.removeprefix("pkg://"))
        places = list(spec.submodule_search_locations or ()) if spec else []
        path = Path(places[0]) if places else None
    else:
        path = Path(address.removeprefix("file://")).absolute()
    hint = "--config-dir FOLDER takes a folder with folders such as hardware, task or study"
    if path is None or not path.is_dir():
        raise UserError(f"{address} is not a folder to search", hint=hint)
    if not _has_groups(path):
        raise UserError(f"{address} has none of the folders {', '.join(FOLDERS)}", hint=hint)
    return path


def _has_groups(path: Path) -> bool:
    return any((path / group).is_dir() for group in FOLDERS)


def files(group: str, searchpath: Sequence[str] = ()) -> dict[str, Path]:
    """Return the YAML files of a configuration group by name; UserError where two have one name."""
    paths: dict[str, Path] = {}
    for root in (own_conf(), *search_folders(searchpath)):
        for path in sorted((root / group).glob("*.yaml")):
            if path.stem in paths:
                both = f"{paths[path.stem]} and {path}"
                raise UserError(f"{group}={path.stem} is both {both}", hint="rename one")
            paths[path.stem] = path
    return dict(sorted(paths.items()))


def values(path: Path) -> dict[str, Any]:
    """Return what a YAML file holds; UserError that names the file and its line where it cannot be read."""
    try:
        content = strict_yaml.load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}{line}: no YAML: {reason}", hint="correct the file") from error
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path} is no list of name: value", hint="the files in conf/ show how it is written")
    return content or {}


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
