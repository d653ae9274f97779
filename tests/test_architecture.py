"""Rules about the code itself: layers, one clock, no printing in the library, lint and types."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

import mlbench

SOURCES = sorted((ROOT / "mlbench").rglob("*.py"))
CLOCKS = {"time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "process_time", "now", "utcnow"}
COMMANDS = {"run", "sweep", "measure", "duel", "data", "results", "cluster", "predict", "doctor"}
# Beside the commands: how each of them ends, those of plugins, and answers in a notebook.
PRINTING = COMMANDS | {"mlbench", "args", "command", "notebook"}


def tool(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def calls(path: Path) -> list[str]:
    """Return the dotted names of everything that the file calls, e.g. time.time."""
    return [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]


def clocks_read(source: str) -> list[str]:
    """Return the clocks of `time` and `datetime` that a source names, however it imported them."""
    tree = ast.parse(source)
    modules, calls = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if a.name in ("time", "datetime")}
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            calls += [f"{node.module}.{a.name}" for a in node.names if a.name in CLOCKS or a.name == "*"]
            modules |= {a.asname or a.name: f"datetime.{a.name}" for a in node.names if a.name == "datetime"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            base = ast.unparse(node.value)
            if base.split(".")[0] in modules:
                calls.append(f"{base}.{node.attr}")
    return calls


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_timer_reads_a_clock(path: Path) -> None:
    assert path.name in ("clock.py", "timer.py") or clocks_read(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.perf_counter()",
        "import time as t\nclock = t.monotonic",
        "from time import perf_counter\nperf_counter()",
        "from time import perf_counter as now\nnow()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
    ],
)
def test_a_clock_is_seen_however_it_is_imported(source: str) -> None:
    assert clocks_read(source)
    assert not clocks_read("import time\ntime.sleep(1)\nself.time.now = 3\nevents.now()")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_commands_print(path: Path) -> None:
    is_folder = path.stem == "__main__" or path.parent.name in COMMANDS
    command = path.parent.name if is_folder else path.stem
    assert command in PRINTING or "print" not in calls(path)


def test_the_loop_can_be_read_in_one_sitting() -> None:
    """nanoGPT's train.py, which also parses its arguments, has 336 lines (commit 3adf61e)."""
    assert len((ROOT / "mlbench/training/loop.py").read_text().splitlines()) <= 200


def test_imports_only_go_downwards() -> None:
    script = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def behind_the_door(source: str) -> list[str]:
    """Return what of the package a program names that `import mlbench` does not offer."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("mlbench.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlbench."):
            names.append(node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module == "mlbench":
            names += [alias.name for alias in node.names if alias.name not in mlbench.__all__]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mlbench":
            names += [node.attr] if node.attr not in mlbench.__all__ else []
    return names


@pytest.mark.parametrize(
    "path",
    [*(ROOT / "pipelines").glob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")],
    ids=lambda path: path.name,
)
def test_flows_and_notebooks_use_nothing_but_what_the_package_offers(path: Path) -> None:
    source = path.read_text()
    if path.suffix == ".ipynb":
        cells = nbformat.reads(source, as_version=4).cells
        source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert behind_the_door(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import mlbench.studies.session",
        "from mlbench.record import study",
        "from mlbench import record",
        "import mlbench\nmlbench.config.errors.UserError",
    ],
)
def test_a_name_behind_the_door_is_found(source: str) -> None:
    assert behind_the_door(source)
    assert not behind_the_door(
        "import mlbench\nfrom mlbench import UserError\nmlbench.load_study('a').measure()"
    )


def shadowed(package: Path) -> list[str]:
    """Return the names that the `__init__` of a package binds to something else than its submodule.

    The import of the submodule replaces such a name, whenever that is.
    """
    dotted = ".".join(package.relative_to(ROOT).parts)
    submodules = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/*.py")
    }
    bound: set[str] = set()
    for source in filter(Path.exists, (package / "__init__.py", package / "__init__.pyi")):
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module == dotted:
                bound |= {alias.asname for alias in node.names if alias.asname not in (None, alias.name)}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            else:
                names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
                bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return sorted(bound & submodules)


PACKAGES = [path.parent for path in SOURCES if path.name == "__init__.py"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_binds_no_name_of_a_submodule(package: Path) -> None:
    """`data` of another package in a task with a module `data`: its second check ended in AttributeError."""
    called = ["measure", "predict", "run", "sweep"]
    assert shadowed(package) == (called if package == ROOT / "mlbench" else [])


def attributes(definition: ast.ClassDef) -> set[str]:
    """Return the attributes that a class assigns to itself."""
    return {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_a_class_has_at_most_15_attributes() -> None:
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    counts = {node.name: len(attributes(node)) for node in nodes if isinstance(node, ast.ClassDef)}
    assert len(counts) > 300 and {name: count for name, count in counts.items() if count > 15} == {}


def test_lint_and_format() -> None:
    tool("ruff", "check", ".")
    tool("ruff", "format", "--check", ".")


def narrows_a_type(condition: ast.expr) -> bool:
    """Return whether a condition is made of `x is not None` and isinstance alone."""
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        return all(map(narrows_a_type, condition.values))
    if isinstance(condition, ast.Call):
        return ast.unparse(condition.func) == "isinstance"
    return ast.unparse(condition).endswith(" is not None") and not any(
        isinstance(part, ast.Call) for part in ast.walk(condition)
    )


def states_numbers(condition: ast.expr) -> bool:
    """Return whether a condition only looks at values: it calls nothing and assigns nothing."""
    return not any(isinstance(part, ast.Call | ast.NamedExpr | ast.Await) for part in ast.walk(condition))


def relied_on(source: str, *, computes: bool) -> list[str]:
    """Return the asserts of a source that change something where Python (-O) leaves them out."""
    tree = ast.parse(source)
    conditions = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    problems = [
        ast.unparse(condition)
        for condition in conditions
        if not narrows_a_type(condition) and not (computes and states_numbers(condition))
    ]
    return problems + [name for name in ("AssertionError", "__debug__") if name in source]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_relies_on_assert(path: Path) -> None:
    """None has an effect, is caught, or judges what a user gave; so a mistake is told under -O as well.

    They narrow types. Where numbers are computed they may also state what holds between values.
    """
    top = path.relative_to(ROOT / "mlbench").parts[0]
    assert top == "contract" or not relied_on(path.read_text(), computes=top in ("tasks", "training"))


@pytest.mark.parametrize(
    "source",
    [
        "assert words, 'no task'",
        "assert find(run) is not None",
        "assert isinstance(one, Run) and one.finish()",
        "assert (last := read()) is not None",
        "try: check()\nexcept AssertionError: pass",
        "if __debug__: check()",
    ],
)
def test_an_assert_that_matters_is_seen(source: str) -> None:
    assert relied_on(source, computes=False)


@pytest.mark.slow
def test_types() -> None:
    tool("basedpyright")


REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")


@pytest.mark.slow
def test_every_direct_dependency_is_imported_and_pinned() -> None:
    lines = [line for name in REQUIREMENTS for line in (ROOT / name).read_text().splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("#", "-e", "-r"))]
    assert all("==" in line and "#" in line for line in wanted)
    names = {line.split("==")[0].split("[")[0] for line in wanted}
    imported = set()
    folders = ("mlbench", "tests", "pipelines", "benchmarks", "tools")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = [path.read_text() for path in paths]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        texts += [re.sub(r"^%.*", "", cell, flags=re.MULTILINE) for cell in cells]
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and any(
                name in ast.unparse(node.func) for name in ("import_module", "importorskip")
            ):
                imported |= {word.value for word in node.args if isinstance(word, ast.Constant)}
    modules = {"hydra-core": "hydra", "scikit-learn": "sklearn", "nvidia-ml-py": "pynvml"}
    modules |= {"PyYAML": "yaml", "pillow": "PIL", "Jinja2": "jinja2", "pytest-xdist": "xdist"}
    modules |= {"vl-convert-python": "vl_convert", "mlperf-logging": "mlperf_logging"}
    modules |= {"common-expression-language": "cel", "backports.tarfile": "backports"}
    tools = {
        "ruff",
        "zizmor",
        "basedpyright",
        "import-linter",
        "ipykernel",
        "sphinx",
        "myst-nb",
        "myst-parser",
        "sphinx-book-theme",
    }
    tools |= {"axe-core-python", "mlcroissant", "mpich"}  # found by name
    assert {n for n in names - tools if modules.get(n, n) not in imported} == set()
