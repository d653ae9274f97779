"""An API server over real HTTP, and a scripted KubeRay operator behind it.

The server keeps objects by kind and name; checks a RayJob or RayCluster against its schema and CEL rules,
refuses fields that it does not know, and sets ValidationFailed where KubeRay's operator would; serves lists,
selectors, watches from a version, bookmarks, 410 for one that it has forgotten, merge patches, deletions with
what an object owns, and pod logs that are followed. `fail` lets the next requests fail. It has neither
controllers nor a scheduler: a script does what they would do.
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import kuberay_rules
import kuberay_schema
import yaml
from pod_logs import PodLogs, send_chunks

TOKEN = "a-token-of-the-tests"
KINDS = {
    "rayjobs": "RayJob",
    "rayclusters": "RayCluster",
    "networkpolicies": "NetworkPolicy",
    "resourcequotas": "ResourceQuota",
}
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/\w+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"(?:/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>log|status))?)?"
)
Script = Callable[["FakeCluster", dict[str, Any]], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of its default, 5, a busy machine drops the rest


class FakeCluster(PodLogs):
    """The server, as a context manager; `script(cluster, job)` runs in a thread for every new RayJob."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__()
        self.script = script
        self.namespace = "mlbench"
        self.requests: list[str] = []  # method and path of every one
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}  # by plural and name
        self.installed = True
        self._changed = threading.Condition()
        self._history: list[tuple[int, str, str, Any]] = []  # version, type, plural, object
        self._version = 100
        self._forgotten = 0
        self._faults: list[tuple[str, str, int]] = []  # method, regex, status; 0 cuts the connection
        self._held: list[tuple[str, Callable[[], bool]]] = []  # regex and what releases it
        self._sent: set[str] = set()  # names of the objects that a list or a watch has had
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._threads = [threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)]

    def __enter__(self) -> "FakeCluster":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, folder: Path) -> Path:
        """Write the file by which clients find and may use this server."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        values = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(values))
        return path

    # What scripts do.

    def fail(self, method: str, pattern: str, *statuses: int) -> None:
        """Let the next requests that match get these statuses; 0 is a connection that is cut."""
        self._faults += [(method, pattern, status) for status in statuses]

    def fault(self, method: str, path: str) -> int | None:
        """Take the fault that a request gets."""
        with self._changed:
            for number, (verb, pattern, _) in enumerate(self._faults):
                if verb == method and re.search(pattern, path):
                    return self._faults.pop(number)[2]
        return None

    def hold(self, pattern: str, until: Callable[[], bool]) -> None:
        """Let what is asked for by GET and matches stand still until the condition holds, streams as well."""
        self._held.append((pattern, until))

    def pass_on(self, path: str) -> None:
        """Wait until nothing holds an answer."""
        while any(re.search(pattern, path) and not until() for pattern, until in self._held):
            time.sleep(0.01)

    def await_sent(self, name: str) -> None:
        """Wait until somebody was told of an object."""
        while name not in self._sent:
            time.sleep(0.01)

    def forget(self) -> None:
        """Forget all versions: every watch that goes on or begins anew gets a 410."""
        with self._changed:
            self._version += 1
            self._forgotten = self._version
            self._changed.notify_all()

    def node(self, name: str, role: str, **allocatable: str) -> None:
        labels = {"mlbench/role": role, "topology.kubernetes.io/zone": "zone-a"}
        labels["node.kubernetes.io/instance-type"] = "n1-standard-4"
        have = {"cpu": "4", "memory": "15Gi", "pods": "110", "ephemeral-storage": "90Gi"} | allocatable
        metadata = {"name": name, "labels": labels}
        status = {"allocatable": have, "nodeInfo": {"kubeletVersion": "v1.34.1"}}
        self.put("nodes", {"kind": "Node", "metadata": metadata, "status": status})

    def pod(self, job: Any, role: str, number: int = 0, *, phase: str = "Running", **status: Any) -> str:
        """Create or replace one of a run's pods as the operator names and labels them; return its name."""
        owner = job["metadata"]["name"]
        group = job["metadata"]["labels"]["mlbench/run"]
        name = f"{owner}-{role}-{number}"
        labels = {"mlbench/run": group, "mlbench/role": "worker" if role == "worker" else "system"}
        if role == "submitter":
            labels["job-name"] = owner
            container = {"name": "ray-job-submitter"}
        else:
            labels["ray.io/node-type"] = role
            limits = {"memory": "11Gi"}
            container = {"name": f"ray-{role}", "resources": {"limits": limits}}
        owners = [reference(job)]
        metadata = {"name": name, "namespace": self.namespace, "labels": labels, "ownerReferences": owners}
        spec = {"containers": [container]} | ({"nodeName": f"{role}-{number}"} if phase != "Pending" else {})
        item = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}
        self.put("pods", item)
        self.open_log(name)
        return name

    def status(self, job: Any, deployment: str, **fields: Any) -> None:
        """Set the status of a RayJob, as the operator does, if it is still there."""
        with self._changed:
            current = self.objects.get(("rayjobs", job["metadata"]["name"]))
            if current is not None:
                values = {
                    "jobDeploymentStatus": deployment,
                    "rayClusterName": f"{job['metadata']['name']}-rc",
                }
                self.put("rayjobs", current | {"status": values | fields})

    def item(self, plural: str, name: str) -> dict[str, Any]:
        return self.objects[plural, name]

    def names(self, plural: str) -> list[str]:
        return [name for kind, name in list(self.objects) if kind == plural]

    # What the server does.

    def put(self, plural: str, item: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            metadata = item["metadata"]
            key = (plural, metadata["name"])
            kind = "MODIFIED" if key in self.objects else "ADDED"
            self._version += 1
            defaults = {"uid": str(uuid.uuid4()), "creationTimestamp": datetime.now(UTC).isoformat()}
            defaults |= {
                name: self.objects[key]["metadata"][name] for name in defaults if key in self.objects
            }
            metadata = defaults | metadata | {"resourceVersion": str(self._version)}
            stored = json.loads(json.dumps(item | {"metadata": metadata}))
            self.objects[key] = stored
            self._history.append((self._version, kind, plural, stored))
            self._changed.notify_all()
            return stored

    def remove(self, plural: str, name: str) -> bool:
        """Delete an object and what it owns; return whether it was there."""
        with self._changed:
            item = self.objects.pop((plural, name), None)
            if item is None:
                return False
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, "DELETED", plural, item))
            self._changed.notify_all()
            for kind, other in list(self.objects):
                owners = self.objects[kind, other]["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                    self.remove(kind, other)
            return True

    def create(self, plural: str, item: dict[str, Any], *, dry_run: bool) -> tuple[int, dict[str, Any]]:
        if (plural, item["metadata"]["name"]) in self.objects:
            return 409, _failure(409, f"{plural} {item['metadata']['name']!r} already exists")
        if item["kind"] in kuberay_schema.KINDS:
            schema = kuberay_schema.definition(item["kind"])
            faults = [
                *kuberay_schema.structural_faults(item, schema),
                *kuberay_schema.cel_faults(item, schema),
            ]
            if faults:
                return 422, _failure(422, "; ".join(faults))
        if dry_run:
            return 201, item
        stored = self.put(plural, item)
        owners = {owner["uid"] for owner in item["metadata"].get("ownerReferences", ())}
        if owners - {other["metadata"]["uid"] for other in self.objects.values()}:
            self.remove(plural, item["metadata"]["name"])  # as the garbage collector does
        if plural == "rayjobs":
            threading.Thread(target=self._operate, args=(stored,), daemon=True).start()
        return 201, stored

    def _operate(self, job: dict[str, Any]) -> None:
        faults = "; ".join(kuberay_rules.faults(job))
        if faults:
            self.status(job, "ValidationFailed", reason="ValidationFailed", message=faults)
        elif self.script is not None:
            with suppress(KeyError):  # the run was deleted
                self.script(self, job)

    def listed(self, plural: str, query: dict[str, str]) -> dict[str, Any]:
        with self._changed:
            items = [
                item for (kind, _), item in self.objects.items() if kind == plural and _selects(query, item)
            ]
            self._sent |= {item["metadata"]["name"] for item in items}
            return {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items}

    def watched(self, plural: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        since = int(query.get("resourceVersion", "0"))
        end = time.monotonic() + float(query.get("timeoutSeconds", "60"))
        while time.monotonic() < end:
            with self._changed:
                if since < self._forgotten:
                    yield {"type": "ERROR", "object": _failure(410, "too old resource version")}
                    return
                news = [entry for entry in self._history if entry[0] > since]
                if not news:
                    self._changed.wait(0.2)
            for version, kind, changed, item in news:
                since = version
                if changed == plural and _selects(query, item):
                    yield {"type": kind, "object": item}
                    self._sent.add(item["metadata"]["name"])
        if "allowWatchBookmarks" in query:
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}}

    def gone(self, pod: str) -> bool:
        return ("pods", pod) not in self.objects


def _handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            if self._refused():
                return
            cluster.pass_on(self.path)
            if self.place["sub"] == "log" and cluster.gone(self.place["name"]):
                self._answer(404, _failure(404, "not found"))
            elif self.place["sub"] == "log":
                pod, follow = self.place["name"], self.query.get("follow") == "true"
                self._stream(cluster.follow(pod) if follow else iter(cluster.printed(pod)))
            elif self.place["plural"] is None:
                available = cluster.installed or self.place["group"] != "ray.io"
                self._answer(200 if available else 404, {} if available else _failure(404, "not found"))
            elif self.place["name"]:
                item = cluster.objects.get((self.place["plural"], self.place["name"]))
                self._answer(200 if item else 404, item or _failure(404, "not found"))
            elif self.query.get("watch") in ("true", "True"):  # as the API server reads it
                events = cluster.watched(self.place["plural"], self.query)
                self._stream(json.dumps(event) + "\n" for event in events)
            else:
                self._answer(200, cluster.listed(self.place["plural"], self.query))

        def do_POST(self) -> None:
            item = self._body()
            if self._refused():
                return
            space = self.place["namespace"]
            if self.place["plural"] == "rayjobs" and ("namespaces", space) not in cluster.objects:
                self._answer(404, _failure(404, f'namespaces "{space}" not found'))
            else:
                dry_run = self.query.get("dryRun") == "All"
                self._answer(*cluster.create(self.place["plural"], item, dry_run=dry_run))

        def do_PATCH(self) -> None:
            changes = self._body()
            if self._refused():
                return
            with cluster._changed:
                item = cluster.objects.get((self.place["plural"], self.place["name"]))
                merged = item and cluster.put(self.place["plural"], _merged(item, changes))
            self._answer(200 if merged else 404, merged or _failure(404, "not found"))

        def do_DELETE(self) -> None:
            self._body()
            if not self._refused():
                there = cluster.remove(self.place["plural"], self.place["name"])
                self._answer(200 if there else 404, _failure(200 if there else 404, "not found"))

        def _refused(self) -> bool:
            parts = urlsplit(self.path)
            self.query = dict(parse_qsl(parts.query))
            match = PATH.fullmatch(parts.path)
            cluster.requests.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self._answer(401, _failure(401, "Unauthorized"))
                return True
            status = cluster.fault(self.command, self.path)
            if status == 0:
                self.close_connection = True
                self.connection.close()
            elif status is not None:
                self._answer(status, _failure(status, "a fault of the tests"))
            elif match is None:
                self._answer(404, _failure(404, "not found"))
            else:
                self.place = match.groupdict()
                if self.place["namespace"] and self.place["plural"] is None:
                    self.place |= {"plural": "namespaces", "name": self.place["namespace"]}
                return False
            return True

        def _body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

        def _answer(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, lines: Iterator[str]) -> None:
            send_chunks(self, self._cut(lines))

        def _cut(self, lines: Iterator[str]) -> Iterator[bytes]:
            """Yield the lines until the next fault of a stream, which cuts the connection."""
            for line in lines:
                cluster.pass_on(self.path)
                yield line.encode()
                if cluster.fault("STREAM", self.path) is not None:
                    self.close_connection = True
                    self.connection.close()
                    raise ConnectionError

    return Handler


def _selects(query: dict[str, str], item: dict[str, Any]) -> bool:
    metadata = item["metadata"]
    labels = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
    field = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return labels.items() <= metadata.get("labels", {}).items() and field in ("", metadata["name"])


def _merged(item: Any, changes: Any) -> Any:
    """Return a JSON merge patch applied (RFC 7396)."""
    if not isinstance(item, dict) or not isinstance(changes, dict):
        return changes
    merged = {name: _merged(item.get(name), value) for name, value in changes.items() if value is not None}
    return {name: value for name, value in item.items() if name not in changes} | merged


def reference(job: Any) -> dict[str, Any]:
    """Return how an object names the RayJob that owns it, and whose deletion waits for the object's."""
    own = {"apiVersion": "ray.io/v1", "kind": "RayJob", "blockOwnerDeletion": True}
    return own | {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}


def _failure(status: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "code": status, "reason": "Failure", "message": message}
