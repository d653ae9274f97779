"""The Kubernetes API over HTTP: plain values in and out, with the credentials of the official client.

The client (an extra, `pip install mlbench-suite[kubernetes]`) reads the kubeconfig, with all of its plug-ins
for credentials; the values stay dictionaries, because KubeRay's objects have no classes in it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlbench.clusters.kuberay.pods import Object
from mlbench.config.errors import UserError

ANSWER_S = (5.0, 15.0)  # s to connect, and to wait for an answer
WATCH_S = 60  # s after which the server ends a watch, and another begins
PAUSE_S = (0.5, 10.0)  # s, the shortest and the longest pause after a failure
PLURALS = {"NetworkPolicy": "networkpolicies", "ResourceQuota": "resourcequotas"}  # else the kind and an s


class ApiError(Exception):
    """What the API server refused: the HTTP status, 0 where it did not answer, and its own words."""

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
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise UserError(
                "cluster=kuberay needs the Kubernetes client",
                hint="pip install 'mlbench-suite[kubernetes]'",
            ) from error
        configuration = client.Configuration()
        try:
            config.load_config(  # the client reads KUBECONFIG only once, when it is imported
                config_file=os.environ.get("KUBECONFIG"),
                context=context,
                client_configuration=configuration,
            )
        except Exception as error:  # ConfigException, and whatever a plug-in for credentials raises
            where = f" with the context {context}" if context else ""
            raise UserError(
                f"no Kubernetes cluster can be reached{where}: {error}",
                hint="`kubectl config get-contexts` lists what there is; cluster.context=NAME takes one",
            ) from error
        self._client: Any = client.ApiClient(configuration)
        # urllib3 would try three times in silence.
        self._client.rest_client.pool_manager.connection_pool_kw["retries"] = False

    def get(self, path: str, **query: Any) -> Object:
        """Return an object or a list."""
        return self._answer("GET", path, query)

    def create(self, item: Object, *, dry_run: bool = False) -> Object:
        """Create an object; a field that the server does not know is an error."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        metadata = item["metadata"]
        return self._answer(
            "POST", path(item["apiVersion"], item["kind"], metadata.get("namespace")), query, item
        )

    def patch(self, path: str, changes: Object) -> Object:
        """Merge changes into an object."""
        return self._answer("PATCH", path, {}, changes, content="application/merge-patch+json")

    def delete(self, path: str) -> bool:
        """Delete an object with what it owns; return whether it was there."""
        try:
            self._answer("DELETE", path, {"propagationPolicy": "Foreground"})
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def lines(self, path: str, *, patience: float, **query: Any) -> Iterator[str]:
        """Yield the lines of an answer as they come; `patience` is how long none may come, in s."""
        with self._request("GET", path, query, timeout=(ANSWER_S[0], patience)) as response:
            rest = b""
            for chunk in response.stream(2**16):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    def watch(self, path: str, **query: Any) -> Iterator[dict[str, Object] | ApiError]:
        """Yield the objects of a list by name, at first and after every change; for ever.

        Where the server does not answer, an ApiError is yielded and the list is asked for again; likewise,
        without a word, where the server has forgotten the version from which to go on (410). Bookmarks keep
        that version young where nothing happens. Raises ApiError for what asking again does not mend.
        """
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
                since = {"watch": "true", "resourceVersion": version, "timeoutSeconds": WATCH_S}
                since["allowWatchBookmarks"] = "true"
                for line in self.lines(path, patience=WATCH_S + ANSWER_S[1], **since, **query):
                    event = json.loads(line)
                    pause = PAUSE_S[0]
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    item = event["object"]
                    version = item["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        items.pop(item["metadata"]["name"], None)
                    elif event["type"] != "BOOKMARK":
                        items[item["metadata"]["name"]] = item
                    if event["type"] != "BOOKMARK":
                        yield dict(items)
            except (ApiError, ValueError) as error:
                failure = error if isinstance(error, ApiError) else ApiError(0, "an answer was cut off")
                items = None
                if failure.status == 410:
                    continue
                if not failure.passing:
                    raise failure from error
                yield failure
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_S[1])

    def _answer(
        self, method: str, path: str, query: Object, body: Any = None, content: str = "application/json"
    ) -> Object:
        with self._request(method, path, query, body, content) as response:
            try:
                return json.loads(response.read())
            except ValueError as error:
                raise ApiError(0, "an answer was cut off") from error

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        query: Object,
        body: Any = None,
        content: str = "application/json",
        timeout: tuple[float, float] = ANSWER_S,
    ) -> Iterator[Any]:
        import urllib3
        from kubernetes.client import ApiException

        response = None
        try:
            response = self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json, */*", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=timeout,
            )
            if response.status >= 400:
                raise ApiException(status=response.status, http_resp=None)
            yield response
        except ApiException as error:
            raise ApiError(int(error.status or 0), _words(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"the API server does not answer ({type(error).__name__})") from error
        finally:
            if response is not None:
                response.close()


def current_context() -> str | None:
    """Return the name of the kubeconfig's current context; None without a kubeconfig, as in a pod."""
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
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    return f"{root}{within}/{plural}" + (f"/{name}" if name else "")


def _words(error: Any) -> str:
    """Return what the server says of a failure: the message of its Status object, else the HTTP reason."""
    try:
        return json.loads(error.body)["message"]
    except (KeyError, TypeError, ValueError):
        return str(error.reason or f"HTTP status {error.status}")
