"""Commands as people type them, each of which once did something else than it said."""

import os
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT
from records import record

from mlbench import clock, cluster, predict, results, run, sweep
from mlbench.clusters import connection, persistent
from mlbench.config.compose import compose
from mlbench.studies.budget import Budget
from mlbench.terminal import full_card

MOST = {
    "gnmt": 64,
    "transformer": 512,
    "resnet50": 62,
    "awdlstm": 7_999,
    "logreg": 156,
    "resnet20": 44,
    "gpt": 8,
}
TASKS = [*MOST, "allreduce"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_planned_by_a_run_and_by_a_sweep(task, tmp_path, capsys):
    """A sweep checks a task several times in one process: transformer's second check failed."""
    folders = [f"output_root={tmp_path}", f"data_root={tmp_path}"]
    words = [f"task={task}", "scale=official", "cluster=attached", *folders, "--dry-run"]
    assert run.main(words) == 0, capsys.readouterr().err
    assert sweep.main([*words, f"workers={'2,3' if task == 'allreduce' else '1,2'}"]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(("task", "most"), MOST.items())
def test_more_workers_than_a_step_can_feed_are_refused_before_they_start(task, most, tmp_path, capsys):
    words = [
        f"task={task}",
        "cluster.oversubscribe=force",
        f"data_root={tmp_path}",
        f"output_root={tmp_path}",
    ]
    assert run.main([*words, f"workers={most}", "--dry-run"]) == 0, capsys.readouterr().err
    assert run.main([*words, f"workers={most + 1}", "--dry-run"]) == 2
    assert f"{most + 1} workers" in capsys.readouterr().err


def test_a_price_of_this_machine_is_one_line(tmp_path, capsys):
    price = ("usd_per_hour=0.36", "date=2026-11-27", "source=me")
    words = ["task=logreg", f"output_root={tmp_path}", *(f"hardware.price.{word}" for word in price)]
    assert run.main([*words, "--dry-run"]) == 0
    assert "about 21 s, about 0.00210 USD" in capsys.readouterr().out  # 0.36 USD an hour are 0.0001 a second


def test_a_price_of_this_machine_can_be_written_down(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLBENCH_PRICES", str(tmp_path / "prices.yaml"))
    assert cluster.main(["prices", "local", "usd_per_hour=0.36", "source=me"]) == 0
    assert run.main(["task=logreg", f"output_root={tmp_path}", "--dry-run"]) == 0
    assert "about 0.00210 USD" in capsys.readouterr().out


VARIANTS = {
    "small": "batch_size: 64",
    "easy": "goals: {official: 90}",
    "larger": "batch_size: 64\nscales: {mini: {batch_size: 16}}",
    "older": "recipe: mlbench2018\nlr: 0.3",
}


@pytest.fixture
def variants(tmp_path):
    (tmp_path / "cfg" / "task").mkdir(parents=True)
    for name, text in VARIANTS.items():
        (tmp_path / "cfg" / "task" / f"{name}.yaml").write_text(f"defaults: [resnet20, _self_]\n{text}\n")
    (tmp_path / "cfg" / "task" / "smaller.yaml").write_text("defaults: [small, _self_]\nlr: 0.2\n")
    return tmp_path / "cfg"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("task=small", {"batch_size": 64, "lr": 0.1, "epochs": 20}),  # all but its own value is of mini scale
        ("task=small scale=official", {"batch_size": 64, "lr": 0.02, "epochs": 164}),
        ("task=small task.dataset=fashion_mnist", {"batch_size": 64, "epochs": 4}),
        ("task=small task.batch_size=8 division=open", {"batch_size": 8}),
        ("task=smaller", {"batch_size": 64, "lr": 0.2}),
        ("task=easy", {"goals": {"official": 90, "light": 94}}),
        ("task=larger", {"batch_size": 16}),  # its own scale is its own value
        ("task=older", {"lr": 0.3, "decay": "steps", "recipe": "mlbench2018"}),
    ],
)
def test_what_a_variant_of_a_task_writes_is_what_runs(words, expected, variants, capsys):
    """A scale that it inherits was laid over it, so that `batch_size: 64` ran with 32."""
    assert run.main([*words.split(), "--config-dir", str(variants), "--cfg", "job"]) == 0
    task = yaml.safe_load(capsys.readouterr().out)["task"]
    assert {name: task[name] for name in expected} == expected


def test_help_lists_what_a_folder_of_the_user_s_has(variants, capsys):
    assert run.main(["--help", "--config-dir", str(variants)]) == 0
    assert "variant of resnet20" in " ".join(capsys.readouterr().out.split())  # the path moves the breaks
    assert run.main(["--help"]) == 0
    assert "variant of" not in capsys.readouterr().out


def test_predictions_and_results_read_a_folder_of_the_user_s(tmp_path, capsys):
    (tmp_path / "hardware").mkdir()
    lab = "defaults: [gcp_n1_t4, _self_]\nname: lab\nnetwork_us: 30\n"
    (tmp_path / "hardware" / "lab.yaml").write_text(lab)
    words = ["published:gnmt", "max_workers=2", f"output_root={tmp_path}"]
    assert predict.main([*words, "hardware=lab"]) == 2
    assert "hardware=lab is unknown" in capsys.readouterr().err
    assert predict.main([*words, "hardware=lab", "--config-dir", str(tmp_path)]) == 0
    assert results.main(["list", f"output_root={tmp_path}", f"--config-dir={tmp_path}/none"]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err


def test_a_plan_names_the_option_that_was_typed(variants, tmp_path, capsys):
    words = ["task=small", f"output_root={tmp_path}", "--config-dir", str(variants)]
    assert run.main([*words, "--dry-run"]) == 0
    assert f"--config-dir {variants} --cfg job" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["--completion bash", "results list output_root=notebooks/sample"])
def test_a_command_ends_quietly_without_a_reader(line):
    """As in `mlbench --completion bash | head -0`, which ended in a traceback."""
    command = [sys.executable, "-m", "mlbench", *line.split()]
    read, write = os.pipe()
    os.close(read)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("left_s", "said"), [(-43, "max_time has been over for 43"), (9, "max_time is over in 9")]
)
def test_a_time_that_is_over_is_not_still_to_come(left_s, said, monkeypatch):
    monkeypatch.setattr(clock, "wall", lambda: 1000.0)
    experiment = compose(["task=logreg"])
    budget = Budget({"key": experiment}, ends=1000.0 + left_s)
    monkeypatch.setattr(budget, "seconds", lambda key: 20.0)
    assert (budget.refusal("key") or "").startswith(said)


@pytest.mark.parametrize(("runs", "refused"), [(1.5, True), (2.5, False)])
def test_a_run_that_would_exceed_max_usd_is_refused(runs, refused):
    done = record("task=logreg", "hardware=gcp_n1_standard_4", key="key")
    spent = Budget({"key": done.experiment}, [done]).spent
    assert spent
    refusal = Budget({"key": done.experiment}, [done], max_usd=runs * spent).refusal("key")
    assert (refusal is not None and refusal.startswith("max_usd=")) == refused


def test_a_ray_that_runs_already_is_joined_and_not_started(monkeypatch):
    monkeypatch.setattr(persistent, "address", lambda: None)
    assert connection.beginning(compose(["task=logreg"])) == "starting Ray (local)"
    assert connection.beginning(compose(["task=logreg", "cluster=attached"])) == "joining Ray (attached)"
    monkeypatch.setattr(persistent, "address", lambda: "127.0.0.1:6379")
    assert connection.beginning(compose(["task=logreg"])) == "joining Ray (local)"


def test_a_label_never_runs_into_its_text():
    """As "prepared data (hash)" would into the hash."""
    measured = record(data_hash="d" * 64)
    lines = [line.plain for line in full_card.full(measured)]
    labels = [label for label, _ in full_card.rows(measured)]
    assert max(map(len, labels)) >= full_card.LABEL
    for label in labels:
        assert any(line == f"  {label}" or line.startswith(f"  {label} ") for line in lines), label
