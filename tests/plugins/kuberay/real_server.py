"""A real API server for tests.

KUBEBUILDER_ASSETS names a folder with the binaries etcd and kube-apiserver (the archive of envtest, of
controller-runtime, has them), which are started on loopback; or else MLBENCH_TEST_KUBECONFIG names the
kubeconfig of a server without nodes of its own. Where the folder has kube-controller-manager too, garbage is
collected by it; kube-scheduler and kuberay-operator are started for the tests that need them.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kuberay_schema
import yaml
from fake_cluster import TOKEN

from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path
from mlbench.plugins.kuberay.pods import Object

ASSETS, KUBECONFIG = "KUBEBUILDER_ASSETS", "MLBENCH_TEST_KUBECONFIG"
CONTROLLERS, OPERATOR = "kube-controller-manager", "kuberay-operator"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}  # a schema
START_S = 120.0  # s that one of the servers may take to start


@dataclass(frozen=True)
class Server:
    """An API server with KubeRay's definitions; `folder` has server.crt and server.key."""

    kubeconfig: Path  # an administrator's
    folder: Path

    def client(self) -> Kubernetes:
        """Return a client with the rights of an administrator."""
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        try:
            return Kubernetes(None)
        finally:
            if before is None:
                del os.environ["KUBECONFIG"]
            else:
                os.environ["KUBECONFIG"] = before

    def account(self, namespace: str, role: str) -> Path:
        """Return the kubeconfig of a new service account that has one Role of the namespace, nothing else."""
        api, name, group = self.client(), f"only-{role}", "rbac.authorization.k8s.io"
        metadata = {"name": name, "namespace": namespace}
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        api.create(binding)
        endpoint = f"{path('v1', 'ServiceAccount', namespace, name)}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = api._answer("post", endpoint, {}, body=request)["status"]["token"]
        values = yaml.safe_load(self.kubeconfig.read_text())
        current = values["current-context"]
        user = next(context["context"] for context in values["contexts"] if context["name"] == current)
        user["user"] = name
        values["users"] = [{"name": name, "user": {"token": token}}]
        kubeconfig = self.folder / f"{namespace}-{name}"
        kubeconfig.write_text(yaml.safe_dump(values))
        return kubeconfig


def named() -> bool:
    """Return whether the environment names a real API server."""
    return any(os.environ.get(name) for name in (ASSETS, KUBECONFIG))


def missing(*binaries: str) -> list[str]:
    """Return which of the binaries are not in the folder of KUBEBUILDER_ASSETS."""
    folder = Path(os.environ.get(ASSETS) or "/nonexistent")
    return [name for name in binaries if not (folder / name).exists()]


@contextmanager
def server(folder: Path, *others: str) -> Iterator[Server]:
    """Yield a server with KubeRay's definitions and a collector of garbage, where there is one.

    `others` are more binaries of KUBEBUILDER_ASSETS to start. What is started here ends with the block.
    """
    certify(folder)
    if not os.environ.get(ASSETS):
        server = Server(Path(os.environ[KUBECONFIG]), folder)
        install(server.client())
        yield server
        return
    ports = [free_port() for _ in range(3)]
    server = Server(write_kubeconfig(folder, ports[2]), folder)
    with open(folder / "servers.log", "w") as log:
        processes: list[subprocess.Popen[bytes]] = []

        def start(command: list[str]) -> None:
            command = ["setpriv", "--pdeathsig", "KILL", f"{os.environ[ASSETS]}/{command[0]}", *command[1:]]
            environment = os.environ | {"KUBECONFIG": str(server.kubeconfig)}
            processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

        try:
            for command in control_plane(server, ports):
                start(command)
            _await(server.client(), processes)
            install(server.client())
            if OPERATOR in others:
                define(server.client(), "RayService", ANYTHING)  # whose absence ends it
            for name in (*([] if missing(CONTROLLERS) else [CONTROLLERS]), *others):
                start([name, *CLIENTS[name](server, free_port())])
            yield server
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def control_plane(server: Server, ports: list[int]) -> list[list[str]]:
    """Return the commands of etcd and the API server."""
    client, peer, secure = ports
    etcd = f"http://127.0.0.1:{client}"
    key, tokens = server.folder / "accounts.key", server.folder / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{TOKEN},admin,1,system:masters\n")
    return [
        [
            *("etcd", f"--data-dir={server.folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ],
        [
            *("kube-apiserver", f"--etcd-servers={etcd}"),
            *(
                f"--tls-cert-file={server.folder / 'server.crt'}",
                f"--tls-private-key-file={server.folder / 'server.key'}",
            ),
            *("--bind-address=127.0.0.1", f"--secure-port={secure}", "--authorization-mode=RBAC"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),  # without a route, too
            *(f"--token-auth-file={tokens}", "--service-account-issuer=https://localhost"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            "--service-cluster-ip-range=10.0.0.0/24",
        ],
    ]


def _of_controllers(server: Server, port: int) -> list[str]:
    key = f"--service-account-private-key-file={server.folder / 'accounts.key'}"
    return [f"--kubeconfig={server.kubeconfig}", f"--secure-port={port}", "--bind-address=127.0.0.1", key]


def _of_scheduler(server: Server, port: int) -> list[str]:
    return [f"--kubeconfig={server.kubeconfig}", f"--secure-port={port}", "--bind-address=127.0.0.1"]


def _of_operator(server: Server, port: int) -> list[str]:
    addresses = ["--metrics-addr=127.0.0.1:0", f"--health-probe-bind-address=127.0.0.1:{port}"]
    return [*addresses, "--enable-leader-election=false", "--use-kubernetes-proxy"]


CLIENTS = {CONTROLLERS: _of_controllers, "kube-scheduler": _of_scheduler, OPERATOR: _of_operator}


def write_kubeconfig(folder: Path, port: int) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "server.crt")}
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": "me"}}],
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
    }
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(values))
    return kubeconfig


def _await(api: Kubernetes, processes: "list[subprocess.Popen[bytes]]") -> None:
    """Wait until the server is ready."""
    end = time.monotonic() + START_S
    while True:
        try:
            next(api.lines("/readyz", patience=15.0))  # s
            return
        except (ApiError, OSError) as error:
            if any(process.poll() is not None for process in processes) or time.monotonic() > end:
                raise AssertionError(f"the API server did not start: {error}") from error
            time.sleep(0.2)


def install(api: Kubernetes) -> None:
    """Create KubeRay's custom resource definitions where they lack, and wait until they are served."""
    for kind in kuberay_schema.KINDS:
        define(api, kind, kuberay_schema.definition(kind))


def define(api: Kubernetes, kind: str, definition: Object) -> None:
    plural = f"{kind.lower()}s"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": definition},
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
    try:
        api.create(item)
    except ApiError as error:
        assert error.status == 409, error  # it is there
    end = time.monotonic() + START_S
    while True:
        try:
            api.get(path("ray.io/v1", kind, "default"))
            break
        except ApiError:
            assert time.monotonic() < end, f"{kind} is not served"
            time.sleep(0.1)


def certify(folder: Path) -> None:
    """Make the certificate of the API server and of the kubelets that are played here."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt")]
    subprocess.run(command, check=True, capture_output=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
