"""What a script's folder is in a manifest: which files, under which hash, and what no pod has."""

import base64
import io
import tarfile
from pathlib import Path
from typing import Any

import doc_pages
import kuberay_schema
import pytest
import yaml
from conftest import ROOT
from test_manifest import GOLDEN, IMAGE, sent, templates, without_experiment

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.identity import key
from mlbench.plugins.kuberay import pods, rayjob, shared
from mlbench.plugins.kuberay.capacity import quantity

WORDS = ("task=script", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE)
SCRIPT = (*WORDS, "task.path=train.py", "cluster.working_dir=.")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"train.py": "import nets\n", "nets/__init__.py": "", "config.yaml": "lr: 1\n", "large.bin": "x",
             ".gitignore": "*.bin\nruns/\n", ".env": "SECRET=1", "runs/a/events.jsonl": "{}"}  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def made(*words: str) -> list[Any]:
    return rayjob.run_objects(compose(words), words, name="mlb-run", seed=1)


def files(objects: list[Any]) -> dict[str, bytes]:
    """Return the files of the ConfigMap."""
    (item,) = (item for item in objects if item["kind"] == "ConfigMap")
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(item["binaryData"][pods.ARCHIVE]))) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def test_the_manifest_of_a_script_with_its_data_and_secrets_is_the_golden_file() -> None:
    words = (
        *SCRIPT,
        *("cluster.data_bucket=gs://lab/images", "cluster.data_gib=40", "cluster.results_claim=runs"),
        *(
            "cluster.environment_secret=keys",
            "cluster.mounts={/raid: scratch}",
            "task.python=/opt/env/bin/python",
        ),
    )
    objects = [*rayjob.surroundings(compose(words)), *made(*words)]
    shown = [without_experiment(item) for item in objects]
    for item in shown:
        if item["kind"] == "ConfigMap":
            item["binaryData"] = {pods.ARCHIVE: "..."}
    assert shown == list(yaml.safe_load_all((GOLDEN / "script.yaml").read_text()))
    assert [fault for item in objects for fault in kuberay_schema.faults(item)] == []


def test_a_script_s_files_reach_head_and_workers_without_what_is_ignored_and_name_the_run(
    project: Path,
) -> None:
    objects = made(*SCRIPT)
    assert files(objects).keys() == {"train.py", "nets/__init__.py", "config.yaml", ".gitignore"}
    assert files(objects)["config.yaml"] == b"lr: 1\n"
    for spec in templates(objects[-1])[1:]:  # the first is the submitter's
        (unpack,) = spec["initContainers"]
        assert unpack["name"] == "unpack-files"
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "files")
        assert volume["configMap"] == {"name": "mlb-run-files"}
    inside, _ = sent(objects[-1])
    task: Any = inside.task
    assert task.cwd == pods.WORK and key(inside) == key(compose(SCRIPT))
    before, shape = key(compose(SCRIPT)), shared.shape(compose(SCRIPT))
    (project / "config.yaml").write_text("lr: 2\n")  # which the script opens, and does not import
    assert key(compose(SCRIPT)) != before and shared.shape(compose(SCRIPT)) != shape
    (project / "large.bin").write_text("y")
    assert key(compose(SCRIPT)) != before
    sub = project / "nets"
    above = (*WORDS, "task.path=__init__.py", "cluster.working_dir=..")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(sub)
        task = sent(made(*above)[-1])[0].task
    assert task.cwd == f"{pods.WORK}/nets"


def test_the_same_files_are_the_same_bytes_and_changed_ones_are_not_sent(
    project: Path, as_stored: Any
) -> None:
    assert made(*SCRIPT)[1] == made(*SCRIPT)[1]
    experiment = compose(SCRIPT)
    (project / "config.yaml").write_text("lr: 2\n")
    with pytest.raises(UserError, check=as_stored):
        rayjob.run_objects(experiment, SCRIPT, name="mlb-run", seed=1)


@pytest.mark.parametrize(
    "words",
    [
        ("task.path=train.py",),
        ("task.module=train",),
        ("task.path=/opt/train.py", "cluster.working_dir=."),
        ("task.path=train.py", "cluster.working_dir=nets"),
        ("task.path=train.py", "cluster.working_dir=nowhere"),
        ("task.path=train.py", "cluster.working_dir=.", "cluster.data_bucket=gs://a/b"),
        ("task.path=train.py", "cluster.working_dir=.", "max_failures=1"),
        ("task.path=train.py", "cluster.working_dir=.", "task.args=--api-key abc"),
    ],
)
def test_what_no_pod_would_have_is_refused(words: tuple[str, ...], as_stored: Any) -> None:
    with pytest.raises(UserError, check=as_stored):
        made(*WORDS, *words)


def test_a_task_of_the_suite_sends_no_folder() -> None:
    with pytest.raises(UserError, match="task=logreg has no"):
        compose(["task=logreg", *WORDS[1:], "cluster.working_dir=."])


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(project: Path) -> None:
    (project / "weights.pt").write_bytes(bytes(70_000_000))
    with pytest.raises(UserError, match=r"weights.pt \(70 MB\)"):
        compose(SCRIPT)
    (project / ".mlbenchignore").write_text("*.pt\n")
    assert files(made(*SCRIPT)).keys() >= {".mlbenchignore", "large.bin"} - {"weights.pt"}


def test_a_script_of_the_image_is_taken_and_named_by_the_image() -> None:
    experiment = compose([*WORDS, "task.path=/opt/app/train.py"])
    task: Any = experiment.task
    assert task.sources == f"image sha256:{64 * '0'}"
    objects = made(*WORDS, "task.path=/opt/app/train.py")
    assert not any(item["kind"] == "ConfigMap" for item in objects)
    assert [spec.get("initContainers") for spec in templates(objects[-1])] == 3 * [None]


def test_the_queue_of_the_page_has_a_flavor_for_the_head_and_one_for_workers() -> None:
    (page,) = (
        block for block in doc_pages.blocks(ROOT / "docs" / "kuberay.md", "yaml") if "ClusterQueue" in block
    )
    items: dict[str, list[Any]] = {item["kind"]: [] for item in yaml.safe_load_all(page)}
    for item in yaml.safe_load_all(page):
        items[item["kind"]].append(item)
    flavors = {item["metadata"]["name"]: item["spec"]["nodeLabels"] for item in items["ResourceFlavor"]}
    (queue,), (local,) = items["ClusterQueue"], items["LocalQueue"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    words = ("task=gnmt", "workers=2", "hardware=gcp_n1_t4", "backend=nccl", "cluster=kuberay", IMAGE)
    run = rayjob.run_objects(compose(words), words, name="mlb-run", seed=1)[-1]
    cluster = run["spec"]["rayClusterSpec"]
    pods_of = {
        "system": cluster["headGroupSpec"]["template"]["spec"],
        "worker": cluster["workerGroupSpecs"][0]["template"]["spec"],
    }
    for flavor in group["flavors"]:
        labels = flavors[flavor["name"]]
        assert labels.items() <= pods_of[flavor["name"]]["nodeSelector"].items()
        (other,) = (spec for name, spec in pods_of.items() if name != flavor["name"])
        assert not labels.items() <= other["nodeSelector"].items()  # or the first flavor would take both
        quota = {resource["name"]: resource["nominalQuota"] for resource in flavor["resources"]}
        asked = pods_of[flavor["name"]]["containers"][0]["resources"]["requests"]
        assert set(asked) <= set(group["coveredResources"]) == set(quota)
        assert all(quantity(asked[name]) <= quantity(quota[name]) for name in asked)
