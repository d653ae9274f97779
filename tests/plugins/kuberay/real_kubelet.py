"""Kubelets that run pods for real, as far as that goes without a container engine.

A pod gets a network of its own, on a bridge of this machine, and each of its containers a root of its own:
the files of this machine, read-only, with the pod's volumes. So containers run as the user, with the
capabilities and on the read-only root that the pod asks for; this environment stands for their image.
"""

import base64
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from leftovers import POD_BRIDGE
from pod_logs import kubelet

from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path
from mlbench.plugins.kuberay.capacity import quantity

namespace = pytest.importorskip("mlbench.plugins.emulation.namespace")  # pods are in some of their own
GATEWAY = "10.88.0.1"
# A root for a container: what it writes goes to a layer of its own in memory, before it becomes read-only.
PREPARE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
chmod 755 root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
{mounts}
mount --bind {hosts} etc/hosts
rm -f etc/resolv.conf
echo nameserver 127.0.0.1 > etc/resolv.conf
mount -o remount,ro,bind . . || mount -o remount,ro .
exec /usr/sbin/chroot . {limits} sh -c 'cd {root} && exec "$@"' sh "$@"
"""


class Kubelets:
    """The kubelets of nodes, whose pods keep their output in a folder; a context manager."""

    def __init__(self, api: Kubernetes, folder: Path, *, certificate: Path | None = None) -> None:
        self.api = api
        self.problems: list[str] = []
        folder.mkdir()
        self._folder = folder
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._started: dict[str, threading.Thread] = {}  # by uid: who runs the pod
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._outputs: dict[tuple[str, str], tuple[subprocess.Popen[bytes], Path]] = {}
        self._over = threading.Event()
        self._nodes: list[str] = []
        self._http = kubelet(self.output, certificate=certificate)

    def __enter__(self) -> "Kubelets":
        for line in (f"link add {POD_BRIDGE} type bridge", f"addr add {GATEWAY}/24 dev {POD_BRIDGE}"):
            subprocess.run(["ip", *line.split()], check=True)
        subprocess.run(["ip", "link", "set", POD_BRIDGE, "up"], check=True)
        for target in (self._http.serve_forever, self._watch):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for uid, thread in list(self._started.items()):
            while thread.is_alive():  # between two of its containers it starts one more
                self._kill(uid)
                thread.join(0.1)
        for name in self._nodes:
            self.api.delete(path("v1", "Node", name=name))
        self._http.shutdown()
        self._http.server_close()
        subprocess.run(["ip", "link", "del", POD_BRIDGE], check=True)

    def node(self, name: str, role: str) -> None:
        """Register a node that is ready."""
        labels = {
            "mlbench/role": role,
            "topology.kubernetes.io/zone": "zone-a",
            "node.kubernetes.io/instance-type": "n1-standard-4",
            "kubernetes.io/hostname": name,
        }
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self._nodes.append(name)
        self._beat(name)

    def lose(self, name: str) -> None:
        """Take a node away, as a cloud takes a spot node: its pods die with it, and nobody says goodbye."""
        self._nodes.remove(name)
        for pod in self.api.get(path("v1", "Pod"))["items"]:
            if pod["spec"].get("nodeName") == name:
                self._kill(pod["metadata"]["uid"])
        self.api.delete(path("v1", "Node", name=name))

    def _beat(self, name: str) -> None:
        have = {"cpu": "4", "memory": "15Gi", "pods": "110", "ephemeral-storage": "90Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
        status = {
            "allocatable": have,
            "capacity": have,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._http.server_port}},
        }
        self.api.patch(f"{path('v1', 'Node', name=name)}/status", {"status": status})

    def _watch(self) -> None:
        beat = 0.0
        while not self._over.wait(0.2):
            with suppress(ApiError):
                if time.monotonic() - beat > 10:
                    beat = time.monotonic()
                    for name in list(self._nodes):
                        self._beat(name)
                pods = self.api.get(path("v1", "Pod"))["items"]
                for pod in pods:
                    self._see(pod)
                for uid in self._processes.keys() - {pod["metadata"]["uid"] for pod in pods}:
                    self._kill(uid)

    def _see(self, pod: Any) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if node not in self._nodes:
            return
        if pod["metadata"].get("deletionTimestamp"):
            self._kill(uid)
            with suppress(ApiError):
                self.api._answer("delete", _place(pod), {"gracePeriodSeconds": 0})
        elif uid not in self._started:
            number = len(self._started) + 2  # the first address is the gateway's
            self._started[uid] = threading.Thread(target=self._run, args=(pod, number), daemon=True)
            self._started[uid].start()

    def _kill(self, uid: str) -> None:
        for process in self._processes.get(uid, ()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def _run(self, pod: Any, number: int) -> None:
        try:
            self._run_pod(pod, number)
        except ApiError as error:
            if error.status != 404:  # it was deleted
                self.problems.append(repr(error))
        except Exception as error:
            self.problems.append(f"{pod['metadata']['name']}: {error!r}")

    def _run_pod(self, pod: Any, number: int) -> None:
        """Run a pod from its first container to its last word, and say what becomes of it."""
        uid, address = pod["metadata"]["uid"], f"10.88.0.{number}"
        folder = self._folder / uid
        folder.mkdir()
        self._folder.joinpath("claims").mkdir(exist_ok=True)
        host = namespace.create(pod["metadata"]["name"])
        try:
            self._run_containers(pod, host, f"pod{number}", address)
        finally:  # the kernel removes a namespace when it comes to it, and its link's name with it
            subprocess.run(["ip", "link", "del", f"pod{number}"], stderr=subprocess.DEVNULL)
            host.close()

    def _run_containers(self, pod: Any, host: Any, link: str, address: str) -> None:
        for line in (
            f"ip link add {link} type veth peer name eth0 netns {host.path}",
            f"ip link set {link} master {POD_BRIDGE} up",
        ):
            subprocess.run(line.split(), check=True)
        route = f"route add default via {GATEWAY}"  # by which Ray learns its own address
        for line in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", route):
            subprocess.run(host.command(["ip", *line.split()]), check=True)
        times = {"startTime": _now(), "podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"}
        self._say(pod, "Pending", times)
        self._resolve(pod, address)
        for container in pod["spec"].get("initContainers", ()):
            process = self._start(pod, container, host, address)
            if process.wait() != 0:
                return self._say(pod, "Failed", times)
        container = pod["spec"]["containers"][0]
        process = self._start(pod, container, host, address)
        self._say(pod, "Running", times, {"running": {"startedAt": _now()}})
        probe, ready = container.get("readinessProbe"), False
        while process.poll() is None:
            if not ready and (probe is None or _answers(address, probe)):
                ready = True
                self._say(pod, "Running", times, {"running": {"startedAt": _now()}}, ready=True)
            time.sleep(0.2)
        code = process.returncode
        ended = {"terminated": {"exitCode": abs(code), "reason": "Completed" if code == 0 else "Error"}}
        self._say(pod, "Failed" if code else "Succeeded", times, ended)

    def _say(self, pod: Any, phase: str, times: Any, state: Any = None, *, ready: bool = False) -> None:
        if pod["spec"]["nodeName"] not in self._nodes:
            return  # it was lost
        truth = str(ready)
        kinds = {"Initialized": "True", "PodScheduled": "True", "ContainersReady": truth, "Ready": truth}
        conditions = [{"type": kind, "status": value} for kind, value in kinds.items()]
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": pod["spec"]["containers"][0]["image"],
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state or {"waiting": {"reason": "PodInitializing"}},
        }
        status = times | {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        self.api.patch(f"{_place(pod)}/status", {"status": status})

    def _resolve(self, pod: Any, address: str) -> None:
        """Let the names of the services that select the pod mean its address, as a cluster's DNS does."""
        labels, space = pod["metadata"]["labels"], pod["metadata"]["namespace"]
        names = [pod["metadata"]["name"]]
        for service in self.api.get(path("v1", "Service", space))["items"]:
            if service["spec"].get("selector", {"": ""}).items() <= labels.items():
                names.append(f"{service['metadata']['name']}.{space}.svc.cluster.local")
        with open(self._hosts, "a") as file:
            file.write(f"{address} {' '.join(names)}\n")

    def _start(self, pod: Any, container: Any, host: Any, address: str) -> "subprocess.Popen[bytes]":
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        mounts = []
        for mount in container.get("volumeMounts", ()):
            where, volume = mount["mountPath"].lstrip("/"), volumes[mount["name"]]
            mounts.append(f"mkdir -p {where}")
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                mounts.append(f"mount -t tmpfs -o mode=1777 tmpfs {where}")
            else:
                mounts.append(f"mount --bind {self._volume(pod, volume)} {where}")
        user = pod["spec"]["securityContext"]
        limits = f"setpriv --reuid={user['runAsUser']} --regid={user['runAsGroup']} --clear-groups"
        limits += " --no-new-privs --bounding-set=-all --inh-caps=-all"
        script = PREPARE.format(mounts="\n".join(mounts), hosts=self._hosts, limits=limits, root=ROOT)
        arguments = [*container.get("command", ()), *container.get("args", ())]
        assert arguments, f"{container['name']} runs what its image says"
        log = self._folder / pod["metadata"]["uid"] / f"{container['name']}.log"
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command += ["sh", "-c", script, "sh", *arguments]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                host.command(command),
                env=self._environment(pod, container, address),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.setdefault(pod["metadata"]["uid"], []).append(process)
        self._outputs[pod["metadata"]["name"], container["name"]] = process, log
        return process

    def _volume(self, pod: Any, volume: Any) -> Path:
        """Return the folder of a volume: of the pod's own, a ConfigMap's files, or what a claim keeps."""
        claim, files = volume.get("persistentVolumeClaim"), volume.get("configMap")
        if claim:
            folder = self._folder / "claims" / claim["claimName"]
        else:
            folder = self._folder / pod["metadata"]["uid"] / f"volume-{volume['name']}"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        if files:
            item = self.api.get(path("v1", "ConfigMap", pod["metadata"]["namespace"], files["name"]))
            for name, data in item["binaryData"].items():
                (folder / name).write_bytes(base64.b64decode(data))
        return folder

    def _environment(self, pod: Any, container: Any, address: str) -> dict[str, str]:
        folder = Path(sys.executable).parent
        variables = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom")
            if source is None:
                value = variable.get("value", "")
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                secret = self.api.get(path("v1", "Secret", pod["metadata"]["namespace"], reference["name"]))
                value = base64.b64decode(secret["data"][reference["key"]]).decode()
            elif "fieldRef" in source:
                field = source["fieldRef"]["fieldPath"]
                label = field.removeprefix("metadata.labels['").removesuffix("']")
                fields = {f"metadata.{name}": pod["metadata"][name] for name in ("name", "namespace", "uid")}
                fields |= {"status.podIP": address, "spec.nodeName": pod["spec"]["nodeName"]}
                value = fields.get(field) or pod["metadata"]["labels"][label]
            else:
                value = _resource(container, source["resourceFieldRef"])
            for name, before in variables.items():
                value = value.replace(f"$({name})", before)
            variables[variable["name"]] = value
        return variables

    def printed(self, pod: str) -> str:
        """Return what all containers of a pod have printed so far."""
        outputs = [file for (name, _), (_, file) in list(self._outputs.items()) if name == pod]
        return "\n".join(file.read_text(errors="replace") for file in outputs)

    def exit_code(self, pod: str, container: str) -> int:
        """Return how a container ended."""
        return self._outputs[pod, container][0].wait()

    def output(self, pod: str, container: str, follow: bool) -> Iterator[bytes]:
        """Yield what a container has printed, and to follow what it prints until it ends."""
        process, file = self._outputs[pod, container]
        with open(file, "rb") as log:
            while not self._over.is_set():
                over = process.poll() is not None
                if data := log.read():
                    yield data
                elif over or not follow:
                    return
                else:
                    time.sleep(0.1)


def _place(pod: Any) -> str:
    return path("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _resource(container: Any, reference: Any) -> str:
    kind, _, name = reference["resource"].partition(".")
    return f"{quantity(container['resources'][kind][name]):.0f}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _answers(address: str, probe: Any) -> bool:
    """Return whether a readiness probe finds the container ready."""
    http = probe["httpGet"]
    try:
        with urllib.request.urlopen(f"http://{address}:{http['port']}{http['path']}", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
