"""What a run on KubeRay would create: golden files, the strict schema, CEL, and the operator's own rules."""

import base64
import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kuberay_schema
import pytest
import yaml
from conftest import ROOT

from mlbench.config import resolved
from mlbench.config.compose import compose, hardware
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.config.identity import key
from mlbench.config.overrides import search_word
from mlbench.launch import execute
from mlbench.plugins.kuberay import config, pods, rayjob
from mlbench.plugins.kuberay.capacity import quantity
from mlbench.plugins.kuberay.config import require_kernels

GOLDEN = Path(__file__).parent / "golden"
IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
CPU = ("task=logreg", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE)
GPU = ("backend=nccl", "cluster=kuberay", IMAGE)
T4 = ("task=gnmt", "workers=8", "hardware=gcp_n1_t4", *GPU)
H100 = (
    *("task=transformer", "workers=16", "hardware=aws_p5_48xlarge", *GPU),
    "cluster.worker_pod={spec: {containers: [{name: ray-worker, resources: {limits: "
    "{vpc.amazonaws.com/efa: 32}}}]}}",
)
LAB = (
    *("task=resnet20", "workers=8", "hardware=h200", "hardware.cpus=120", "hardware.memory_gib=1024", *GPU),
    "cluster.head_node_labels={kubernetes.io/os: linux}",
    "cluster.head_pod={spec: {imagePullSecrets: [{name: harbor}]}}",
    "cluster.worker_pod={metadata: {annotations: {k8s.v1.cni.cncf.io/networks: ib0}}, spec: {"
    "imagePullSecrets: [{name: harbor}], runtimeClassName: nvidia, "
    "tolerations: [{key: dedicated, operator: Equal, value: gpu, effect: NoSchedule}], "
    "containers: [{name: ray-worker, resources: {limits: {rdma/hca_shared_devices_a: 1}}, "
    "env: [{name: NCCL_IB_HCA, value: mlx5}]}]}}",
)
KUEUE = (
    *(*T4, "cluster.spot=true", "cluster.queue=team", "cluster.data_claim=datasets"),
    *("cluster.topology=cloud.provider.com/topology-rack", "cluster.results_claim=runs"),
)
IMAGENET = (
    *("task=resnet50", "scale=official", "workers=8", "hardware=aws_p4d_24xlarge", *GPU),
    *("cluster.data_bucket=s3://lab-data/mlbench", "cluster.limit_s=86400"),
)
MANIFESTS = {"cpu": CPU, "h100": H100, "lab": LAB, "kueue": KUEUE, "imagenet": IMAGENET}


def objects(overrides: tuple[str, ...]) -> list[Any]:
    """Return what a run with these words needs, under a fixed name."""
    experiment = compose(overrides)
    own = rayjob.run_objects(experiment, overrides, name="mlb-run", seed=1)
    return [*rayjob.surroundings(experiment), *own]


def job(overrides: tuple[str, ...] = CPU) -> Any:
    """Return a fresh RayJob that may be broken."""
    return copy.deepcopy(objects(overrides)[-1])


def sent(item: Any) -> tuple[Experiment, list[str]]:
    """Return the experiment and the words that a RayJob hands to its command."""
    words = dict(word.split("=", 1) for word in shlex.split(item["spec"]["entrypoint"]) if "=" in word)
    return resolved.loads(base64.b64decode(words[resolved.VARIABLE]).decode())


def without_experiment(item: Any) -> Any:
    """Return a RayJob without the values of its experiment, which change with every default of conf/."""
    item = copy.deepcopy(item)
    if item["kind"] == "RayJob":
        item["spec"]["entrypoint"] = re.sub(
            rf"({resolved.VARIABLE})=\S+", r"\1=...", item["spec"]["entrypoint"]
        )
        item["metadata"]["annotations"][rayjob.EXPERIMENT] = "..."
    return item


@pytest.mark.parametrize(("name", "overrides"), MANIFESTS.items())
def test_the_manifest_is_the_golden_file_and_passes_every_gate(name: str, overrides: tuple[str, ...]) -> None:
    made = objects(overrides)
    golden = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert list(map(without_experiment, made)) == golden
    assert [fault for item in made for fault in kuberay_schema.faults(item)] == []


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
        return [template for item in value for template in templates(item)]
    if not isinstance(value, dict):
        return []
    return ([value] if "containers" in value else []) + templates(list(value.values()))


@pytest.mark.parametrize("overrides", MANIFESTS.values())
def test_no_pod_has_more_rights_than_the_restricted_standard_allows(overrides: tuple[str, ...]) -> None:
    specs = templates(objects(overrides))
    assert len(specs) >= 2
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == pods.ACCOUNT
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "persistentVolumeClaim"} & volume.keys() for volume in spec["volumes"])
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "@sha256:" in container["image"]
            requests, limits = (container["resources"][part] for part in ("requests", "limits"))
            assert limits["memory"] == requests["memory"]
            throttled = container["name"] != "ray-worker"  # which has its node to itself
            assert ("cpu" in limits) is throttled and "ephemeral-storage" not in limits


def test_the_entry_point_has_the_values_that_were_composed_here_and_is_the_same_point() -> None:
    overrides = (
        *CPU,
        "task.lr=0.01",
        "division=open",
        "output_root=/home/me",
        "cluster.spot=true",
        "study=mine",
    )
    item = job(overrides)
    assert shlex.split(item["spec"]["entrypoint"])[-3:] == ["python", "-m", "mlbench.run"]
    inside, words = sent(item)
    assert words == [*CPU, "task.lr=0.01", "division=open", "cluster.spot=true", "study=mine"]
    assert (inside.cluster.name, inside.study, inside.seed, inside.force) == ("attached", "mine", 1, True)
    assert (inside.data_root, inside.output_root) == (Path("/data"), Path("/tmp/runs"))
    here = compose(overrides)
    assert inside.deviations == here.deviations and inside.deviations
    assert key(inside) == key(here) != key(compose([*CPU, "cluster=attached"][-1:]))


def laboratory(folder: Path) -> tuple[Path, Path]:
    """Return a --config-dir, with a cluster and a profile named lab, and a file with the profile's price."""
    profile = yaml.safe_load((ROOT / "conf/hardware/gcp_n1_standard_4.yaml").read_text())
    profile |= {"name": "lab", "price": None, "cpus": 1}
    cluster = {"defaults": ["kuberay", "_self_"], "head_cpus": 1, "image": IMAGE.partition("=")[2]}
    for name, values in (("hardware", profile), ("cluster", cluster)):
        path = folder / "cfg" / name / "lab.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(values))
    prices = folder / "prices.yaml"
    prices.write_text(
        "lab: {usd_per_hour: 0.45, usd_per_hour_spot: null, date: '2026-11-22', source: our contract}"
    )
    return folder / "cfg", prices


def test_no_path_of_the_sender_and_no_file_of_his_is_needed_in_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of his own, a profile in it, a price file: their values travel, also to whoever attaches."""
    folder, prices = laboratory(tmp_path)
    monkeypatch.setenv("MLBENCH_PRICES", str(prices))
    words = (*CPU[:2], "hardware=lab", *CPU[3:], search_word(str(folder)))
    here, item = compose(words), job(words)
    shutil.rmtree(folder)
    prices.unlink()
    for inside, _ in (sent(item), resolved.loads(item["metadata"]["annotations"][rayjob.EXPERIMENT])):
        price = inside.hardware.price
        assert inside.hardware == here.hardware and price and price.usd_per_hour == 0.45
        assert inside.deviations == here.deviations and "R14" in {each.rule for each in inside.deviations}
        assert key(inside) == key(here)
    assert str(tmp_path) not in json.dumps(item)


def test_values_that_the_image_s_version_does_not_take_are_named(as_stored: Any) -> None:
    values = json.loads(resolved.dumps(compose(CPU[:2]), ()))
    values["experiment"]["task"]["newer"] = 1
    with pytest.raises(UserError, check=as_stored):
        resolved.loads(json.dumps(values))


def test_one_worker_pod_a_node_takes_the_whole_share_of_the_profile() -> None:
    overrides = ("workers=9", "hardware=aws_g4dn_12xlarge", "backend=nccl", "cluster=kuberay", IMAGE)
    (group,) = job(overrides)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    hardware = compose(overrides).hardware
    assert hardware.workers_per_node == 4
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 3
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "4" and "cpu" not in limits
    assert group["rayStartParams"]["num-cpus"] == str(hardware.cpus)


SPOT = "hardware=local hardware.cpus=2 hardware.workers_per_node=1 hardware.memory_gib=8 cluster.spot=true"


@pytest.mark.parametrize(
    "word",
    [
        "cluster.image=null",
        "cluster.image=mlbench:latest",
        "cluster.image=mlbench@sha256:DIGEST",
        "cluster.limit_s=1200",
        "hardware=local",
        SPOT,
        f"cluster.shared={41 * 'a'}",  # its RayJob's name would have 48 characters
        "tracking_uri=https://me:secret@mlflow.example.org",
    ],
)
def test_a_run_that_cannot_be_described_is_refused(word: str, as_stored: Any) -> None:
    name = word.split("=")[0]
    overrides = (*(override for override in CPU if not override.startswith(f"{name}=")), *word.split())
    with pytest.raises(UserError, check=as_stored):
        objects(overrides)


def test_an_official_run_has_the_time_and_the_disk_that_its_data_and_its_recipe_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """145 GB at 100 MiB/s are 24 min; 90 epochs on 8 T4 about 12 h."""

    def objects_of(*more: str) -> Any:
        words = (*IMAGENET[:3], "hardware=gcp_n1_t4", *GPU, IMAGENET[-2], *more)
        return job(words)["spec"]

    with pytest.raises(UserError, match="how long task=resnet50"):
        objects_of()
    with pytest.raises(UserError, match="limit_s=2000 .* 2655 s"):
        objects_of("cluster.limit_s=2000")
    with pytest.raises(UserError, match="provision_s=1200: .* 142 GiB .* 1455 s"):
        objects_of("cluster.limit_s=86400", "cluster.provision_s=1200")
    spec = objects_of("cluster.limit_s=86400")
    assert (spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"]) == (86400, 2655)
    pod = spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "142Gi"
    with pytest.raises(UserError, match="shared_limit_s=28800 ends"):
        objects_of("cluster.limit_s=86400", "cluster.shared=mlb")
    monkeypatch.setattr(config, "expected_s", lambda _: 43200.0)  # as earlier runs took
    assert objects_of()["activeDeadlineSeconds"] == 2 * (2655 + 43200)
    with pytest.raises(UserError, match="limit_s=40000 .* 43200 s"):
        objects_of("cluster.limit_s=40000")


def change(item: Any, path: str, value: Any) -> Any:
    """Set the field at a path such as spec.rayClusterSpec.workerGroupSpecs.0.replicas."""
    *parents, last = path.split(".")
    target = item
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    target[last] = value
    return item


GROUP = "spec.rayClusterSpec.workerGroupSpecs.0"
BOTH = {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Failed", "ttlSeconds": 1}


# What each gate refuses: the path of a field, its value, and words of the sentence.
SCHEMA = [
    ("spec.entryPoint", "x", "'entryPoint' was unexpected"),
    ("spec.backoffLimit", "0", "'0' is not of type 'integer'"),
    ("spec.preRunningDeadlineSeconds", 0, "less than the minimum of 1"),
    ("spec.rayClusterSpec.headGroupSpec.template.spec.containers.0.image", 1, "1 is not of type 'string'"),
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
    ("spec.submissionMode", "SidecarMode", "submitterPodTemplate does not go with SidecarMode"),
    ("spec.clusterSelector", {"ray.io/name": "x"}, "clusterSelector needs a name"),
    ("spec.activeDeadlineSeconds", 0, "activeDeadlineSeconds has to be positive"),
    ("spec.backoffLimit", -1, "backoffLimit is negative"),
    ("spec.rayClusterSpec.rayVersion", "2.51.1", "needs rayVersion 2.52"),
    ("spec.rayClusterSpec.authOptions", {"enableK8sTokenAuth": True}, "does not support"),
    ("spec.rayClusterSpec.networkPolicy", {}, "networkPolicy is not known here"),  # behind a feature gate
    (f"{GROUP}.minReplicas", 3, "above maxReplicas"),
    (f"{GROUP}.template.spec.containers", [], "it needs a container"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), [*SCHEMA, *CEL, *OPERATOR])
def test_each_gate_refuses_what_it_would_refuse_in_a_cluster(path: str, value: Any, sentence: str) -> None:
    assert sentence in "; ".join(kuberay_schema.faults(change(job(), path, value)))


def test_the_command_prints_what_kubectl_takes() -> None:
    command = [sys.executable, "-m", "mlbench.run", *CPU, "seed=1", "--cfg", "manifest"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    printed = list(yaml.safe_load_all(shown))
    name = printed[-1]["metadata"]["name"]
    experiment = compose(CPU)
    own = rayjob.run_objects(experiment, CPU, name=name, seed=1)
    assert own[-1]["metadata"]["annotations"]["mlbench/seed"] == "1"
    assert [item["kind"] for item in printed] == [
        item["kind"] for item in [*rayjob.surroundings(experiment), *own]
    ]
    assert printed[-1]["spec"]["rayClusterSpec"] == own[-1]["spec"]["rayClusterSpec"]


def test_the_command_is_told_when_its_nodes_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run's whole bill begins with its submission; 1795327200 is 06:00 UTC of that day."""
    experiment = compose(CPU)
    made = rayjob.run_objects(experiment, CPU, name="mlb-logreg-2-261122060000-0a1b", seed=1)[-1]
    command = shlex.split(made["spec"]["entrypoint"])
    assert command[:2] == ["env", "MLBENCH_SUBMITTED_AT=1795327200"]
    assert execute.submitted() is None
    monkeypatch.setenv(*command[1].split("="))
    assert execute.submitted() == 1795327200.0


@pytest.mark.parametrize(
    ("memory_gib", "allocatable_gib"),
    [
        *((7.5, 5.7), (15, 12.3), (30, 26.6), (60, 54.7), (120, 111.2), (240, 228.4), (360, 346.4)),
        *((128, 116.5), (512, 486.9)),  # GiB, measured on GKE 1.25 (2i2c-org/infrastructure#2121, 2023)
        # GiB of a2-highgpu-1g and a3-highgpu-8g by kubernetes/autoscaler's gce/reserved.go, 2026-11-25
        *((85, 76.9), (1872, 1799.1)),
    ],
)
def test_a_pod_leaves_its_node_what_the_cloud_keeps_and_a_gib_for_services(
    memory_gib: float, allocatable_gib: float
) -> None:
    """First n1-standard-2 to -96, as Google's page "Plan GKE Standard node sizes" had them."""
    assert 0.96 * allocatable_gib - 2 < pods.allocatable_gib(memory_gib) <= allocatable_gib - 0.6


def test_gke_s_node_of_the_head_carries_the_pods_of_a_sweep_beside_its_own() -> None:
    """Head, submitters of the shared Ray and of a run, and KubeRay's operator, on an n1-standard-4.

    Its own pods ask for 0.813 CPUs (`kubectl describe node`, GKE with metrics-server 0.7.1), and kube-dns
    for 0.265 more as soon as there are workers, whose taints keep it away.
    """
    head = pods.head_request(compose(CPU))
    ours = sum(quantity(request["cpu"]) for request in (head, *2 * [pods.SUBMITTER_REQUEST])) + 0.1
    assert ours + 0.813 + 0.265 <= 3.92  # allocatable, cloud.google.com, "Plan GKE Standard node sizes"


@pytest.mark.parametrize("name", ["mlbench_2021_n1_t4", "gcp_n1_t4"])
def test_spot_nodes_are_those_of_the_profile_s_provider(name: str) -> None:
    experiment = compose((*CPU, f"hardware={name}", "cluster.spot=true"))
    assert pods.worker_selector(experiment)["cloud.google.com/gke-spot"] == "true"


def test_every_profile_of_a_cloud_states_the_memory_of_its_node() -> None:
    for file in (ROOT / "conf" / "hardware").glob("*.yaml"):
        profile = yaml.safe_load(file.read_text())
        assert profile["memory_gib"] or not profile["machine"], file


@pytest.mark.parametrize("name", ["aws_m5_large", "gcp_g2_standard_4", "aws_p5en_48xlarge"])
def test_a_pod_asks_for_less_than_its_node_has(name: str) -> None:
    profile = hardware(name)
    experiment = compose(CPU).model_copy(update={"hardware": profile})
    template = pods.workers(experiment, "run")
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    memory = float(limits["memory"].removesuffix("Gi"))
    assert profile.memory_gib and 0.5 * profile.memory_gib <= memory < 0.98 * profile.memory_gib
    assert limits.get("nvidia.com/gpu", "0") == str(profile.gpus)
    (shared,) = (v["emptyDir"] for v in template["spec"]["volumes"] if v["name"] == "shared-memory")
    assert shared["sizeLimit"] == pods.gib(memory / 2)


def test_the_decoders_buffers_of_eight_workers_fit_into_shared_memory() -> None:
    """23 decoders with two batches each and one more of 256 images, as tasks/resnet50/decode.py has them."""
    overrides = ("task=resnet50", "workers=8", "hardware=aws_p5_48xlarge", *GPU)
    spec = job(overrides)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    (shared,) = (
        volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if volume["name"] == "shared-memory"
    )
    ring = (2 * 23 + 1) * 256 * 224 * 224 * 3  # bytes a worker
    assert float(shared.removesuffix("Mi").removesuffix("Gi")) * 2**20 > 8 * ring


@pytest.mark.parametrize(
    "overrides",
    [
        ("hardware=aws_p3_2xlarge",),
        ("hardware=aws_p5_48xlarge", "workers=16"),
        ("hardware=gcp_n1_t4", "hardware.memory_gib=null"),
        ("hardware=gcp_n1_t4", "scale=official"),
        ("hardware=gcp_n1_t4", "cluster.data_claim=a", "cluster.data_bucket=gs://a/b"),
    ],
)
def test_what_would_fail_on_nodes_that_are_paid_for_is_refused(
    overrides: tuple[str, ...], as_stored: Any
) -> None:
    with pytest.raises(UserError, check=as_stored):
        objects(("task=resnet20", "workers=2", "backend=nccl", "cluster=kuberay", IMAGE, *overrides))


def test_two_parts_of_gpus_a_node_are_refused_as_cuda_shows_a_process_one(as_stored: Any) -> None:
    mig = compose(LAB).hardware.model_copy(update={"gpu_resource": "nvidia.com/mig-1g.18gb", "gpus": 2})
    with pytest.raises(UserError, check=as_stored):
        require_kernels(mig)
    require_kernels(mig.model_copy(update={"gpus": 1}))


def test_an_image_of_ones_own_may_have_other_kernels() -> None:
    own = ("hardware=aws_p3_2xlarge", "hardware.capability=null")
    objects(("task=resnet20", "workers=2", "backend=nccl", "cluster=kuberay", IMAGE, *own))
    amd = job(
        ("task=logreg", "workers=8", "hardware=mi300x", "hardware.cpus=90", "hardware.memory_gib=1000", *GPU)
    )
    spec = amd["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "8"
    assert "amd.com/gpu" in {toleration["key"] for toleration in spec["tolerations"]}


def test_a_merge_changes_what_it_names_and_nothing_else() -> None:
    device = {"name": "ib", "hostPath": {"path": "/dev/infiniband"}}
    mounts = [{"name": "ib", "mountPath": "/dev/infiniband"}]
    one, two = {"name": "A", "value": "1"}, {"name": "A", "value": "2"}
    more, sidecar = {"name": "B", "value": "3"}, {"name": "sidecar", "image": "i"}
    annotations = {"annotations": {"a/b": "c"}}
    template = {"spec": {"containers": [{"name": "ray-worker", "env": [one]}], "x": 1}}
    worker = {"name": "ray-worker", "env": [two, more], "volumeMounts": mounts}
    spec = {"x": None, "volumes": [device], "containers": [worker, sidecar]}
    change = {"metadata": annotations, "spec": spec}
    before = copy.deepcopy((template, change))
    merged = {"metadata": annotations, "spec": {"containers": [worker, sidecar], "volumes": [device]}}
    assert pods.merged(template, change) == merged and (template, change) == before


def test_what_a_fabric_or_another_container_runtime_wants_are_fields() -> None:
    words = ("cluster.user=null", "cluster.read_only_root=false", "cluster.hugepages_mib=5210")
    made = objects((*CPU, *words))
    assert [fault for item in made for fault in kuberay_schema.faults(item)] == []
    for spec in templates(made):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()  # OpenShift's own
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    worker = templates(job((*CPU, *words)))[-1]["containers"][0]["resources"]
    assert worker["requests"]["hugepages-2Mi"] == worker["limits"]["hugepages-2Mi"] == "5210Mi"
    *others, locked = templates(job((*CPU, "cluster.ipc_lock=true")))
    assert locked["securityContext"]["runAsUser"] == 0 and not locked["securityContext"]["runAsNonRoot"]
    assert locked["containers"][0]["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["IPC_LOCK"],
    }
    assert all(spec["securityContext"]["runAsUser"] == 1000 for spec in others)
