"""Options of the contract tests: names or dotted modules of tasks, sync strategies and clusters.

If one is given, a failure is a sentence: the plugin, what it has to do, what it did and in which of its
lines. -v shows the traceback.
"""

import re
import subprocess
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest

GROUPS = ("task", "sync", "cluster")
REMOTE = "Traceback (most recent call last)"  # of another process, in the message of an AssertionError
FRAME = re.compile(r'File "(.+?)", line (\d+)')


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mlbench")
    for name in GROUPS:
        group.addoption(f"--{name}", action="append", default=[], help=f"a {name} for mlbench.contract")


def names(config: pytest.Config, group: str) -> list[str]:
    """Return the names to test: those given, or all names if no option was given."""
    from mlbench.config import plugins
    from mlbench.config.compose import choices, compose
    from mlbench.config.errors import UserError

    if not _chosen(config):
        return choices(group)
    selection = [plugins.name(group, given) for given in config.getoption(f"--{group}") or ()]
    try:
        for name in selection:
            compose([f"{group}={name}", "division=open"])
    except UserError as error:
        raise pytest.Collector.CollectError(f"mlbench: {error}") from error
    return selection


def _chosen(config: pytest.Config) -> bool:
    return any(config.getoption(f"--{name}") for name in GROUPS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put a sentence in the place of a traceback."""
    report = yield
    ours = getattr(item.obj, "__module__", "").startswith("mlbench.contract.")
    if report.failed and call.excinfo and ours and _chosen(item.config) and item.config.get_verbosity() <= 0:
        report.longrepr = sentence(item, call.excinfo.value)
    return report


def sentence(item: pytest.Function, error: BaseException) -> str:
    """Return which plugin broke which promise, and how."""
    from mlbench.config import plugins
    from mlbench.config.errors import UserError

    plug_in = getattr(item, "callspec", None)
    name = plug_in.params.get("name") if plug_in else None
    given = [(group, each) for group in GROUPS for each in item.config.getoption(f"--{group}") or ()]
    promise = (item.originalname or item.name).removeprefix("test_").replace("_", " ")
    text = str(error)
    if REMOTE in text:  # its last line without indent has the error
        frames = FRAME.findall(text)
        what = next(line for line in text.split('File "')[-1].splitlines()[1:] if not line.startswith(" "))
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        what = text.partition("\n")[0] or type(error).__name__
        if not isinstance(error, AssertionError | UserError):
            what = f"{type(error).__name__}: {what}"
    modules = [plugins.load(group, plugins.name(group, each)) for group, each in given]
    folders = tuple(str(Path(str(module.__file__)).parent) for module in modules)
    own = [(path, line) for path, line in frames if path.startswith(folders)]
    where = f" ({own[-1][0]}, line {own[-1][1]})" if own else ""
    return f"{name or ' '.join(each for _, each in given)}: {promise}: {what}{where}"


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepared data sets are shared by all tests."""
    return tmp_path_factory.mktemp("data")


def import_without(module: ModuleType, packages: set[str]) -> None:
    """Import a module in a separate process, which fails if that imports one of the packages."""
    code = f"import sys, {module.__name__}; assert not {packages} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
