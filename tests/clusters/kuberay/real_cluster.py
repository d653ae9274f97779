"""A real API server in place of the fake one.

KUBEBUILDER_ASSETS names a folder with the binaries etcd and kube-apiserver, which are started; or else
MLBENCH_TEST_KUBECONFIG names the kubeconfig of a server without nodes of its own. What such a server lacks is
played here: the operator and the kubelets by a script, the garbage collector by a thread.
"""

import os
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from fake_cluster import KINDS, TOKEN, Script, reference

from mlbench.clusters.kuberay import schema
from mlbench.clusters.kuberay.api import ApiError, Kubernetes, path
from mlbench.experiment import stream

ASSETS, KUBECONFIG = "KUBEBUILDER_ASSETS", "MLBENCH_TEST_KUBECONFIG"
START_S = 120.0  # s that etcd and the API server may take to start
VERSIONS = {"rayjobs": "ray.io/v1", "rayclusters": "ray.io/v1", "networkpolicies": "networking.k8s.io/v1"}
OWNED = ("pods", "networkpolicies", "rayclusters")


def named() -> bool:
    """Return whether the environment names a real API server."""
    return any(os.environ.get(name) for name in (ASSETS, KUBECONFIG))


@contextmanager
def server(folder: Path) -> Iterator[Path]:
    """Yield the kubeconfig of the server; one that is started here ends with the block."""
    if not os.environ.get(ASSETS):
        yield Path(os.environ[KUBECONFIG])
        return
    assets = Path(os.environ[ASSETS])
    client, peer, secure = (free_port() for _ in range(3))
    key, tokens, kubeconfig = folder / "accounts.key", folder / "tokens.csv", folder / "kubeconfig"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{TOKEN},admin,1,system:masters\n")
    etcd = f"http://127.0.0.1:{client}"
    cluster = {"server": f"https://127.0.0.1:{secure}", "insecure-skip-tls-verify": True}
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "me"}}],
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    kubeconfig.write_text(yaml.safe_dump(values))
    commands = [
        [
            *(assets / "etcd", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ],
        [
            *(assets / "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={folder}"),
            *("--bind-address=127.0.0.1", f"--secure-port={secure}", "--authorization-mode=RBAC"),
            *(f"--token-auth-file={tokens}", "--service-account-issuer=https://localhost"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount"),
        ],
    ]
    with open(folder / "servers.log", "w") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
        try:
            _await(kubeconfig, processes)
            yield kubeconfig
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _await(kubeconfig: Path, processes: "list[subprocess.Popen[bytes]]") -> None:
    """Wait until the server answers."""
    api, end = client(kubeconfig), time.monotonic() + START_S
    while True:
        try:
            api.get("/readyz/ping")
        except (ApiError, OSError) as error:
            if any(process.poll() is not None for process in processes) or time.monotonic() > end:
                raise AssertionError(f"the API server did not start: {error}") from error
            time.sleep(0.2)
        else:
            break


def install(api: Kubernetes) -> None:
    """Create KubeRay's custom resource definitions where they lack, and wait until they are served."""
    for kind in schema.KINDS:
        plural = f"{kind.lower()}s"
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema.definition(kind)},
            "subresources": {"status": {}},
        }
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        spec = {"group": "ray.io", "scope": "Namespaced", "names": names, "versions": [version]}
        item = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.ray.io"},
            "spec": spec,
        }
        with suppress(ApiError):  # it is there
            api.create(item)
        end = time.monotonic() + START_S
        while True:
            try:
                api.get(path("ray.io/v1", kind, "default"))
                break
            except ApiError:
                assert time.monotonic() < end, f"{kind} is not served"
                time.sleep(0.1)


def certify(folder: Path) -> None:
    """Make the certificate of the kubelets that are played here."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=kubelet"]
    words += ["-keyout", str(folder / "kubelet.key"), "-out", str(folder / "kubelet.crt")]
    subprocess.run(words, check=True, capture_output=True)


def client(kubeconfig: Path) -> Kubernetes:
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(kubeconfig)
    try:
        return Kubernetes(None)
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class RealCluster:
    """What scripts do with a FakeCluster, on a real server, in a namespace of its own; a context manager."""

    def __init__(self, kubeconfig: Path, certificates: Path, script: Script | None = None) -> None:
        self.script = script
        self.namespace = f"mlbench-test-{secrets.token_hex(3)}"
        self.api = client(kubeconfig)
        self.requests: list[str] = []
        self._kubeconfig = kubeconfig
        self._logs: dict[str, list[str]] = {}
        self._closed: set[str] = set()
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._nodes: list[str] = []
        self._kubelet = ThreadingHTTPServer(("127.0.0.1", 0), _kubelet(self))
        self._kubelet.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "kubelet.crt", certificates / "kubelet.key")
        self._kubelet.socket = context.wrap_socket(self._kubelet.socket, server_side=True)

    def __enter__(self) -> "RealCluster":
        for target in (self._kubelet.serve_forever, self._operate, self._collect):
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
        return self._kubeconfig

    # What scripts do.

    def node(self, name: str, role: str, **allocatable: str) -> None:
        labels = {"mlbench/role": role, "topology.kubernetes.io/zone": "zone-a"}
        labels["node.kubernetes.io/instance-type"] = "n1-standard-4"
        place = path("v1", "Node", name=name)
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
        self.api.patch(f"{place}/status", {"status": status})

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
            place = {} if phase == "Pending" else {"nodeName": node}
            self.api.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] | place}
            )
            self._logs.setdefault(name, [])
        first = template["spec"]["containers"][0]
        for one in status.get("containerStatuses", ()):
            one |= {"name": first["name"], "imageID": "", "ready": False, "restartCount": 0}
            one.setdefault("image", first["image"])
        values = {"phase": phase, **status}
        self.api.patch(f"{path('v1', 'Pod', self.namespace, name)}/status", {"status": values})
        return name

    def status(self, job: Any, deployment: str, **fields: Any) -> None:
        name = job["metadata"]["name"]
        values = {"jobDeploymentStatus": deployment, "rayClusterName": f"{name}-rc"} | fields
        with suppress(ApiError):  # it is gone
            self.api.patch(f"{path('ray.io/v1', 'RayJob', self.namespace, name)}/status", {"status": values})

    def print(self, pod: str, *lines: str) -> None:
        with self._changed:
            self._logs[pod] += [line + "\n" for line in lines]
            self._changed.notify_all()

    def say(self, pod: str, *messages: dict[str, Any]) -> None:
        self.print(pod, *(stream.encode(message).rstrip("\n") for message in messages))

    def close_log(self, pod: str) -> None:
        with self._changed:
            self._closed.add(pod)
            self._changed.notify_all()

    def names(self, plural: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.items(plural)]

    def item(self, plural: str, name: str) -> Any:
        return next(item for item in self.items(plural) if item["metadata"]["name"] == name)

    def items(self, plural: str) -> list[Any]:
        kind = KINDS.get(plural, plural.removesuffix("s").capitalize())
        namespace = None if plural == "namespaces" else self.namespace
        return self.api.get(path(VERSIONS.get(plural, "v1"), kind, namespace))["items"]

    def put(self, plural: str, item: dict[str, Any]) -> None:
        """Create an object, or change its status where it is there."""
        version, name = VERSIONS.get(plural, "v1"), item["metadata"]["name"]
        place = path(version, KINDS[plural], self.namespace, name)
        if name not in self.names(plural):
            metadata = item["metadata"] | {"namespace": self.namespace}
            spec = item.get("spec", {"hard": item.get("status", {}).get("hard", {})})
            values = {"apiVersion": version, "kind": KINDS[plural], "metadata": metadata, "spec": spec}
            self.api.create(values)
        if "status" in item:
            self.api.patch(f"{place}/status", {"status": item["status"]})

    def remove(self, plural: str, name: str) -> bool:
        if plural == "nodes":
            self._nodes.remove(name)
            return self.api.delete(path("v1", "Node", name=name))
        kind = KINDS.get(plural, plural.removesuffix("s").capitalize())
        place = path(VERSIONS.get(plural, "v1"), kind, self.namespace, name)
        return self._delete(place)

    # What a cluster does beside its API server.

    def _delete(self, place: str) -> bool:
        try:
            self.api._answer("DELETE", place, {"gracePeriodSeconds": 0})
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
                    place = path("ray.io/v1", "RayJob", self.namespace, job["metadata"]["name"])
                    self.api.patch(place, {"metadata": {"finalizers": None}})
                living = {job["metadata"]["uid"] for job in jobs}
                for _, item in owned:
                    for owner in item["metadata"].get("ownerReferences", ()):
                        if owner["uid"] not in living:
                            self._collect_of(owner["uid"], owned)

    def _collect_of(self, uid: str, owned: list[tuple[str, Any]]) -> None:
        for plural, item in owned:
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ())):
                self.remove(plural, item["metadata"]["name"])

    def followed(self, pod: str) -> Iterator[str]:
        sent = 0
        while not self._over.is_set():
            with self._changed:
                lines, over = self._logs.get(pod, [])[sent:], pod in self._closed
                if not lines and not over:
                    self._changed.wait(0.2)
            yield from lines
            sent += len(lines)
            if over and not lines:
                return


def _kubelet(cluster: RealCluster) -> type[BaseHTTPRequestHandler]:
    """Return the part of a kubelet that an API server asks for logs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            pod = self.path.partition("?")[0].split("/")[3]  # /containerLogs/NAMESPACE/POD/CONTAINER
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                for line in cluster.followed(pod):
                    data = line.encode()
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

    return Handler
