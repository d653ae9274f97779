"""What --help teaches, for all commands."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from commands import PATIENCE_S
from conftest import ROOT

from mlbench import cluster, data, doctor, predict, results, run, sweep
from mlbench.config import compose, plugins
from mlbench.config.experiment import Experiment
from mlbench.studies.spec import OPTIONS
from mlbench.terminal import args, help

measure: Any = import_module("mlbench.measure")  # mlbench.measure is its function
ALL = (run, sweep, measure, data, results, predict, cluster, doctor)
# Without the package that brings it a command is one sentence (tests/test_wings.py).
COMMANDS = [module for module in ALL if module is not predict or find_spec("mlbench.wings.prediction")]
VERBS = [(module, verb) for module in COMMANDS for verb in module.COMMAND.verbs]


def shown(capsys, module, *arguments):
    assert module.main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("module", "verb"), VERBS, ids=[f"{m.COMMAND.name} {v}" for m, v in VERBS])
def test_every_sub_command_has_a_help_of_80_columns_in_ascii_with_its_settings(module, verb, capsys):
    text = shown(capsys, module, *filter(None, [verb]))
    assert text.isascii() and max(map(len, text.splitlines())) < 80
    spec = module.COMMAND.verbs[verb]
    for name, (default, _) in spec.settings.items():
        assert f"\n  {name}={default}" in text
    for option in spec.options:
        assert f"\n  {option}" in text
    assert text.startswith(f"usage: {module.COMMAND.program}")


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.COMMAND.name)
def test_the_whole_command_lists_its_sub_commands_and_fits_80_columns(module, capsys):
    text = shown(capsys, module)
    assert text.isascii() and max(map(len, text.splitlines())) < 80
    for name, verb in module.COMMAND.verbs.items():
        assert not name or f"\n  {name} " in text
        assert verb.summary and ("examples:" in verb.help or module is cluster)


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.COMMAND.name)
def test_every_command_has_a_version(module, capsys):
    assert module.main(["--version"]) == 0
    assert re.fullmatch(r"mlbench \d+\.\d+\.\d+(\.dev\d+)?\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "module", [module for module in COMMANDS if not module.COMMAND.empty], ids=lambda m: m.COMMAND.name
)
def test_nothing_written_prints_the_help_and_is_a_mistake(module, capsys):
    assert module.main([]) == 2
    assert capsys.readouterr().out == shown(capsys, module)


def examples(module):
    for name, verb in module.COMMAND.verbs.items():
        for line in re.findall(r"^  (python (?:.*\\\n)*.*)", verb.help, re.MULTILINE):
            yield name, shlex.split(line.replace("\\\n", " "))


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.COMMAND.name)
def test_every_example_is_a_command_line_that_is_understood(module):
    for verb, command in examples(module):
        assert command[:3] == ["python", "-m", f"mlbench.{module.COMMAND.name}"]
        # Behind `--` is the user's own command.
        command = command[: command.index("--")] if module is measure else command
        read = args.parse(module.COMMAND, command[3:])
        assert read.verb == verb
        if module in (run, data) and not getattr(read.options, "new", False):
            args.check_overrides(read.arguments)
            compose.compose(read.arguments)


def test_every_group_and_choice_is_listed_with_the_default_marked():
    assert help.GROUPS.keys() == set(plugins.GROUPS)
    heading = "groups (group=choice, * is the default)"
    text = args.section(heading, dict(help.sections())[heading])
    lines = text.splitlines()
    for group in plugins.GROUPS:
        start = next(i for i, line in enumerate(lines) if line.startswith(f"  {group}: "))
        listed = {}
        for line in lines[start + 1 :]:
            if line[:4].strip() in ("", "*") and line[4:5].strip():
                listed[line[4:].split()[0]] = line[2] == "*"
            elif not line.startswith(" " * 20):
                break
        default = compose.compose([])
        assert listed == {name: getattr(default, group).name == name for name in compose.choices(group)}, (
            group
        )


def test_every_value_is_listed_with_its_default_and_meaning():
    heading = "values (name=value, with their defaults)"
    text = args.section(heading, dict(help.sections())[heading])
    default = compose.compose([])
    values = {name: (given, comment) for name, given, comment in help.scalars()}
    assert values.keys() == Experiment.model_fields.keys() - {*plugins.GROUPS, "deviations"}
    for name, (given, comment) in values.items():
        assert f"  {name}={given}" in text
        assert comment and comment.split()[0] in text, f"{name} has no comment in conf/config.yaml"
        assert given in (str(getattr(default, name)), str(getattr(default, name)).lower(), "null"), name


def test_the_settings_of_sweep_are_those_that_a_study_reads():
    assert set(sweep.SETTINGS) == {*OPTIONS, "study"}


def test_run_names_every_other_command(capsys):
    see_also = " ".join(shown(capsys, run).partition("\nsee also:\n")[2].split())
    named = re.findall(r"python -m mlbench\.(\w+) --help", see_also)
    assert set(named) == {module.COMMAND.name for module in ALL} - {"run"}
    assert {path.stem for path in (ROOT / "mlbench").glob("*.py")} - {"__init__", "__main__", "clock"} == {
        module.COMMAND.name for module in ALL
    }


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("# Task 1: a net (He et al. 2015). More of it.\nname: x\n", "Task 1: a net (He et al. 2015)."),
        ("# A sentence of\n# two lines.\nname: x\n", "A sentence of two lines."),
        ("# A comment.\nname: x\ndescription: A node, 4 CPUs\n", "A node, 4 CPUs"),
        ('{"name": "x", "description": "quoted"}\n', "quoted"),
        ("name: x\n", ""),
    ],
)
def test_a_choice_is_described_by_its_own_file(tmp_path, source, text):
    path = tmp_path / "x.yaml"
    path.write_text(source)
    assert help.description(path) == text


@pytest.mark.parametrize(
    "source",
    [
        "recipes:\n  a: {}\n  b: {x: 1}\n",
        "recipes:\n    'a': {}\n    \"b\": {}\n",
        "recipes: {a: {}, b: {}}\n",
    ],
)
def test_recipes_are_found_however_the_yaml_is_written(tmp_path, source):
    path = tmp_path / "x.yaml"
    path.write_text("name: x\n" + source)
    assert help.names(path, "recipes") == ["a", "b"]


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_run_answers_without_torch_and_ray(word):
    program = (
        "import sys; from mlbench import run; code = run.main(sys.argv[1:]); "
        "heavy = {'torch', 'ray', 'mlflow', 'hydra', 'pyarrow', 'scipy'} & sys.modules.keys(); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, word], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
