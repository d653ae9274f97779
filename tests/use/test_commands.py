"""Each command and each of its verbs as it is typed, on the sample's runs, without Ray."""

import json
import os
import socket
from importlib import import_module
from pathlib import Path

import pytest
import sample
import torch
from conftest import ROOT
from installed import Place

from mlbench.__main__ import COMMANDS

pytestmark = pytest.mark.use
TASKS = ("awdlstm", "gnmt", "gpt", "logreg", "resnet20", "resnet50", "transformer")


@pytest.fixture
def runs(place: Place) -> Place:
    """Return a folder with the sample's runs in `runs`."""
    sample.copy(place.folder / "runs")
    return place


def write(folder: Path, **texts: str) -> None:
    """Write text files; `__` in a keyword stands for the dot."""
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_explains_itself(place: Place, command: str) -> None:
    verbs = [verb for verb in import_module(f"mlbench.{command}").COMMAND.verbs if verb]
    listed = place.type(f"python -m mlbench.{command} --help").stdout
    assert listed.startswith(f"usage: mlbench {command}")
    assert place.type(f"mlbench {command} --help").stdout == listed
    for verb in verbs:
        assert f"\n  {verb} " in listed
        shown = place.type(f"mlbench {command} {verb} --help").stdout
        assert shown.startswith(f"usage: mlbench {command} {verb}")


def test_the_command_itself(place: Place) -> None:
    assert place.type("mlbench --version").stdout == place.type("mlbench run --version").stdout
    assert all(f"\n  {name} " in place.type("mlbench --help").stdout for name in COMMANDS)
    for shell in ("bash", "zsh", "fish"):
        assert place.type(f"mlbench --completion {shell}").stdout
    assert "resnet20" in place.type("mlbench --complete bash 'mlbench run task='").stdout
    assert "did you mean" in place.type("mlbench runs", codes=[2]).text
    assert "workers?" in place.type("mlbench run wrokers=3", codes=[2]).text


def test_runs_are_listed_shown_and_compared(runs: Place) -> None:
    listed = json.loads(runs.type("mlbench results list study:two-cores --json").stdout)
    assert len(listed) == len([*sample.SAMPLE.glob("*/record.json")])
    assert "resnet20" in runs.type("mlbench results list task=resnet20 sort=time last=2 --wide").stdout
    card = runs.type("mlbench results show last")
    assert "GOAL REACHED" in card.text
    assert len(runs.type("mlbench results show last --full").stdout) > len(card.stdout)
    assert json.loads(runs.type("mlbench results show last --json").stdout)["status"] == "goal_reached"
    assert "Fastest to" in runs.type("mlbench results show study:two-cores").text
    assert "| " in runs.type("mlbench results show study:two-cores --markdown").stdout
    assert "," in runs.type("mlbench results show study:two-cores --csv").stdout
    sides = "workers=1 workers=2 task=logreg"
    assert "slower" in runs.type(f"mlbench results compare {sides}").text
    runs.type(f"mlbench results compare {sides} --fail-if-slower 5%", codes=[1])
    assert "logreg, resnet20" in runs.type("mlbench results list task=gnmt", codes=[2]).text


def test_runs_are_plotted_published_and_predicted_from(runs: Place) -> None:
    runs.type("mlbench results plot study:two-cores to=figures")
    assert (runs.folder / "figures" / "report.html").exists()
    runs.type("mlbench results site runs to=site")
    assert (runs.folder / "site" / "index.html").exists()
    runs.type("mlbench results rcp two-cores to=rcps")
    assert [*(runs.folder / "rcps").glob("rcps_*.json")]
    table = json.loads(runs.type("mlbench predict two-cores task=resnet20 --json").stdout)
    assert table
    curve = runs.type("mlbench predict two-cores task=resnet20 max_workers=4 plot=curve.png")
    assert "workers" in curve.text and (runs.folder / "curve.png").exists()
    published = runs.type("mlbench predict published:gnmt hardware=gcp_n1_t4 network=25gbit,30us --json")
    assert json.loads(published.stdout)


def test_runs_are_exported_imported_uploaded_verified_and_deleted(runs: Place, place: Place) -> None:
    runs.type("mlbench results export task=logreg workers=1 to=zips")
    zips = [*(runs.folder / "zips").glob("*.zip")]
    assert len(zips) == 6
    runs.type("mlbench results import zips output_root=elsewhere")
    assert len(json.loads(runs.type("mlbench results list output_root=elsewhere --json").stdout)) == 6
    runs.type("mlbench results verify", codes=[0, 1])  # of the sample's logs a part has been thinned out
    assert runs.type("mlbench results sync output_root=elsewhere").code == 0
    runs.type("mlbench results delete task=logreg output_root=elsewhere --yes")
    assert json.loads(runs.type("mlbench results list output_root=elsewhere --json").stdout) == []


def test_a_submission_is_checked_and_a_log_from_outside_is_judged(place: Place) -> None:
    (place.folder / "submissions").symlink_to(ROOT / "submissions")
    newest = max((ROOT / "submissions" / "mlbench").iterdir()).name
    assert place.type(f"mlbench results check submissions/mlbench/{newest}").code == 0
    write(place.folder, times__jsonl='{"time": 1.5, "top1_accuracy": 50}\n{"time": 3, "top1_accuracy": 98}\n')
    place.type("mlbench results score task=resnet20 log=times.jsonl")
    place.type("mlbench results score task=resnet20 goal=99 log=times.jsonl", codes=[1])


def test_runs_open_in_mlflow_until_ctrl_c(runs: Place) -> None:
    runs.type("mlbench results sync")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs.type_until(f"mlbench results mlflow port={port}", f":{port}")


def test_data_are_listed_prepared_and_verified(place: Place) -> None:
    rows = "".join(f"{2 * (n % 2) - 1} 1:{n % 7} 2:{n % 5}\n" for n in range(400))
    write(place.folder, train__txt=rows, test__txt=rows)
    own = "task=logreg division=open task.train_file=train.txt task.test_file=test.txt"
    place.type(f"mlbench data prepare {own} scale=official")
    assert "logreg" in place.type("mlbench data list").text
    place.type("mlbench data verify")
    planned = place.type(f"mlbench run {own} scale=official goal=none --dry-run")
    assert "started" in planned.text


@pytest.mark.parametrize("task", TASKS)
def test_the_official_scale_names_the_command_that_prepares_its_data(place: Place, task: str) -> None:
    answer = place.type(f"mlbench run task={task} scale=official --dry-run", codes=[2])
    assert f"mlbench data prepare task={task} scale=official" in answer.text
    assert "scale: official" in place.type(f"mlbench run task={task} scale=official --cfg job").stdout


def test_task_0_is_planned_at_official_scale_without_data(place: Place) -> None:
    assert "started" in place.type("mlbench run task=allreduce scale=official --dry-run").text


@pytest.mark.parametrize("study", sorted(path.stem for path in (ROOT / "conf" / "study").glob("*.yaml")))
def test_every_study_is_planned(user: Place, study: str) -> None:
    answer = user.type(f"mlbench sweep study={study} --dry-run", codes=[0, 1])
    refused = study == "backends" and not torch.cuda.is_available()  # its points with nccl
    refused |= study == "scaling" and 16 * len(os.sched_getaffinity(0)) <= 32  # its 32 workers
    assert "started" in answer.text and answer.code == refused == ("refused" in answer.text)


@pytest.mark.plugin("kuberay")
def test_clusters_are_planned_priced_listed_and_refused_without_an_account(place: Place) -> None:
    assert "price an hour" in place.type("mlbench cluster plan gke workers=8 project=my-lab").text
    assert ": 4.65 USD" in place.type("mlbench cluster plan aws workers=8").text
    place.type("mlbench cluster prices gcp_n1_t4 usd_per_hour=0.54 source=invoice")
    place.type("mlbench cluster list")
    place.type("mlbench cluster status")
    place.type("mlbench cluster reap")
    assert place.type("mlbench cluster down no-such-cluster", codes=[1, 2]).text
    assert place.type("mlbench cluster up existing context=no-such-context", codes=[1, 2]).text
    words = "task=resnet20 scale=official cluster=kuberay cluster.image=IMAGE cluster.data_claim=datasets"
    assert place.type(f"mlbench cluster data prepare {words}", codes=[1, 2]).text


@pytest.mark.plugin("kuberay")
def test_two_machines_are_checked(place: Place) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"mlbench cluster check machines=2 address=127.0.0.1 port={port} minutes=1"
    answer = place.type(f"{words} rank=1 & {words} rank=0 --json; code=$?; wait; exit $code", codes=[0, 1])
    assert json.loads(answer.stdout[answer.stdout.index("{") :])


def test_the_doctor_says_what_this_machine_can_run(place: Place) -> None:
    assert "torch" in place.type("mlbench doctor").text
    checks = json.loads(place.type("mlbench doctor --json").stdout)
    assert {check["state"] for check in checks} <= {"here", "absent"}
