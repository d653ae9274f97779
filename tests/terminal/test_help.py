"""What --help teaches, for all commands."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from commands import PATIENCE_S
from conftest import ROOT

from mlbench import cluster, data, doctor, duel, predict, results, run, sweep
from mlbench.config import compose, plugins
from mlbench.config.experiment import Experiment
from mlbench.studies.spec import OPTIONS
from mlbench.terminal import args, help

measure: Any = import_module("mlbench.measure")  # mlbench.measure is its function
ALL = (run, sweep, measure, duel, data, results, predict, cluster, doctor)
# Without the package that brings it a command is one sentence (tests/test_shipped_plugins.py).
COMMANDS = [module for module in ALL if module is not predict or find_spec("mlbench.plugins.prediction")]
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


def examples(module):
    for name, verb in module.COMMAND.verbs.items():
        for line in re.findall(r"^  (mlbench (?:.*\\\n)*.*)", verb.help, re.MULTILINE):
            yield name, shlex.split(line.replace("\\\n", " "))
    for _, content in module.COMMAND.sections():
        if isinstance(content, str) and content.startswith(f"{module.COMMAND.program} "):
            yield "", shlex.split(content)


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.COMMAND.name)
def test_every_example_is_a_command_line_that_is_understood(module):
    assert [*examples(module)] or module is cluster
    for verb, command in examples(module):
        assert command[:2] == ["mlbench", module.COMMAND.name]
        # Behind `--` is the user's own command, or two settings of a task.
        command, sides = _divided(command) if module in (measure, duel) else (command, [])
        read = args.parse(replace(module.COMMAND, empty=bool(sides)), command[2:])
        assert read.verb == verb
        if module in (run, data) and not getattr(read.options, "new", False):
            args.check_overrides(read.arguments)
            compose.compose(read.arguments)
        for side in sides:
            if all("=" in word for word in side):
                compose.compose([*read.arguments, *side])


def _divided(command):
    """Return what stands before `--`, and what follows it, divided at `---`."""
    at = command.index("--")
    return command[:at], [shlex.split(side) for side in shlex.join(command[at + 1 :]).split(" --- ")]


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
    named = re.findall(r"mlbench\s+(\w+)\s+--help", see_also)
    assert set(named) == {module.COMMAND.name for module in ALL} - {"run"}
    files = [
        *(ROOT / "mlbench").glob("*.py"),
        *(path.parent for path in (ROOT / "mlbench").glob("*/__main__.py")),
    ]
    assert {path.stem for path in files} - {"__init__", "__main__", "clock"} == {
        module.COMMAND.name for module in ALL
    }


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
