"""List code that Python ran in this process before mlbench, or that shadows mlbench's code.

Such code can replace the clock or the training without a changed source file. Files that every installation
has are known by their content and left out.
"""

import ast
import hashlib
import importlib.util
import pkgutil
import site
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path

import mlbench

CUSTOMIZE = ("sitecustomize", "usercustomize")  # modules that Python's site imports if there are any
FLAGS = ("dev_mode", "no_site", "optimize")  # of sys.flags, which change what runs
# Lines of .pth files that installers write: setuptools, virtualenv, and editable installations of mlbench.
INSTALLERS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack').add_shim();",
    "import _virtualenv",
)
EDITABLE = "import {0}; {0}.install()"  # setuptools, "Development Mode"
# Debian and Ubuntu ship this sitecustomize.py with every Python (package python3-minimal).
DEBIAN = """
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""
PRELOAD = Path("/etc/ld.so.preload")  # libraries that the loader puts into every process, ld.so(8)
REPLACED = "distutils"  # of the standard library's modules the one that setuptools replaces
UNCHECKED = 0b01  # flags of a compiled file that is used whatever its source has, PEP 552


@cache
def files() -> dict[str, str]:
    """Return the SHA-256 of each such file by its name, and the values of interpreter flags."""
    entries = {f"{path.parent.name}/{path.name}": _digest(path) for path in _paths()}
    entries |= {f"sys.flags.{name}": str(value) for name in FLAGS if (value := getattr(sys.flags, name))}
    return entries | ({"sys.pycache_prefix": "set"} if sys.pycache_prefix else {})


def _paths() -> list[Path]:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    paths = [path for folder in folders for path in sorted(Path(folder).glob("*.pth")) if _runs_code(path)]
    paths += [path for path in map(_origin, CUSTOMIZE) if path is not None and not _harmless(path)]
    spec = importlib.util.find_spec("hydra_plugins")
    locations = spec.submodule_search_locations if spec is not None else None
    plugins = pkgutil.iter_modules(locations or (), "hydra_plugins.")
    paths += filter(None, (_origin(plugin.name) for plugin in plugins))
    paths += _shadows()
    with suppress(OSError):
        paths += [PRELOAD] if PRELOAD.read_text().strip() else []
    return [*paths, *_unchecked(Path(mlbench.__file__).parent)]


def _shadows() -> list[Path]:
    """Return the files of imported modules that have a name of the standard library's and are not there."""
    roots = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    site_packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    paths = []
    for name in sorted(sys.stdlib_module_names & sys.modules.keys() - {REPLACED}):
        file = getattr(sys.modules[name], "__file__", None)
        parents = set(Path(file).resolve().parents) if file else roots
        if not parents & roots or parents & site_packages:
            paths.append(Path(str(file)))
    return paths


def _runs_code(path: Path) -> bool:
    """Return whether a .pth file has lines of code that no installer writes."""
    with suppress(OSError, UnicodeDecodeError):
        lines = [line.strip() for line in path.read_text().splitlines()]
        return any(line.startswith(("import ", "import\t")) and not _installed(line) for line in lines)
    return True


def _installed(line: str) -> bool:
    finder = line.removeprefix("import ").partition(";")[0]
    mine = finder.startswith("__editable___mlbench") and line == EDITABLE.format(finder)
    return mine or line in INSTALLERS


def _harmless(path: Path) -> bool:
    """Return whether a module is empty or the one that a distribution ships."""
    with suppress(OSError, SyntaxError, UnicodeDecodeError):
        code = ast.dump(ast.parse(path.read_text()))
        return code in (ast.dump(ast.parse("")), ast.dump(ast.parse(DEBIAN)))
    return False


def _origin(name: str) -> Path | None:
    """Return the file of a module, or None if it has none."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        return Path(spec.origin) if spec is not None and spec.origin else None
    return None


def _unchecked(package: Path) -> list[Path]:
    """Return the compiled files of a package that Python uses without a look at their source."""
    compiled = [path for path in sorted(package.rglob("*.pyc")) if path.is_file()]
    return [path for path in compiled if path.read_bytes()[4:8] == UNCHECKED.to_bytes(4, "little")]


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"
