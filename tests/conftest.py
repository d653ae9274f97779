"""What all tests share: telemetry off, one thread, a Ray session for those that need one."""

import os
from pathlib import Path

import pytest

os.environ.update(
    DO_NOT_TRACK="1",
    RAY_USAGE_STATS_ENABLED="0",
    MLFLOW_DISABLE_TELEMETRY="true",
    MPLBACKEND="Agg",
)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepared mini data sets are shared by all tests."""
    return tmp_path_factory.mktemp("data")
