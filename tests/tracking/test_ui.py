"""MLflow in a real browser: the printed link shows a fresh profile the results, without a click."""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import chromium
import pytest
import sample
import studies
from screenshots import save
from tracking_server import wait_for
from zips import with_store

from mlbench.config.store_uri import default_store
from mlbench.report import mlflow_study
from mlbench.tracking import mapping, sync, ui

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium on this machine"),
    # MLflow 3.17 uses what SQLAlchemy 2.1 deprecates.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]
TEXT = "document.body.innerText"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """An output_root whose runs and study are in MLflow."""
    folder = with_store(sample.copy(tmp_path_factory.mktemp("ui") / "runs"), empty_store)
    assert {run.outcome for run in sync.sync_runs(folder, None)} == {"uploaded"}
    assert list(sync.sync_studies(folder, None, summarize=mlflow_study.summary)) == [(sample.STUDY, "")]
    return folder


@pytest.fixture(scope="module")
def link(root: Path) -> Iterator[str]:
    """The address that the command prints, while it serves the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlbench.results", "mlflow", f"output_root={root}", f"port={port}"]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes less
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, start_new_session=True
    )
    try:
        assert server.stdout is not None
        printed = server.stdout.readline().strip()
        wait_for(lambda: _healthy(f"http://127.0.0.1:{port}/health") or server.poll() is not None)
        assert server.poll() is None, "another process may have taken the port"
        yield printed
    finally:
        server.terminate()
        server.communicate()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Page]:
    """A fresh profile: the first test opens the first page that it sees."""
    with chromium.browse() as page:
        yield page


def client(root: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(default_store(root))


def test_the_link_shows_time_to_accuracy_in_the_table_without_a_click(
    root: Path, link: str, browser: chromium.Page
) -> None:
    browser.open(link, width=1500, height=800)
    browser.until(lambda: "time_to_accuracy_s" in browser.ask(TEXT) and "goal_reached" in browser.ask(TEXT))
    assert f"study {sample.STUDY}" in browser.ask(TEXT) and failures(browser) == []
    headings = browser.ask(
        "[...new Set([...document.querySelectorAll('[role=columnheader]')].map(e => e.innerText.trim()))]"
    )
    wanted = ["status", "time_to_accuracy_s", "workers", "samples_per_s"]  # no price, no cost
    assert {*wanted, "Run Name"} <= set(headings)
    assert browser.ask("localStorage.length") < 50 and browser.ask(TEXT).count("goal_reached") >= 6
    cells = browser.ask(
        "[...document.querySelectorAll('[role=row]')].map(r => [...r.querySelectorAll('[role=gridcell]')]"
        ".map(c => c.innerText.trim())).flat()"
    )
    times = [run.data.metrics["time_to_accuracy_s"] for run in runs(root) if "key" in run.data.tags]
    assert len(times) == 24
    shown = {float(cell) for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)}
    assert sum(any(abs(time - value) <= 1e-3 * time for value in shown) for time in times) >= 6
    save(browser, "mlflow-runs")


def test_the_study_opens_with_its_answer_its_runs_and_its_charts(
    root: Path, link: str, browser: chromium.Page
) -> None:
    (parent,) = [run for run in runs(root) if run.info.run_name == f"study {sample.STUDY}"]
    children = [run.info.run_name for run in runs(root) if run.info.run_id != parent.info.run_id]
    server, _, rest = link.partition("/#/")
    address = f"{server}/#/experiments/{rest.split('/')[1]}/runs/{parent.info.run_id}"
    browser.open("about:blank")  # to MLflow another place on its page is no other page
    browser.open(f"{address}?workflowType=machine_learning", width=1280, height=900)
    browser.until(lambda: "Fastest to" in browser.ask(TEXT))
    # MLflow 3.17 lists ten, and has a button for more.
    browser.until(lambda: sum(name in browser.ask(TEXT) for name in children) >= 10)
    aggregates = {f"resnet20/mini/{name}" for name in ("speedup", "exposed_communication")}
    assert aggregates <= set(browser.ask(TEXT).splitlines())
    save(browser, "mlflow-study")
    assert failures(browser) == []


def failures(page: chromium.Page) -> list[dict[str, Any]]:
    """Return the errors of scripts; that nobody is logged in is none."""
    return [event for event in page.errors() if event["method"] == "Runtime.exceptionThrown"]


def test_two_runs_stand_side_by_side(root: Path, link: str, browser: chromium.Page) -> None:
    """MLflow's compare view shows in which parameters one run with one worker and one with two differ."""
    tasks = [run for run in runs(root) if run.data.tags.get("task") == "resnet20" and "key" in run.data.tags]
    pair = [next(run for run in tasks if run.data.params["workers"] == count) for count in ("1", "2")]
    server, _, rest = link.partition("/#/")
    ids, experiments = json.dumps([run.info.run_id for run in pair]), json.dumps([rest.split("/")[1]])
    query = f"runs={quote(ids)}&experiments={quote(experiments)}&workflowType=machine_learning"
    switches = "[...document.querySelectorAll('button[role=switch]')]"
    browser.open("about:blank")
    browser.open(f"{server}/#/compare-runs?{query}", width=1500, height=900)
    browser.until(lambda: browser.ask(f"{switches}.length") >= 2 and "backend.device" in browser.ask(TEXT))
    assert {run.info.run_name for run in pair} <= set(browser.ask(TEXT).splitlines())
    browser.ask(f"{switches}.forEach(each => each.click())")
    browser.until(lambda: "backend.device" not in browser.ask(TEXT))
    assert re.search(r"workers\s+1\s+2\s", browser.ask(TEXT))
    browser.ask(f"{switches}[0].closest('section, div').scrollIntoView()")
    save(browser, "mlflow-compare")


def test_the_view_s_columns_are_what_a_run_has() -> None:
    record = studies.run(1, 0, "hardware=gcp_n1_t4", time=100)
    numbers = {metric.name for metric in mapping.end_metrics(record, ended=1.0)}
    start = {"task", "hardware", "workers"} | mapping.end_tags(record).keys()
    for column in ui.COLUMNS:
        kind, _, name = column.partition(".")
        assert name.strip("`") in (numbers if kind == "metrics" else start)


def test_the_store_has_final_numbers_at_step_0_curves_at_their_samples_and_each_run_s_data(
    root: Path,
) -> None:
    everything = runs(root)
    run = next(r for r in everything if r.data.tags.get("task") == "resnet20" and "seed" in r.data.tags)
    history = {name: client(root).get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    final = {name for name, points in history.items() if [point.step for point in points] == [0]}
    assert {"time_to_accuracy_s", "samples_per_s", "phase/forward_s", "startup/imports_s"} <= final
    series = ("validation/top1_accuracy", "training/elapsed_s", "training/samples")
    steps = [[point.step for point in history[name]] for name in series]
    assert len(steps[0]) > 2 and steps[0] == steps[1] == steps[2] and 0 not in steps[0]
    assert history["training/samples"][-1].value == run.data.metrics["samples"]
    inputs = [run.inputs.dataset_inputs for run in everything if "key" in run.data.tags]
    assert {len(datasets) for datasets in inputs} == {1}  # though they were written twice
    assert len({(data.dataset.name, data.dataset.digest) for (data,) in inputs}) == 2
    (parent,) = [run for run in everything if run.info.run_name == f"study {sample.STUDY}"]
    speedups = {f"resnet20/mini/speedup{end}" for end in ("", "_low", "_high")}
    assert speedups <= parent.data.metrics.keys()


def runs(root: Path) -> list[Any]:
    experiment = client(root).get_experiment_by_name("mlbench")
    return list(client(root).search_runs([experiment.experiment_id]))
