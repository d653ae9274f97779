"""What installed packages and further folders add, never in the place of what mlbench ships."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mlbench.config import compose, plugins
from mlbench.config.errors import UserError

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
        "from mlbench.config.experiment import Cluster\n"
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
    assert compose.choices("cluster") == ["attached", "local", "theirs"]
    experiment = compose.compose(["cluster=theirs"])
    assert vars(experiment.cluster) == {"name": "theirs", "oversubscribe": False, "nodes": 3}
    (deviation,) = experiment.deviations
    assert (deviation.field, deviation.given, deviation.declared) == ("cluster", "theirs", True)
    assert compose.compose().deviations == ()


def test_a_wrong_value_of_a_package_s_field_is_one_sentence(package: Path) -> None:
    with pytest.raises(UserError) as caught:
        compose.compose(["cluster=theirs", "cluster.nodes=many"])
    assert caught.value.message.startswith("cluster.nodes=many: ")


def test_two_packages_cannot_share_a_name(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("local", "their_package.theirs", "mlbench.clusters")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) * (group == "mlbench.clusters"))
    with pytest.raises(UserError, match="mlbench.clusters.local .* their_package.theirs"):
        plugins.load("cluster", "local")
    (package / "conf" / "cluster" / "local.yaml").write_text(CLUSTER.format("local"))
    with pytest.raises(UserError, match="cluster=local is both"):
        plugins.files("cluster", ["pkg://their_package.conf"])


def test_what_a_module_lacks_is_named(package: Path) -> None:
    (package / "theirs.py").write_text("shares_files = True\n")
    with pytest.raises(UserError, match="lacks connect .*extending.md"):
        plugins.load("cluster", "theirs")
    with pytest.raises(UserError, match="unknown sync 'gossip'"):
        plugins.load("sync", "gossip")


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_hydra_s_search_path_adds_a_folder(tmp_path: Path, address: str) -> None:
    (tmp_path / "hardware").mkdir()
    own = (plugins.own_conf() / "hardware" / "local.yaml").read_text()
    (tmp_path / "hardware" / "mine.yaml").write_text(own.replace("name: local", "name: mine"))
    experiment = compose.compose([f"hydra.searchpath=['{address.format(tmp_path)}']", "hardware=mine"])
    assert experiment.hardware.name == "mine"
    assert "hardware" in [deviation.field for deviation in experiment.deviations]
    with pytest.raises(UserError, match="hardware=mine is unknown"):
        compose.compose(["hardware=mine"])


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_a_folder_with_files_of_any_group_is_one_to_search(tmp_path: Path, group: str) -> None:
    (tmp_path / group).mkdir()
    assert plugins.folder(str(tmp_path)) == tmp_path


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's own folder of YAML files with a hardware profile, found as ~/.config/mlbench is."""
    (tmp_path / "mlbench" / "hardware").mkdir(parents=True)
    own = (plugins.own_conf() / "hardware" / "local.yaml").read_text()
    (tmp_path / "mlbench" / "hardware" / "mine.yaml").write_text(own.replace("name: local", "name: mine"))
    monkeypatch.delenv("MLBENCH_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mlbench"


def test_a_user_s_own_folder_adds_choices_that_are_never_official(mine: Path) -> None:
    assert "mine" in compose.choices("hardware")
    experiment = compose.compose(["hardware=mine", "scale=official"])
    assert experiment.hardware.name == "mine"
    assert [deviation.field for deviation in experiment.deviations] == ["hardware"]


NO_DATASET = "name: logreg\nrecipe: own\nrecipes: {own: {}}\nscales: {mini: {}, official: {}}"


def test_a_folder_that_the_environment_names_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.USER_CONF, "/nonexistent")
    with pytest.raises(UserError, match="MLBENCH_CONFIG_DIR=/nonexistent is"):
        compose.compose([])


def test_a_task_of_the_user_s_varies_a_shipped_one(mine: Path) -> None:
    (mine / "task").mkdir()
    (mine / "task" / "wide.yaml").write_text("defaults: [resnet20, _self_]\nvariant: v2\n")
    experiment = compose.compose(["task=wide"])
    assert (experiment.task.name, vars(experiment.task)["variant"]) == ("resnet20", "v2")
    assert [(deviation.field, deviation.given) for deviation in experiment.deviations] == [
        ("task", "wide"),
        ("task.variant", "v2"),
    ]


@pytest.mark.parametrize(
    ("file", "text", "word", "sentence"),
    [
        ("hardware/bad.yaml", "cpus: [", "hardware=bad", r"hardware/bad.yaml, line 1: invalid YAML"),
        ("hardware/bad.yaml", "name: good", "hardware=bad", "hardware/bad.yaml has name: good"),
        ("hardware/bad.yaml", "defaults: [bad, _self_]", "hardware=bad", "files name each other as defaults"),
        ("hardware/bad.yaml", "a: " + "[" * 3000 + "]" * 3000, "hardware=bad", "bad.yaml: invalid YAML"),
        ("hardware/bad.yaml", "- 1", "hardware=bad", "hardware/bad.yaml must be a mapping"),
        ("hardware/bad.yaml", "cpus: 2", "hardware=bad", "hardware/bad.yaml: it lacks name"),
        ("hardware/bad.yaml", "name: bad\ncpus: 2", "hardware=bad", "the file of hardware=bad lacks descr"),
        ("backend/bad.yaml", "name: bad\ndevice: tpu\ntimeout_s: 9", "backend=bad", "backend.device=tpu"),
        ("backend/bad.yaml", "name: bad\ndevices: cpu", "backend=bad", "devices is not a field of the file"),
        ("task/bad.yaml", "name: bad", "task=bad", "it lacks recipe, recipes, scales"),
        (
            "task/bad.yaml",
            NO_DATASET,
            "task=bad",
            "the file of task=bad lacks dataset, metric, metric_unit",
        ),
        (
            "task/bad.yaml",
            "defaults: [logreg, _self_]\nbatch_sise: 256",
            "task=bad",
            r"batch_sise is not a field of the file of task=bad: did you mean batch_size\?",
        ),
        ("task/bad.yaml", "defaults: [nothing]", "task=bad", "task=bad cannot be composed: .*nothing"),
        ("task/bad.yaml", "defaults: [resnet20, _self_]\nrecipes: 3", "task=bad", "recipes is not a group"),
        (
            "task/bad.yaml",
            "defaults: [resnet20, _self_]\nname: nowhere",
            "task=bad",
            "unknown task 'nowhere'",
        ),
        ("study/resnet20.txt", "", "hardware=bad", "hardware=bad is unknown"),
    ],
)
def test_a_broken_file_of_the_user_s_is_named(
    mine: Path, file: str, text: str, word: str, sentence: str
) -> None:
    (mine / file).parent.mkdir(exist_ok=True)
    (mine / file).write_text(text)
    with pytest.raises(UserError, match=sentence):
        compose.compose([word])
