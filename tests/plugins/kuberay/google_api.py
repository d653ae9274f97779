"""A Google Cloud of a few resources over HTTP, for the real gcloud: networks, routers, disks, GKE clusters.

It keeps what is created, refuses what the real one refuses (names in use, networks with subnets, a cluster
that is still being created), and writes down every request that changes something.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

KINDS = ("networks", "subnetworks", "routers", "disks", "clusters", "nodePools")
# Series that refuse the disk type pd-standard (cloud.google.com/compute/docs/disks, "Machine series support";
# sky/clouds/gcp.py of skypilot-org/skypilot says so of a3 and g2)
NO_HARD_DISKS = ("a3-", "a4-", "g2-", "g4-")
USES = {"networks": ("subnetworks", "routers", "clusters"), "subnetworks": ("clusters",), "routers": ()}


class Google:
    """The server on loopback; `resources` by kind and name, `changes` as (method, path, body)."""

    def __init__(self) -> None:
        self.resources: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.changes: list[tuple[str, str, Any]] = []
        self.refused: tuple[str, str] | None = None  # a kind that cannot be created, and why
        self.busy = 0  # so many changes of a cluster are refused, as while it is being created or resized
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(size) or "null")
                path = unquote(urlsplit(self.path).path)
                if self.command != "GET" and not path.endswith("/wait"):
                    outer.changes.append((self.command, path, body))
                code, values = outer.reply(self.command, path, body)
                data = json.dumps(values).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def left(self) -> list[str]:
        """Return what exists, as kind/name."""
        return [f"{kind}/{name}" for kind, named in self.resources.items() for name in named]

    def environment(self, folder: str) -> dict[str, str]:
        """Return the variables that make gcloud talk to this server and keep its files in `folder`."""
        return {
            "CLOUDSDK_CONFIG": folder,
            "CLOUDSDK_AUTH_ACCESS_TOKEN": "none",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE": f"{self.url}/",
            "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "KUBECONFIG": f"{folder}/kubeconfig",
        }

    def reply(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if "/operations/" in path:
            return 200, self.operation(path)
        if "serverConfig" in path or "serverconfig" in path.lower():
            version = "1.34.1-gke.1"
            return 200, {"defaultClusterVersion": version, "validMasterVersions": [version]}
        match = re.search(rf"/({'|'.join(KINDS)})(?:/([^/?]+))?$", path)
        if match is None:
            return 404, error(404, "notFound", f"{method} {path} is not known")
        kind, name = match[1], match[2]
        named = self.resources[kind]
        if method == "GET" and name is None:
            return 200, self.listed(kind, path)
        if method == "POST" and name is None:
            return self.create(kind, path, body)
        if name not in named:
            return 404, error(404, "notFound", f"The resource '{path}' was not found")
        if method == "GET":
            return 200, named[name]
        if method == "DELETE":
            return self.delete(kind, name, path)
        named[name].update(body)  # PATCH: a router's NAT gateways
        return 200, self.operation(path)

    def create(self, kind: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        values = body.get("cluster") or body.get("nodePool") or body
        name = values["name"]
        if self.refused and kind == self.refused[0]:
            return 403, error(403, "quotaExceeded", self.refused[1])
        config = values.get("nodePools", [values])[0].get("config", {})
        machine, disk = config.get("machineType", ""), config.get("diskType")
        if disk == "pd-standard" and machine.startswith(NO_HARD_DISKS):
            return 400, error(
                400, "badRequest", f"{disk} disk type cannot be used by {machine} machine type."
            )
        if kind == "nodePools" and self.busy:
            return self.refuse_as_busy()
        if name in self.resources[kind]:
            return 409, error(409, "alreadyExists", f"{path}/{name} already exists")
        if "/regions/" in path:
            values["region"] = self.link(path.partition(f"/{kind}")[0])
        values["selfLink"] = self.link(f"{path}/{name}")
        if kind == "clusters":
            zone = path.split("/")[-2]
            values |= {
                "status": "RUNNING", "location": zone, "zone": zone, "endpoint": "127.0.0.1",
                "currentMasterVersion": "1.34.1-gke.1", "currentNodeVersion": "1.34.1-gke.1",
                "masterAuth": {"clusterCaCertificate": "Zm9v"},
            }  # fmt: skip
            network = values.setdefault("controlPlaneEndpointsConfig", {})
            dns = network.setdefault("dnsEndpointConfig", {})
            dns["endpoint"] = "gke-0123.us-central1-a.gke.invalid"
        self.resources[kind][name] = values
        return 200, self.operation(f"{path}/{name}", kind="insert")

    def refuse_as_busy(self) -> tuple[int, dict[str, Any]]:
        self.busy -= 1
        text = f"Cluster is running incompatible operation operation-{self.busy}."
        return 400, error(400, "failedPrecondition", text)

    def delete(self, kind: str, name: str, path: str) -> tuple[int, dict[str, Any]]:
        if kind == "clusters" and self.busy:
            return self.refuse_as_busy()
        users = [f"{user}/{other}" for user in USES.get(kind, ()) for other in self.resources[user]]
        if users:
            text = f"The {kind} resource '{path}' is already being used by '{users[0]}'"
            return 400, error(400, "resourceInUseByAnotherResource", text)
        del self.resources[kind][name]
        if kind == "clusters":
            self.resources["nodePools"].clear()
        return 200, self.operation(path, kind="delete")

    def listed(self, kind: str, path: str) -> dict[str, Any]:
        resources = list(self.resources[kind].values())
        if "/aggregated/" in path:
            places: dict[str, Any] = {}
            for resource in resources:
                scope = "/".join((resource.get("region") or resource.get("zone") or "global").split("/")[-2:])
                places.setdefault(scope, {kind: []})[kind].append(resource)
            return {"items": places}
        return {kind: resources} if kind in ("clusters", "nodePools") else {"items": resources}

    def operation(self, path: str, kind: str = "change") -> dict[str, Any]:
        match = re.search(r"/(zones|regions)/([^/]+)/", path)
        where = {match[1][:-1]: match[2]} if match else {}
        base = path.partition("/operations/")[0] if "/operations/" in path else path.rpartition("/")[0]
        base = re.sub(rf"/({'|'.join(KINDS)})(/.*)?$", "", base)
        return {
            "name": "operation-1",
            "status": "DONE",
            "operationType": kind,
            "targetLink": self.link(path),
            "selfLink": self.link(f"{base}/operations/operation-1"),
            **where,
        }

    def link(self, path: str) -> str:
        return f"{self.url}{path}"


def error(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "errors": [{"reason": reason, "message": message}]}}
