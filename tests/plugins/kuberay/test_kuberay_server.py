"""What a real API server says to our objects and rights."""

import copy
import secrets
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import real_server
from real_server import Server
from test_manifest import CEL, CPU, MANIFESTS, SCHEMA, change, job, objects, templates

from mlbench.config.compose import compose
from mlbench.plugins.kuberay import objects as created
from mlbench.plugins.kuberay import shared
from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real API server with KubeRay's definitions."""
    if not real_server.named():
        names = f"{real_server.ASSETS}=FOLDER or {real_server.KUBECONFIG}=FILE"
        pytest.skip(f"needs a real API server: {names}")
    with real_server.server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def namespace(server: Server) -> Iterator[str]:
    """A namespace with what runs share there."""
    api, name = server.client(), f"mlbench-test-{secrets.token_hex(3)}"
    for item in objects((*CPU, f"cluster.namespace={name}")):
        if item["kind"] not in ("RayJob", "NetworkPolicy"):
            api.create(item)
    yield name
    api.delete(path("v1", "Namespace", name=name))


@pytest.mark.parametrize("overrides", MANIFESTS.values())
def test_a_real_server_admits_every_object_and_every_pod(
    server: Server, namespace: str, overrides: tuple[str, ...]
) -> None:
    """With Pod Security "restricted" enforced, which it says of a pod and only warns of for a Deployment."""
    api, override = server.client(), f"cluster.namespace={namespace}"
    made = objects((*overrides, override))
    for item in made:
        if item["kind"] in ("Namespace", "ServiceAccount", "Role"):
            continue  # it is there
        api.create(item, dry_run=True)
    templates_of = templates(made)
    for number, spec in enumerate(templates_of):
        metadata = {"name": f"pod-{number}", "namespace": namespace}
        pod: Any = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        api.create(pod, dry_run=True)
        loose = copy.deepcopy(pod)
        loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(ApiError, match='violates PodSecurity "restricted'):
            api.create(loose, dry_run=True)
    assert len(templates_of) >= 3


@pytest.mark.parametrize(("path", "value", "sentence"), [*SCHEMA, *CEL])
def test_a_real_server_refuses_what_schema_and_cel_refuse_here(
    server: Server, namespace: str, path: str, value: Any, sentence: str
) -> None:
    broken = change(job((*CPU, f"cluster.namespace={namespace}")), path, value)
    with pytest.raises(ApiError) as refused:
        server.client().create(broken, dry_run=True)
    assert refused.value.status in (400, 422) and not refused.value.passing


def test_the_role_of_submitters_suffices_and_allows_nothing_more(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = server.client()
    monkeypatch.setenv("KUBECONFIG", str(server.account(namespace, "mlbench-submitter")))
    submitter = Kubernetes(None)
    overrides = (*CPU, f"cluster.namespace={namespace}")
    experiment = compose(overrides)
    created.create_surroundings(submitter, experiment)
    *_, policy, item = objects(overrides)
    owner = created.create_owned(submitter, [policy, item])
    assert submitter.get(path("v1", "Pod", namespace))["items"] == []
    with pytest.raises(ApiError) as log:
        submitter.get(f"{path('v1', 'Pod', namespace, 'none')}/log")
    assert log.value.status == 404  # not 403: it may be read
    name = owner["metadata"]["name"]
    own = api.get(path("networking.k8s.io/v1", "NetworkPolicy", namespace, name))
    assert own["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    for verb, group, resource in [
        ("create", "", "pods"),
        ("delete", "", "pods"),
        ("create", "", "pods/exec"),
        ("create", "", "pods/portforward"),
        ("get", "", "secrets"),
        ("list", "", "secrets"),
        ("create", "", "serviceaccounts/token"),
        ("create", "batch", "jobs"),
        ("create", "rbac.authorization.k8s.io", "rolebindings"),
        ("update", "rbac.authorization.k8s.io", "roles"),
        ("deletecollection", "ray.io", "rayjobs"),
        ("update", "ray.io", "rayjobs/status"),
        ("patch", "networking.k8s.io", "networkpolicies"),
    ]:
        assert not allowed(submitter, namespace, verb, group, resource), (verb, resource)
    assert not allowed(submitter, "default", "create", "ray.io", "rayjobs")
    with pytest.raises(ApiError, match="forbidden"):
        submitter.get(path("v1", "Node"))
    api.patch(
        path("ray.io/v1", "RayJob", namespace, name),
        {"metadata": {"annotations": {"who": "the administrator"}}},
    )
    assert submitter.delete(path("ray.io/v1", "RayJob", namespace, name))


def allowed(api: Kubernetes, namespace: str, verb: str, group: str, resource: str) -> bool:
    """Ask the server whether the client may do something."""
    kind, _, sub = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": sub}
    kinds = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    review = kinds | {"metadata": {}, "spec": {"resourceAttributes": attributes}}
    return api.create(review)["status"]["allowed"]


def test_a_run_without_its_policy_is_deleted_by_a_busy_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it trains, and is billed, where the command has said that it cannot be submitted."""
    monkeypatch.setattr(created, "time", SimpleNamespace(sleep=lambda _: None))
    deletions: list[str] = []

    def create(item: Any) -> Any:
        if item["kind"] == "NetworkPolicy":
            raise ApiError(403, "no right to make policies")
        return item | {"metadata": item["metadata"] | {"uid": "1"}}

    def delete(endpoint: str) -> bool:
        deletions.append(endpoint)
        if len(deletions) == 1:
            raise ApiError(429, "too many requests")
        return True

    *_, policy, item = objects(CPU)
    api: Any = SimpleNamespace(create=create, delete=delete)
    with pytest.raises(ApiError, match="no right"):
        created.create_owned(api, [policy, item])
    assert deletions == 2 * [path("ray.io/v1", "RayJob", "mlbench", "mlb-run")]


def test_a_run_that_a_request_without_an_answer_has_created_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(created, "time", SimpleNamespace(sleep=lambda _: None))
    refusals = [ApiError(0, "no answer"), ApiError(409, "it is there"), ApiError(503, "busy")]

    def answer(_: Any) -> Any:
        if refusals:
            raise refusals.pop(0)
        return {"kind": "RayJob"}

    api: Any = SimpleNamespace(create=answer, get=answer)
    assert created.create(api, objects(CPU)[-1]) == {"kind": "RayJob"}


def test_a_ray_cluster_that_is_being_deleted_is_not_taken_for_the_next_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a sweep that ended a moment ago: its pods go within half a minute, of a lost node later."""
    monkeypatch.setattr(created, "time", SimpleNamespace(sleep=lambda _: None))
    overrides = (*CPU, "cluster.shared=mlb-sweep")
    experiment = compose(overrides)
    owner = f"mlb-sweep-{shared.shape(experiment)}"
    looks, creations = [True, True, False], list[str]()  # whether it is still there

    def get(_: str, **query: str) -> Any:
        metadata = {"name": owner, "deletionTimestamp": "2026-11-26T16:00:00Z"}
        return {"items": [{"metadata": metadata}] if looks else []}

    def create(item: Any) -> Any:
        creations.append(item["metadata"]["name"])
        raise ApiError(403, "the test ends here")

    api: Any = SimpleNamespace(get=get, create=create, delete=lambda _: looks.pop(0))
    with pytest.raises(ApiError, match="test ends here"):
        shared.ensure(api, experiment)
    assert looks == [] and creations == [owner]
