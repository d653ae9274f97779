"""A real API server in place of the fake one, and what a cluster does beside it, by a script.

Operator and kubelets follow the script; garbage is collected here where nothing else does.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fake_cluster import KINDS, Script, reference
from pod_logs import PodLogs, kubelet
from real_server import Server

from mlbench.wings.kuberay.api import ApiError, path

VERSIONS = {"rayjobs": "ray.io/v1", "rayclusters": "ray.io/v1", "networkpolicies": "networking.k8s.io/v1"}
OWNED = ("pods", "networkpolicies", "rayclusters")


class RealCluster(PodLogs):
    """What scripts do with a FakeCluster, on a real server, in a namespace of its own; a context manager."""

    def __init__(self, server: Server, script: Script | None = None) -> None:
        super().__init__()
        self.script = script
        self.namespace = f"mlbench-test-{secrets.token_hex(3)}"
        self.api = server.client()
        self.requests: list[str] = []
        self._server = server
        self._over = threading.Event()
        self._nodes: list[str] = []
        self._kubelet = kubelet(self._output, certificate=server.folder)

    def __enter__(self) -> "RealCluster":
        collect = self._end_pods if self._server.collects else self._collect
        for target in (self._kubelet.serve_forever, self._operate, collect):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for plural in ("rayjobs", *OWNED):
            for name in self.names(plural):
                self.remove(plural, name)
        self._over.set()
        for name in self._nodes:
            self.api.delete(path("v1", "Node", name=name))
        self.api.delete(path("v1", "Namespace", name=self.namespace))
        self._kubelet.shutdown()
        self._kubelet.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        return self._server.kubeconfig

    # What scripts do.

    def node(self, name: str, role: str, **allocatable: str) -> None:
        labels = {"mlbench/role": role, "topology.kubernetes.io/zone": "zone-a"}
        labels["node.kubernetes.io/instance-type"] = "n1-standard-4"
        endpoint = path("v1", "Node", name=name)
        if name not in self._nodes:
            self.api.create(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            )
            self._nodes.append(name)
        have = {"cpu": "4", "memory": "15Gi", "pods": "110"} | allocatable
        status = {
            "allocatable": have,
            "capacity": have,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.server_port}},
        }
        self.api.patch(f"{endpoint}/status", {"status": status})

    def pod(self, job: Any, role: str, number: int = 0, *, phase: str = "Running", **status: Any) -> str:
        """Create or change one of a run's pods, from the template that the run asks for; return its name."""
        spec, owner = job["spec"], job["metadata"]["name"]
        name = f"{owner}-{role}-{number}"
        if role == "submitter":
            template, labels = spec["submitterPodTemplate"], {"job-name": owner}
        else:
            groups = spec["rayClusterSpec"]
            group = groups["headGroupSpec"] if role == "head" else groups["workerGroupSpecs"][0]
            template, labels = group["template"], {"ray.io/node-type": role}
        if name not in self.names("pods"):
            metadata = {
                "name": name,
                "namespace": self.namespace,
                "labels": template["metadata"]["labels"] | labels,
                "ownerReferences": [reference(job)],
            }
            node = "head-0" if role == "submitter" else f"{role}-{number}"
            pod_spec = template["spec"] | ({} if phase == "Pending" else {"nodeName": node})
            self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec})
            self.open_log(name)
        first = template["spec"]["containers"][0]
        for container in status.get("containerStatuses", ()):
            container |= {"name": first["name"], "imageID": "", "ready": False, "restartCount": 0}
            container.setdefault("image", first["image"])
        values = {"phase": phase, **status}
        self.api.patch(f"{path('v1', 'Pod', self.namespace, name)}/status", {"status": values})
        return name

    def status(self, job: Any, deployment: str, **fields: Any) -> None:
        name = job["metadata"]["name"]
        values = {"jobDeploymentStatus": deployment, "rayClusterName": f"{name}-rc"} | fields
        with suppress(ApiError):  # it is gone
            self.api.patch(f"{path('ray.io/v1', 'RayJob', self.namespace, name)}/status", {"status": values})

    def names(self, plural: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.items(plural)]

    def item(self, plural: str, name: str) -> Any:
        return {item["metadata"]["name"]: item for item in self.items(plural)}[name]

    def items(self, plural: str) -> list[Any]:
        kind = KINDS.get(plural, plural.removesuffix("s").capitalize())
        namespace = None if plural == "namespaces" else self.namespace
        return self.api.get(path(VERSIONS.get(plural, "v1"), kind, namespace))["items"]

    def put(self, plural: str, item: dict[str, Any]) -> None:
        """Create an object, or change its status where it is there."""
        with suppress(ApiError):  # the namespace is there
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        version, name = VERSIONS.get(plural, "v1"), item["metadata"]["name"]
        endpoint = path(version, KINDS[plural], self.namespace, name)
        if name not in self.names(plural):
            metadata = item["metadata"] | {"namespace": self.namespace}
            spec = item.get("spec", {"hard": item.get("status", {}).get("hard", {})})
            values = {"apiVersion": version, "kind": KINDS[plural], "metadata": metadata, "spec": spec}
            self.api.create(values)
        if "status" in item:
            self.api.patch(f"{endpoint}/status", {"status": item["status"]})

    def remove(self, plural: str, name: str) -> bool:
        if plural == "nodes":
            self._nodes.remove(name)
            return self.api.delete(path("v1", "Node", name=name))
        kind = KINDS.get(plural, plural.removesuffix("s").capitalize())
        endpoint = path(VERSIONS.get(plural, "v1"), kind, self.namespace, name)
        return self._delete(endpoint)

    # What a cluster does beside its API server.

    def _delete(self, endpoint: str) -> bool:
        try:
            self.api._answer("delete", endpoint, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _operate(self) -> None:
        """Run the script for every new RayJob, as an operator begins to work on it."""
        seen: set[str] = set()
        for jobs in self.api.watch(path("ray.io/v1", "RayJob", self.namespace)):
            if self._over.is_set():
                return
            if isinstance(jobs, ApiError):
                continue
            for job in jobs.values():
                if job["metadata"]["uid"] not in seen and self.script is not None:
                    seen.add(job["metadata"]["uid"])
                    threading.Thread(target=self._follow, args=(job,), daemon=True).start()

    def _follow(self, job: Any) -> None:
        assert self.script is not None
        with suppress(KeyError, ApiError):  # the run was deleted
            self.script(self, job)  # type: ignore[arg-type]  (it does what a FakeCluster does)

    def _end_pods(self) -> None:
        """Let go of the pods that were deleted, as their kubelets do."""
        while not self._over.wait(0.1):
            with suppress(ApiError):
                for pod in self.items("pods"):
                    if pod["metadata"].get("deletionTimestamp"):
                        self.remove("pods", pod["metadata"]["name"])

    def _collect(self) -> None:
        """Delete what a deleted object owns, and then the object, as the garbage collector does."""
        while not self._over.wait(0.1):
            with suppress(ApiError):
                owned = [(plural, item) for plural in OWNED for item in self.items(plural)]
                jobs = self.items("rayjobs")
                for job in jobs:
                    if not job["metadata"].get("deletionTimestamp"):
                        continue
                    self._collect_of(job["metadata"]["uid"], owned)
                    endpoint = path("ray.io/v1", "RayJob", self.namespace, job["metadata"]["name"])
                    self.api.patch(endpoint, {"metadata": {"finalizers": None}})
                living = {job["metadata"]["uid"] for job in jobs}
                for _, item in owned:
                    for owner in item["metadata"].get("ownerReferences", ()):
                        if owner["uid"] not in living:
                            self._collect_of(owner["uid"], owned)

    def _collect_of(self, uid: str, owned: list[tuple[str, Any]]) -> None:
        for plural, item in owned:
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ())):
                self.remove(plural, item["metadata"]["name"])

    def gone(self, pod: str) -> bool:
        return self._over.is_set()

    def await_sent(self, name: str) -> None:
        time.sleep(0.5)  # s; a real server does not say whom it has told

    def _output(self, pod: str, _container: str, follow: bool) -> Iterator[bytes]:
        return (line.encode() for line in (self.follow(pod) if follow else self.printed(pod)))
