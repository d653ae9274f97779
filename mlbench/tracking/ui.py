"""Open MLflow's UI: saved views of the run table, their links, and their server."""

import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ResultError
from mlbench.tracking import mlflow_private

NOTE = "mlflow.note.content"
HOST, PORT = "127.0.0.1", 5000
TABLE = "mlbench"
VIEWS = {  # saved views by their key in an address: the name, and the metric that the charts are drawn over
    TABLE: ("Results", ""),
    "mlbench-time": ("Curves over time", "training/elapsed_s"),
    "mlbench-samples": ("Curves over samples", "training/samples"),
}
BY_NAME = "tags.`mlflow.runName`"  # task, scale, workers (sorted by their begin, runs hide below their study)
COLUMNS = (
    "tags.`status`",
    "metrics.`time_to_accuracy_s`",
    "metrics.`cost/goal_usd`",
    "tags.`workers`",
    "metrics.`samples_per_s`",
    "metrics.`best`",
    "metrics.`epochs`",
    "tags.`task`",
    "tags.`hardware`",
)
ABOUT = (
    "Runs of mlbench. Saved views: **Results** (status, time to accuracy in s, cost in USD, "
    "workers, samples/s), **Curves over time** and **Curves over samples**. Names end in their unit: `_s` "
    "seconds, `_usd`, `_bytes`, `_joules`; `share/` is of 1. A study is a parent run. Its "
    "children are its runs, and its description is the study's answer."
)


def tags(created_ms: int) -> dict[str, str]:
    """Return the experiment's tags: its description and the saved views."""
    result = {NOTE: ABOUT, mlflow_private.KIND_TAG: mlflow_private.MODEL_TRAINING}
    table: dict[str, Any] = {"selectedColumns": COLUMNS, "columnOrder": COLUMNS}
    table |= {"orderByAsc": True, "orderByKey": BY_NAME}
    for key, (name, axis) in VIEWS.items():
        charts = {"lineSmoothness": 0, "xAxisKey": "metric", "selectedXAxisMetricKey": axis}
        state = table | {"globalLineChartConfig": charts} if axis else table
        result[mlflow_private.VIEW_TAG + key] = mlflow_private.view(name, state, created_ms=created_ms)
    return result


def link(server: str, experiment_id: str, run: str = "", *, file: str = "") -> str:
    """Return the address at which a fresh browser shows the runs, in MLflow's mode for model training.

    With `run`, MLflow's id of one, it shows that run, or the `file` among its artifacts.
    """
    path, query = f"#/experiments/{experiment_id}/runs", "workflowType=machine_learning"
    if run:
        path += f"/{run}{file and f'/artifacts/{file}'}"
    else:
        query += f"&viewStateShareKey={TABLE}"
    return f"{server.rstrip('/')}{server and '/'}{path}?{query}"


def server(uri: str, experiment_id: str, run: str, *, port_text: str) -> tuple[str, list[str] | None]:
    """Return the link to the runs, or to one of MLflow's id, and a server's command if none is there.

    `port_text`: as a user wrote it ("": MLflow's default). Raises UserError if it is no port or in use, or if
    the store has another UI.
    """
    if port_text and not (port_text.isdecimal() and 0 < int(port_text) < 65536):
        raise ResultError(f"port={port_text} is not a port", hint=f"e.g. port={PORT + 1}")
    port, scheme = int(port_text or PORT), urlsplit(uri).scheme
    if scheme in ("http", "https"):
        return link(without_credentials(uri), experiment_id, run), None
    if scheme.startswith("databricks"):
        raise ResultError("the store's runs are in its Databricks workspace", hint="open the workspace")
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise ResultError(
                f"port {port} is in use", hint=f"port={port + 1}, or open the server that uses it"
            )
    arguments = ["mlflow", "server", "--host", HOST, "--port", str(port), "--backend-store-uri", uri]
    arguments += ["--uvicorn-opts", "--log-level warning"]  # the address has been shown
    return link(f"http://{HOST}:{port}", experiment_id, run), [sys.executable, "-m", *arguments]
