"""A task of one's own: the package that `--new` writes, and what is said where it breaks the contract."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion

from mlbench import run
from mlbench.config.experiment import TrainingConfig
from mlbench.contract import new_task
from mlbench.training.setup import TrainingSetup


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a new package with the task `own`, found by its entry points as an installed one is."""
    folder = new_task.write("own", tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "mlbench_own-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1\n")
    points = [
        f"[{group}]\n{name} = {value}\n"
        for group, named in project["entry-points"].items()
        for name, value in named.items()
    ]
    (info / "entry_points.txt").write_text("".join(points))
    return folder


def contract(package: Path, *arguments: str) -> str:
    """Return what `pytest` prints in the package's folder."""
    environment = {**os.environ, "PYTHONPATH": f"{package}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


@pytest.mark.slow
def test_a_broken_contract_is_a_sentence_a_test(package: Path) -> None:
    """That the package as it is written passes, installed from a wheel, is shown by test_package.py."""
    own = package / "mlbench_own"
    (own / "README.md").unlink()
    change(own / "torch.py", "lr=config.lr),", 'lr=config["lr"]),')
    line = next(
        n for n, text in enumerate((own / "torch.py").read_text().splitlines(), 1) if '["lr"]' in text
    )
    said = contract(package, "-k", "explains or two_updates")
    assert f"directory: '{own / 'README.md'}'\n" in said
    assert "TypeError: " in said and f" ({own / 'torch.py'}, line {line})\n" in said
    assert "Traceback" not in said and len(said.splitlines()) < 20, said


@pytest.mark.slow
def test_a_value_that_the_yaml_file_lacks_is_named_before_any_test(package: Path) -> None:
    change(package / "mlbench_own/conf/task/own.yaml", "time_budget_s: 60 #", "#")
    said = contract(package, "--collect-only")
    assert "task=own lacks time_budget_s" in said
    assert "Traceback" not in said and len(said.splitlines()) < 10, said


def test_the_page_has_every_field_of_a_task() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    of_yaml, of_setup = page.partition("### The fields of the YAML file")[2].split("### ")[:2]
    named = set(
        re.findall(r"`(\w+)", " ".join(line.split("|")[1] for line in of_yaml.splitlines() if "|" in line))
    )
    assert set(TrainingConfig.model_fields) | {"recipes", "scales", "datasets"} == named
    rows = [line.split("|")[1] for line in of_setup.splitlines() if "|" in line]
    named = set(re.findall(r"`(\w+)", " ".join(rows))) - {"TrainingSetup"}
    assert {field.name for field in fields(TrainingSetup)} == named


@pytest.mark.parametrize(
    "arguments",
    [
        ["task=My-Task"],
        ["task=class"],
        ["task=resnet20"],
        ["task=own", "workers=2"],
        [],
    ],
)
def test_a_mistake_writes_nothing(
    arguments: list[str],
    snapshot: SnapshotAssertion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.main(["--new", *arguments]) == 2
    assert capsys.readouterr().err == snapshot and not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.main(["--new", "task=own"]) == 0
    assert "pip install -e ." in capsys.readouterr().out
    assert run.main(["--new", "task=own"]) == 2
    assert "mlbench_own exists already" in capsys.readouterr().err
