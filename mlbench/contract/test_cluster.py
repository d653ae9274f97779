"""The contract of a cluster: --cluster NAME, or every cluster that is found."""

import pytest

from mlbench.config import plugins
from mlbench.config.compose import compose
from mlbench.config.experiment import Cluster
from mlbench.config.identity import key
from mlbench.contract.options import import_without, names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config, "cluster"))


def test_it_composes_and_is_a_measurement_of_its_own(name: str) -> None:
    experiment = compose([f"cluster={name}"])
    assert isinstance(experiment.cluster, Cluster) and experiment.cluster.name == name
    assert name == "local" or key(experiment) != key(compose(["cluster=local"]))


def test_it_says_whether_workers_see_the_driver_s_files(name: str) -> None:
    assert isinstance(plugins.load("cluster", name).shares_files, bool)


def test_the_driver_composes_without_ray_and_torch(name: str) -> None:
    import_without(plugins.load("cluster", name), {"ray", "torch"})
