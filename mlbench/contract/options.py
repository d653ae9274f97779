"""Options of the contract tests: which tasks, sync strategies and clusters; names, or modules with dots."""

from pathlib import Path

import pytest

GROUPS = ("task", "sync", "cluster")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mlbench")
    for name in GROUPS:
        group.addoption(f"--{name}", action="append", default=[], help=f"a {name} for mlbench.contract")


def names(config: pytest.Config, group: str) -> list[str]:
    """Return the names to test: those given; all there are where no option was given."""
    from mlbench.config import plugins
    from mlbench.config.compose import choices

    if any(config.getoption(f"--{name}") for name in GROUPS):
        return [plugins.name(group, given) for given in config.getoption(f"--{group}") or ()]
    return choices(group)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepared data sets are shared by all tests."""
    return tmp_path_factory.mktemp("data")
