"""Call the Kubernetes API with plain values, by the official client's dynamic client.

The client (an extra, `pip install mlbench-suite[kubernetes]`) reads the kubeconfig, with all of its plugins
for credentials. The values stay dictionaries, because the client has no classes for KubeRay's objects.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from mlbench.config import libraries
from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.pods import Object

ANSWER_S = (5.0, 15.0)  # s to connect, and to wait for an answer
WATCH_S = 60  # s after which the server ends a watch, and another begins
PAUSE_S = (0.5, 10.0)  # s, the shortest and the longest pause after a failure


class ApiError(Exception):
    """A refusal of the API server: the HTTP status, 0 if it did not answer, and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 401, 408, 429) or self.status >= 500


class Kubernetes:
    """One cluster of the kubeconfig (`context` None: the current one), or the one around this pod."""

    def __init__(self, context: str | None) -> None:
        libraries.require("kubernetes", user="cluster=kuberay")
        from kubernetes import client, config, dynamic

        configuration: Any = client.Configuration()
        configuration.retries = False  # urllib3 would try three times in silence
        try:
            config.load_config(  # the client reads KUBECONFIG only once, when it is imported
                config_file=os.environ.get("KUBECONFIG"),
                context=context,
                client_configuration=configuration,
            )
        except Exception as error:  # ConfigException, and the errors of plugins for credentials
            where = f" with the context {context}" if context else ""
            raise ClusterError(
                f"no Kubernetes cluster can be reached{where}: {error}",
                hint="`kubectl config get-contexts` lists the contexts, cluster.context=NAME chooses one",
            ) from error
        # Without discovery, which requests every API group and caches the answers in a file of /tmp.
        self._client: Any = dynamic.DynamicClient(client.ApiClient(configuration), discoverer=lambda *_: None)

    def get(self, path: str, **query: Any) -> Object:
        """Return an object or a list."""
        return self._answer("get", path, query)

    def create(self, item: Object, *, dry_run: bool = False) -> Object:
        """Create an object. A field that the server does not recognize is an error."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        collection = path(item["apiVersion"], item["kind"], item["metadata"].get("namespace"))
        return self._answer("post", collection, query, body=item)

    def patch(self, path: str, changes: Object) -> Object:
        """Merge changes into an object."""
        return self._answer("patch", path, {}, body=changes, content_type="application/merge-patch+json")

    def delete(self, path: str) -> bool:
        """Delete an object with the objects that it owns. Return whether it existed."""
        try:
            self._answer("delete", path, {"propagationPolicy": "Foreground"})
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def lines(self, path: str, *, patience: float, **query: Any) -> Iterator[str]:
        """Yield the lines of an answer as they come. A pause may last `patience` s."""
        with _failures(), closing(self._client.request("get", path, **_raw(query, patience))) as response:
            rest = b""
            for chunk in response.stream(2**16):  # watch.Watch drops a last line without a line feed
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    def watch(self, path: str, **query: Any) -> Iterator[dict[str, Object] | ApiError]:
        """Yield the objects of a list by name, at first and after every change, without end.

        If the server does not answer, an ApiError is yielded and the list is fetched again. If the server no
        longer has the version from which to go on (410), the list is fetched again without an ApiError.
        Bookmarks keep that version recent while nothing happens. Raises ApiError if another request would
        fail as well.
        """
        from kubernetes.watch import Watch

        pause = PAUSE_S[0]
        items: dict[str, Object] | None = None
        version = ""
        while True:
            try:
                if items is None:
                    answer = self.get(path, **query)
                    items = {item["metadata"]["name"]: item for item in answer["items"]}
                    version = answer["metadata"]["resourceVersion"]
                    yield dict(items)
                since = query | {"resourceVersion": version, "allowWatchBookmarks": "true"}
                settings = _raw(since, WATCH_S + ANSWER_S[1]) | {"timeout_seconds": WATCH_S}
                stream: Any = Watch().stream(self._client.request, "get", path, **settings)
                with _failures(), closing(stream) as events:
                    for event in events:
                        if event is None:
                            raise ApiError(0, "an answer was cut off")
                        pause = PAUSE_S[0]
                        item = event["object"]
                        version = item["metadata"]["resourceVersion"]
                        if event["type"] == "BOOKMARK":
                            continue
                        items[item["metadata"]["name"]] = item
                        if event["type"] == "DELETED":
                            del items[item["metadata"]["name"]]
                        yield dict(items)
            except ApiError as failure:
                items = None
                if failure.status == 410:
                    continue
                if not failure.passing:
                    raise
                yield failure
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_S[1])

    def _answer(self, method: str, path: str, query: Object, **settings: Any) -> Object:
        settings |= _raw(query, ANSWER_S[1])
        with _failures(), closing(self._client.request(method, path, **settings)) as response:
            return json.loads(response.data)


def _raw(query: Object, patience: float) -> dict[str, Any]:
    """Return the client's settings for a streamed answer with pauses of at most `patience` s."""
    timeout = (ANSWER_S[0], patience)
    return {"query_params": list(query.items()), "_request_timeout": timeout, "serialize": False}


@contextmanager
def _failures() -> Iterator[None]:
    """Raise ApiError for the client's errors in a request."""
    import urllib3
    from kubernetes.client import ApiException

    try:
        yield
    except ApiException as error:
        try:  # the message of the server's Status object, else the HTTP reason
            message = json.loads(error.body or "")["message"]
        except (KeyError, TypeError, ValueError):
            message = str(error.reason or f"HTTP status {error.status}")
        raise ApiError(int(error.status or 0), message) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(0, f"the API server does not answer ({type(error).__name__})") from error
    except (KeyError, ValueError) as error:
        raise ApiError(0, "an answer was cut off") from error


def current_context() -> str | None:
    """Return the name of the kubeconfig's current context, or None without a kubeconfig, as in a pod."""
    from kubernetes import config

    try:
        _, current = config.list_kube_config_contexts(config_file=os.environ.get("KUBECONFIG"))
    except config.ConfigException:
        return None
    return current["name"]


def path(api_version: str, kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return the path of the objects of a kind, or of one of them."""
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = "networkpolicies" if kind == "NetworkPolicy" else f"{kind.lower()}s"
    return f"{root}{within}/{plural}" + (f"/{name}" if name else "")


def path_of(item: Object) -> str:
    """Return the path of an object."""
    metadata = item["metadata"]
    return path(item["apiVersion"], item["kind"], metadata.get("namespace"), metadata["name"])
