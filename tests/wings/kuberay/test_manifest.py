"""What a run on KubeRay would create: golden files, the strict schema, CEL, and the operator's own rules."""

import copy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kuberay_schema
import pytest
import yaml
from conftest import ROOT

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.identity import key
from mlbench.launch import execute
from mlbench.wings.kuberay import pods, rayjob

GOLDEN = Path(__file__).parent / "golden"
IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
CPU = ("task=logreg", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE)
GPU = (
    *("task=gnmt", "workers=8", "hardware=gcp_n1_t4", "backend=nccl", "cluster=kuberay", IMAGE),
    *("cluster.spot=true", "cluster.mlflow=true", "cluster.queue=team", "cluster.data_claim=datasets"),
    *("cluster.topology=cloud.provider.com/topology-rack", "cluster.results_claim=runs"),
)
TOPOLOGY = (*CPU, "cluster.topology=topology.kubernetes.io/zone")


def objects(words: tuple[str, ...]) -> list[Any]:
    """Return what a run with these words needs, under a fixed name."""
    experiment = compose(words)
    own = rayjob.run_objects(experiment, words, name="mlb-run", seed=1)
    return [*rayjob.surroundings(experiment), *own]


def job(words: tuple[str, ...] = CPU) -> Any:
    """Return a fresh RayJob that may be broken."""
    return copy.deepcopy(objects(words)[-1])


@pytest.mark.parametrize(("name", "words"), [("cpu", CPU), ("gpu", GPU), ("topology", TOPOLOGY)])
def test_the_manifest_is_the_golden_file_and_passes_every_gate(name: str, words: tuple[str, ...]) -> None:
    made = objects(words)
    assert made == list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert [fault for one in made for fault in kuberay_schema.faults(one)] == []


def test_the_cluster_of_a_sweep_passes_every_gate_and_its_runs_select_it() -> None:
    experiment = compose(CPU)
    *_, owner = rayjob.shared_objects(experiment, name="mlb-sweep", labels={})
    shared = {"group": "mlb-sweep", "ray_cluster": "mlb-sweep-x"}
    (run,) = rayjob.run_objects(experiment, CPU, name="mlb-run", seed=1, **shared)
    assert kuberay_schema.faults(owner) == kuberay_schema.faults(run) == []
    assert owner["spec"]["activeDeadlineSeconds"] == 28800  # a sweep that dies costs no more
    assert run["spec"]["clusterSelector"] == {"ray.io/cluster": "mlb-sweep-x"}
    assert "rayClusterSpec" not in run["spec"] and "shutdownAfterJobFinishes" not in run["spec"]
    template = run["spec"]["submitterPodTemplate"]
    assert template["metadata"]["labels"][pods.RUN] == "mlb-sweep"  # or the network policy keeps it out


def templates(value: Any) -> list[Any]:
    """Return the pod specs anywhere in an object."""
    if isinstance(value, list):
        return [one for item in value for one in templates(item)]
    if not isinstance(value, dict):
        return []
    return ([value] if "containers" in value else []) + templates(list(value.values()))


@pytest.mark.parametrize("words", [CPU, GPU, TOPOLOGY])
def test_no_pod_has_more_rights_than_the_restricted_standard_allows(words: tuple[str, ...]) -> None:
    specs = templates(objects(words))
    assert len(specs) >= 2
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == pods.ACCOUNT
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "persistentVolumeClaim"} & volume.keys() for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "@sha256:" in container["image"]
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_entry_point_is_the_same_command_on_an_attached_cluster_and_the_same_point() -> None:
    words = (*CPU, "task.lr=0.01", "division=open", "output_root=/home/me", "cluster.spot=true", "study=mine")
    entry = shlex.split(job(words)["spec"]["entrypoint"])
    assert entry[:3] == ["python", "-m", "mlbench.run"]
    assert [word for word in entry if word.startswith(("cluster", "output_root", "study"))] == [
        *("study=mine", "cluster=attached", "output_root=/tmp/runs")
    ]
    assert key(compose(entry[3:])) == key(compose(words)) != key(compose([*CPU, "cluster=attached"][-1:]))


def test_one_worker_pod_a_node_takes_the_whole_share_of_the_profile() -> None:
    words = ("workers=9", "hardware=aws_p4d_24xlarge", "backend=nccl", "cluster=kuberay", IMAGE)
    (group,) = job(words)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    hardware = compose(words).hardware
    assert hardware.workers_per_node == 8
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 2
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and limits["cpu"] == str(hardware.cpus)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("cluster.image=null", "needs the image"),
        ("cluster.image=mlbench:latest", "names a tag"),
        ("cluster.limit_s=1200", "leaves no time to train"),
        ("hardware=local", "does not say what a node has"),
        (f"cluster.shared={41 * 'a'}", "cluster.shared"),  # its RayJob's name would have 48 characters
        ("tracking_uri=https://me:secret@mlflow.example.org", "holds a password"),
    ],
)
def test_a_run_that_cannot_be_described_is_refused(word: str, sentence: str) -> None:
    name = word.split("=")[0]
    words = (*(one for one in CPU if not one.startswith(f"{name}=")), word)
    with pytest.raises(UserError, match=sentence):
        objects(words)


def test_spot_nodes_of_an_unknown_provider_are_not_guessed() -> None:
    lab = ("hardware=local", "hardware.cpus=2", "hardware.workers_per_node=1")
    words = (*CPU[:2], *lab, *CPU[3:], "cluster.spot=true")
    with pytest.raises(UserError, match="no label is known for spot nodes"):
        objects(words)


def change(item: Any, path: str, value: Any) -> Any:
    """Set the field at a path such as spec.rayClusterSpec.workerGroupSpecs.0.replicas."""
    *parents, last = path.split(".")
    target = item
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    target[last] = value
    return item


GROUP = "spec.rayClusterSpec.workerGroupSpecs.0"
HEAD = "spec.rayClusterSpec.headGroupSpec"
SUCCESS = {"jobStatus": "SUCCEEDED", "ttlSeconds": 1}
BOTH = SUCCESS | {"jobDeploymentStatus": "Failed"}


# What each gate refuses: the path of a field, its value, and words of the sentence; None: nothing refuses it.
SCHEMA = [
    ("spec.entryPoint", "x", "'entryPoint' was unexpected"),
    ("spec.backoffLimit", "0", "'0' is not of type 'integer'"),
    ("spec.preRunningDeadlineSeconds", 0, "less than the minimum of 1"),
    (f"{HEAD}.template.spec.containers.0.image", 1, "1 is not of type 'string'"),
]
CEL = [
    ("spec.managedBy", "me", "managedBy field value must be either"),
    ("spec.deletionStrategy", {"onSuccess": {"policy": "DeleteSelf"}}, "requires either BOTH"),
    (
        "spec.deletionStrategy",
        {"deletionRules": [{"policy": "DeleteSelf", "condition": BOTH}]},
        "cannot be used together",
    ),
]
OPERATOR = [
    ("metadata.name", 48 * "a", "has 48 characters, a RayJob's may have 47"),
    ("metadata.name", "1-run", "not a DNS label"),
    ("spec.shutdownAfterJobFinishes", False, "ttlSecondsAfterFinished needs"),
    (
        "spec.deletionStrategy",
        {"deletionRules": [{"policy": "DeleteSelf", "condition": SUCCESS}]},
        "deletionRules go neither with",
    ),
    ("spec.submissionMode", "SidecarMode", "submitterPodTemplate does not go with SidecarMode"),
    ("spec.clusterSelector", {"ray.io/name": "x"}, "clusterSelector needs a name"),
    ("spec.activeDeadlineSeconds", 0, "activeDeadlineSeconds has to be positive"),
    ("spec.runtimeEnvYAML", "[", "runtimeEnvYAML is not a YAML object"),
    ("spec.backoffLimit", -1, "backoffLimit is negative"),
    ("spec.rayClusterSpec.rayVersion", "2.51.1", "needs rayVersion 2.52"),
    ("spec.rayClusterSpec.authOptions", {"enableK8sTokenAuth": True}, "does not support"),
    ("spec.rayClusterSpec.networkPolicy", {}, "feature gate RayClusterNetworkPolicy"),
    ("spec.rayClusterSpec.gcsFaultToleranceOptions", {}, None),
    (f"{HEAD}.rayStartParams.redis-username", "me", "gcsFaultToleranceOptions"),
    (f"{HEAD}.resources", {"CPU": "1"}, "resources stand both in"),
    (f"{HEAD}.labels", {"a b": "c"}, "not the name of a label"),
    (f"{GROUP}.minReplicas", 3, "minReplicas is above maxReplicas"),
    (f"{GROUP}.idleTimeoutSeconds", 5, "needs autoscaler v2"),
    (f"{GROUP}.priority", 5, "priority needs autoscaler v2"),
    (f"{GROUP}.rayStartParams.labels", "a=b", "labels belong into the group"),
    (f"{GROUP}.template.spec.containers", [], "it needs a container"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), [*SCHEMA, *CEL, *OPERATOR])
def test_each_gate_refuses_what_it_would_refuse_in_a_cluster(
    path: str, value: Any, sentence: str | None
) -> None:
    found = kuberay_schema.faults(change(job(), path, value))
    assert found == [] if sentence is None else sentence in "; ".join(found)


def test_the_command_prints_what_kubectl_takes() -> None:
    command = [sys.executable, "-m", "mlbench.run", *CPU, "seed=1", "--cfg", "manifest"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    printed = list(yaml.safe_load_all(shown))
    name = printed[-1]["metadata"]["name"]
    experiment = compose(CPU)
    own = rayjob.run_objects(experiment, CPU, name=name, seed=1)
    assert own[-1]["metadata"]["annotations"]["mlbench/seed"] == "1"
    assert [one["kind"] for one in printed] == [
        one["kind"] for one in [*rayjob.surroundings(experiment), *own]
    ]
    assert printed[-1]["spec"]["rayClusterSpec"] == own[-1]["spec"]["rayClusterSpec"]


def test_the_command_is_told_when_its_nodes_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run's whole bill begins with its submission; 1795327200 is 06:00 UTC of that day."""
    experiment = compose(CPU)
    made = rayjob.run_objects(experiment, CPU, name="mlb-logreg-2-261122060000-0a1b", seed=1)[-1]
    words = shlex.split(made["spec"]["entrypoint"])
    assert words[:4] == ["env", "MLBENCH_SUBMITTED_AT=1795327200", "python", "-m"]
    assert execute.submitted() is None
    monkeypatch.setenv(*words[1].split("="))
    assert execute.submitted() == 1795327200.0
