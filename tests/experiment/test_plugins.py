"""What installed packages and further folders add, never in the place of what mlbench ships."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mlbench.experiment import config, plugins
from mlbench.experiment.errors import UserError

CLUSTER = "name: {}\noversubscribe: false\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a package with a cluster and its YAML, found as an installed one is."""
    root = tmp_path / "site" / "their_package"
    (root / "conf" / "cluster").mkdir(parents=True)
    for folder in (root, root / "conf"):
        (folder / "__init__.py").touch()
    (root / "conf" / "cluster" / "theirs.yaml").write_text(CLUSTER.format("theirs") + "nodes: 3\n")
    (root / "theirs.py").write_text(
        "from mlbench.experiment.config import Cluster\n"
        "class Config(Cluster):\n    nodes: int\n"
        "def connect(experiment): ...\n"
        "shares_files = False\n"
    )
    monkeypatch.syspath_prepend(str(root.parent))
    points = {
        "mlbench.conf": (EntryPoint("their_package", "their_package.conf", "mlbench.conf"),),
        "mlbench.clusters": (EntryPoint("theirs", "their_package.theirs", "mlbench.clusters"),),
    }
    monkeypatch.setattr(plugins, "_points", lambda group: points.get(group, ()))
    plugins.conf_packages.cache_clear()
    yield root
    plugins.conf_packages.cache_clear()
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def test_a_package_s_choice_is_offered_composed_and_declared(package: Path) -> None:
    assert config.choices("cluster") == ["attached", "kuberay", "local", "theirs"]
    experiment = config.compose(["cluster=theirs"])
    assert vars(experiment.cluster) == {"name": "theirs", "oversubscribe": False, "nodes": 3}
    (deviation,) = experiment.deviations
    assert (deviation.field, deviation.given, deviation.declared) == ("cluster", "theirs", True)
    assert config.compose().deviations == ()


def test_a_wrong_value_of_a_package_s_field_is_one_sentence(package: Path) -> None:
    with pytest.raises(UserError) as caught:
        config.compose(["cluster=theirs", "cluster.nodes=many"])
    assert caught.value.message == "cluster.nodes=many: not a whole number"


def test_two_packages_cannot_share_a_name(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("local", "their_package.theirs", "mlbench.clusters")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) * (group == "mlbench.clusters"))
    with pytest.raises(UserError, match="mlbench.clusters.local and in their_package.theirs"):
        plugins.load("cluster", "local")
    (package / "conf" / "cluster" / "local.yaml").write_text(CLUSTER.format("local"))
    with pytest.raises(UserError, match="cluster=local is both"):
        plugins.files("cluster", ["pkg://their_package.conf"])


def test_what_a_module_lacks_is_named(package: Path) -> None:
    (package / "theirs.py").write_text("shares_files = True\n")
    with pytest.raises(UserError, match=r"cluster 'theirs' lacks connect .*adding-a-cluster.md"):
        plugins.load("cluster", "theirs")
    with pytest.raises(UserError, match="there is no sync 'gossip'"):
        plugins.load("sync", "gossip")


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_hydra_s_search_path_adds_a_folder(tmp_path: Path, address: str) -> None:
    (tmp_path / "hardware").mkdir()
    own = (plugins.own_conf() / "hardware" / "local.yaml").read_text()
    (tmp_path / "hardware" / "mine.yaml").write_text(own.replace("name: local", "name: mine"))
    experiment = config.compose([f"hydra.searchpath=['{address.format(tmp_path)}']", "hardware=mine"])
    assert experiment.hardware.name == "mine"
    assert [one.field for one in experiment.hardware_overrides] == ["hardware"]
    with pytest.raises(UserError, match="hardware=mine is unknown"):
        config.compose(["hardware=mine"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("hydra.run.dir=x", "only hydra.searchpath is read"),
        ("hydra.searchpath=[/nowhere/at/all]", "/nowhere/at/all is not a folder to search"),
        ("hydra.searchpath=['pkg://no_such_package']", "is not a folder to search"),
        ("~seed", "keys cannot be added or removed"),
        ("++workers=3", "keys cannot be added or removed"),
    ],
)
def test_other_words_for_hydra_have_a_sentence(word: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        config.compose([word])
