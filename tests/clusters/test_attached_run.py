"""Runs on a Ray that was there before: three raylets on hosts of their own, with file systems of their own.

Its two workers' nodes differ. Ray's autoscaler adds them when the first run asks for them, the next one takes
them as the entry point of a RayJob, and they go again.
"""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT

from mlbench.clusters import reaper
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.record import events
from mlbench.record.reader import load

links = pytest.importorskip("mlbench.wings.emulation.links")
namespace = pytest.importorskip("mlbench.wings.emulation.namespace")
pytest.importorskip("mlbench.wings.kuberay")
from fake_cluster import FakeCluster  # noqa: E402
from test_submission import IMAGE, NODES, nothing_is_left, starts  # noqa: E402

pytestmark = pytest.mark.slow
PORT = 6380  # another than that of emulated hosts: Ray refuses an address that a process already names
ADDRESS = f"{links.HEAD}:{PORT}"
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
RAY += ["--object-store-memory=100000000", "--include-log-monitor=false"]  # bytes; nobody reads the logs
# What a host sees of these folders is its own.
HIDDEN = 'for folder in {}; do mkdir -p $folder && mount -t tmpfs none $folder || exit; done; exec "$@"'
IDLE_MINUTES = 60.0  # until an idle node goes: longer than these tests take


@dataclass
class Cluster:
    """A Ray on emulated hosts.

    - head, laptop: words before a command that run it beside the head, where a driver belongs, or on a host
      of the same network without a raylet.
    - autoscaling: the autoscaler's configuration, which it reads again every second.
    - output: the folder of the driver's files.
    """

    head: list[str]
    laptop: list[str]
    autoscaling: Path
    environment: dict[str, str]
    output: Path
    data_root: Path

    def start(self, name: str, *overrides: str, host: list[str], **variables: str) -> "subprocess.Popen[str]":
        """Start the command on a host, in an output root of that name."""
        command = [sys.executable, "-m", "mlbench.run", "task=logreg", "workers=2", "seed=7"]
        command += ["cluster=attached", f"cluster.address={ADDRESS}"]
        command += [f"output_root={self.output / name}", f"data_root={self.data_root}", *overrides]
        return subprocess.Popen(
            [*host, *command], cwd=ROOT, env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, name: str, *overrides: str) -> tuple[int, str]:
        """Run the command beside the head, with time for the autoscaler; return its exit code and output."""
        return finished(self.start(name, "cluster.wait_s=120", *overrides, host=self.head))

    def raylets(self) -> int:
        alive = {process.pid for _, process in reaper.processes(reaper.owner())}
        named = psutil.process_iter(["name"])
        return sum(process.pid in alive and process.info["name"] == "raylet" for process in named)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Iterator[Cluster]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("nodes of two types need two CPUs")
    with ExitStack() as stack:
        try:
            links.require(compose(["network=1gbit_1ms"]).network, 2)
        except UserError as error:
            pytest.skip(f"hosts cannot be emulated here: {error}")
        places = [namespace.create(name) for name in ("head", "host0", "host1", "laptop")]
        for machine in places:
            stack.callback(machine.close)
        head, *hosts = places
        links.connect(head, hosts)
        folder = Path(tempfile.mkdtemp(prefix="mlbt-"))  # short: Ray's sockets lie in it
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        output = tmp_path_factory.mktemp("output")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **reaper.environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_FAKE_CLUSTER": "1",  # else Ray's provider for tests refuses
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        notes = Path(tempfile.gettempdir(), "ray")  # where Ray notes its address
        stack.callback(shutil.rmtree, notes, ignore_errors=True)
        hidden = HIDDEN.format(f"{folder} {notes} {data_root} {tmp_path_factory.getbasetemp()}")
        own_files = ["unshare", "--mount", "sh", "-c", hidden, "sh"]
        commands = {}
        for number, host in enumerate(hosts[:2]):
            own = links.address(links.CONTROL, number)
            arguments = [*RAY, f"--address={ADDRESS}", f"--node-ip-address={own}", "--num-cpus=1"]
            cpus = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if number else []
            commands[own] = host.command([*cpus, *own_files, *arguments])
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(autoscaling(commands)))
        arguments = [*RAY, "--head", f"--port={PORT}", f"--node-ip-address={links.HEAD}", "--num-cpus=0"]
        arguments += [f"--temp-dir={folder}", "--include-dashboard=false", f"--autoscaling-config={config}"]
        with open(folder / "head.log", "w") as log:
            started = subprocess.Popen(head.command(arguments), env=environment, stdout=log, stderr=log)
        stack.callback(started.wait)
        stack.callback(reaper.end, reaper.owner())  # what the raylets started, too
        laptop = hosts[2].command(own_files)
        cluster = Cluster(head.command([]), laptop, config, environment, output, data_root)
        until(lambda: cluster.raylets() == 1)
        yield cluster


def autoscaling(commands: dict[str, list[str]]) -> dict[str, object]:
    """Return the configuration of an autoscaler that starts each of these nodes when it is needed."""
    worker = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": len(commands)}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    provider = {"type": "external", "module": "autoscaled_hosts.Hosts", "launch_multiple": True}
    # As KubeRay's, the provider brings nodes that run Ray already; so there is nothing for `ray up` to do.
    same = ("disable_node_updaters", "disable_launch_config_check", "foreground_node_launch")
    up = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        **{f"{name}_commands": [] for name in up},
        **{"auth": {}, "file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False},
        "cluster_name": "test",
        "max_workers": len(commands),
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": head, "worker": worker},
        "provider": provider | dict.fromkeys(same, True) | {"head": links.HEAD, "commands": commands},
    }


def finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output


def test_who_cannot_join_is_told(cluster: Cluster) -> None:
    """Only a Ray of another machine, with a token, refuses them; Ray itself would try for minutes."""
    laptop = cluster.start("laptop", host=cluster.laptop)
    stranger = cluster.start("stranger", host=cluster.head, RAY_AUTH_TOKEN="0" * 64)
    code, text = finished(laptop)
    assert code == 2 and f"this machine is no node of the Ray at {ADDRESS}" in text, text
    code, text = finished(stranger)
    assert code == 2 and f"the server at {ADDRESS} takes no driver" in text and "the same token" in text, text


@pytest.fixture(scope="module")
def refused(cluster: Cluster) -> tuple[int, str]:
    """Return how a run ended for which Ray's autoscaler has added two nodes that differ."""
    assert cluster.raylets() == 1  # the head, which has no CPUs
    return cluster.run("closed", "max_failures=1")


def test_nodes_are_added_and_refused_with_all_that_does_not_fit(
    cluster: Cluster, refused: tuple[int, str]
) -> None:
    """Only nodes of several machines differ, and share no files."""
    code, text = refused
    assert code == 2, text
    assert "the nodes are of 2 types" in text and "1 CPU (" in text and "say division=open" in text
    assert "max_failures= needs an output_root that all nodes share: rank 0, 1 does not see" in text
    (log,) = cluster.output.glob(f"closed/*/{events.NAME}")
    assert not any(event["key"] == "validation" for event in events.read(log))


@pytest.mark.usefixtures("refused")  # which has brought the nodes
def test_the_entry_point_of_a_rayjob_trains_on_nodes_without_a_common_file_system(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Only this goes from the submission through a real Ray to the record on this side."""
    pods = cluster.output / "pods"

    def operate(api: FakeCluster, job: Any) -> None:
        """Do what the submitter does on the head; only the paths are others here."""
        submitter = starts(api, job)
        paths = {"data_root": cluster.data_root, "output_root": pods}
        arguments = [
            next((f"{n}={p}" for n, p in paths.items() if word.startswith(f"{n}=")), word)
            for word in shlex.split(job["spec"]["entrypoint"])
        ]
        head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        variables = {
            variable["name"]: variable["value"] for variable in head["env"] if variable["name"] != "HOME"
        }
        with subprocess.Popen(
            [*cluster.head, *(sys.executable if word == "python" else word for word in arguments)],
            cwd=ROOT,
            env=cluster.environment | variables | {"RAY_ADDRESS": ADDRESS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as entry:
            assert entry.stdout is not None
            for line in entry.stdout:
                api.print(submitter, line.rstrip("\n"))
            api.close_log(submitter)
        ended = ("Complete", "SUCCEEDED") if entry.returncode == 0 else ("Failed", "FAILED")
        api.status(job, ended[0], jobStatus=ended[1])

    with FakeCluster(operate) as api:
        for name, role in NODES.items():
            api.node(name, role)
        overrides = ["task=logreg", "workers=2", "division=open", "hardware=gcp_n1_standard_4", "seed=3"]
        overrides += ["cluster=kuberay", IMAGE, f"output_root={tmp_path}"]
        run = subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", *overrides], cwd=ROOT, text=True,
            env={**os.environ, "KUBECONFIG": str(api.kubeconfig(tmp_path))},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        code, text = finished(run)
        assert code == 0 and "GOAL REACHED" in text, text
        nothing_is_left(api)
    (path,) = tmp_path.glob("*-3/record.json")
    (inside,) = pods.glob("*-3/record.json")
    record, original = load(path), load(inside)
    changed = {"submission", "command"}
    assert record.model_dump(exclude=changed) == original.model_dump(exclude=changed)
    assert record.submission is not None and record.time_to_accuracy is not None
    assert len(record.ray.node_ids) == 3
    assert sorted(node.hostname for node in record.nodes) == ["host0", "host1"]
    assert any("the nodes are of 2 types" in caveat for caveat in record.caveats)


@pytest.mark.usefixtures("refused")
def test_idle_nodes_go_as_no_request_for_them_stands(cluster: Cluster) -> None:
    """Only a real autoscaler shows that what a run asked of it was taken back."""
    config = json.loads(cluster.autoscaling.read_text()) | {"idle_timeout_minutes": 0.01}
    other = cluster.autoscaling.with_suffix(".new")
    other.write_text(json.dumps(config))
    other.replace(cluster.autoscaling)
    until(lambda: cluster.raylets() == 1)
