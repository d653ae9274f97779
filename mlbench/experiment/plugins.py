"""Tasks, sync strategies, clusters and YAML files by name: mlbench's own and those of installed packages.

A package brings its own by entry points, e.g. in its pyproject.toml:

    [project.entry-points."mlbench.tasks"]
    my_task = "my_package.my_task"

    [project.entry-points."mlbench.conf"]
    my_package = "my_package.conf"

docs/adding-a-{task,sync,cluster,backend,hardware}.md say what such a module and its YAML contain.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import mlbench
from mlbench.experiment.errors import UserError

OWN = {"task": "mlbench.tasks", "sync": "mlbench.training.sync", "cluster": "mlbench.clusters"}
ENTRY_POINTS = {"task": "mlbench.tasks", "sync": "mlbench.syncs", "cluster": "mlbench.clusters"}
CONTRACT = {
    "task": ("Config", "prepare"),
    "sync": ("Config",),
    "cluster": ("shares_files",),
}
ONE_OF = {"task": (), "sync": (), "cluster": ("connect", "submit")}
IMPLEMENTATION = {"task": ("build", "measure"), "sync": ("synchronise",)}  # one of these, in `torch`
CONF_PACKAGES = "mlbench.conf"  # entry points to packages of YAML files


def load(group: str, name: str) -> ModuleType:
    """Import the module of a task, sync strategy or cluster.

    Raises UserError where there is none, where two packages have one of that name, and where it lacks a part
    of its contract.
    """
    own = f"{OWN[group]}.{name}"
    places = [own] if name.isidentifier() and find_spec(own) else []
    places += [point.value for point in _points(ENTRY_POINTS[group]) if point.name == name]
    page = f"see docs/adding-a-{group}.md"
    if not places:
        raise UserError(f"there is no {group} {name!r} in mlbench or an installed package", hint=page)
    if len(places) > 1:
        raise UserError(f"{group} {name!r} is in {' and in '.join(places)}", hint="uninstall one package")
    module = import_module(places[0])
    missing = [part for part in CONTRACT[group] if not hasattr(module, part)]
    if ONE_OF[group] and not any(hasattr(module, part) for part in ONE_OF[group]):
        missing.append(" or ".join(ONE_OF[group]))
    if missing:
        raise UserError(f"{group} {name!r} lacks {', '.join(missing)}", hint=page)
    return module


def name(group: str, given: str) -> str:
    """Return the name of a plug-in that is given by its name or its module, e.g. my_package.my_task."""
    return next((point.name for point in _points(ENTRY_POINTS[group]) if point.value == given), given)


def implementation(group: str, name: str) -> ModuleType:
    """Import the part of a task or sync strategy that needs torch: the module `torch` in its folder."""
    module = import_module(f"{load(group, name).__name__}.torch")
    if not any(hasattr(module, part) for part in IMPLEMENTATION[group]):
        parts = " or ".join(IMPLEMENTATION[group])
        raise UserError(f"{module.__name__} lacks {parts}", hint=f"see docs/adding-a-{group}.md")
    return module


def own_conf() -> Path:
    """Return the folder of mlbench's YAML files: in the installed package, or at the top of the checkout."""
    package = Path(mlbench.__file__).parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@cache
def conf_packages() -> tuple[str, ...]:
    """Return Hydra's addresses of the YAML files of installed packages, e.g. pkg://my_package.conf."""
    return tuple(f"pkg://{point.value}" for point in _points(CONF_PACKAGES))


def folder(address: str) -> Path:
    """Return the folder that an address of Hydra's search path names; UserError where there is none.

    It is pkg://package.conf, file:///folder, or a folder.
    """
    if address.startswith("pkg://"):
        spec = find_spec(address.removeprefix("pkg://"))
        places = list(spec.submodule_search_locations or ()) if spec else []
        path = Path(places[0]) if places else None
    else:
        path = Path(address.removeprefix("file://")).absolute()
    if path is None or not path.is_dir():
        raise UserError(f"{address} is not a folder to search", hint="write hydra.searchpath=[FOLDER]")
    return path


def files(group: str, searchpath: Sequence[str] = ()) -> dict[str, Path]:
    """Return the YAML files of a configuration group by name; UserError where two have one name."""
    paths: dict[str, Path] = {}
    for root in (own_conf(), *map(folder, (*conf_packages(), *searchpath))):
        for path in sorted((root / group).glob("*.yaml")):
            if path.stem in paths:
                both = f"{paths[path.stem]} and {path}"
                raise UserError(f"{group}={path.stem} is both {both}", hint="rename one")
            paths[path.stem] = path
    return dict(sorted(paths.items()))


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
