"""The client's side of a run against a real API server: real_cluster.py says which.

The test says what the operator would.
"""

import contextlib
import secrets
import shutil
import threading
from pathlib import Path

import pytest
import real_cluster
from fake_cluster import FakeCluster

from mlbench.clusters.kuberay import objects
from mlbench.clusters.kuberay.api import ApiError, Kubernetes, path
from mlbench.experiment import clock
from mlbench.experiment.config import compose
from mlbench.launch import submitted

IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"


@pytest.mark.parametrize("server", ["fake", "real"])
def test_a_server_takes_the_objects_and_what_the_operator_says_is_told(
    server: str, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server == "real" and not real_cluster.named():
        names = f"{real_cluster.ASSETS}=FOLDER or {real_cluster.KUBECONFIG}=FILE"
        pytest.skip(f"needs a real API server, and so does test_submission.py beside it: {names}")
    monkeypatch.setattr(objects, "GONE_S", 5.0)  # s; a bare server has no garbage collector to wait for
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    with contextlib.ExitStack() as stack:
        if server == "fake":
            kubeconfig = stack.enter_context(FakeCluster()).kubeconfig(tmp_path)
        else:
            kubeconfig = stack.enter_context(real_cluster.server(tmp_path))
            real_cluster.install(real_cluster.client(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        namespace = f"mlbench-test-{secrets.token_hex(3)}"
        words = ["task=logreg", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE, "seed=7"]
        words += [f"cluster.namespace={namespace}", f"output_root={tmp_path}", "cluster.autoscaling=true"]
        words += ["cluster.mlflow=true", f"tracking_uri=sqlite:///{tmp_path / 'mlflow.db'}"]
        api = Kubernetes(None)
        operator = threading.Thread(target=refuse, args=(api, namespace), daemon=True)
        operator.start()
        settings = submitted.Settings()
        try:
            record = submitted.execute(compose(words), begun=clock.wall(), overrides=words, settings=settings)
        finally:
            api.delete(path("v1", "Namespace", name=namespace))
        operator.join()
        assert record is not None and record.status == "failed"
        assert record.error == "KubeRay refuses the RayJob: a sentence of the test's"


def refuse(api: Kubernetes, namespace: str) -> None:
    """Wait for a RayJob and refuse it, as the operator does after the server has taken it."""
    for seen in api.watch(path("ray.io/v1", "RayJob", namespace)):
        if isinstance(seen, ApiError) or not seen:
            continue
        (name,) = seen
        status = {"jobDeploymentStatus": "ValidationFailed", "message": "a sentence of the test's"}
        api.patch(f"{path('ray.io/v1', 'RayJob', namespace, name)}/status", {"status": status})
        return
