"""What all tests share: telemetry off, prepared data, and one Ray session for those that need one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(
    DO_NOT_TRACK="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="token",
    MLFLOW_DISABLE_TELEMETRY="true",
    MPLBACKEND="Agg",
)
ROOT = Path(__file__).parent.parent
# A shell that starts the tests in the background has SIGINT ignored, and what they start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest; a file stays in one process, all that share a Ray in another."""
    order = {"ray": 0, "test_official_steps.py": 1}

    def group(item: pytest.Item) -> str:
        return "ray" if item.get_closest_marker("ray") else item.path.name

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: order.get(group(item), len(order)))


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> None:
    """Skip what needs a GPU where there is none."""
    if request.node.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which prepared mini data sets are shared by all tests."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def kept_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Keep one Ray for all tests that start runs; yield the environment in which commands find it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "mlbench.cluster"]
    subprocess.run([*command, "start"], cwd=ROOT, env=environment, check=True)
    yield environment
    subprocess.run([*command, "stop"], cwd=ROOT, env=environment, check=True)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow store as MLflow makes it, to copy: making one takes it a second."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
