import re
import subprocess
import sys

import pytest
from conftest import ROOT

from mlbench.experiment import config
from mlbench.terminal import help


def test_every_group_and_choice_is_listed_with_the_default_marked():
    lines = help.text().splitlines()
    assert help.GROUPS.keys() == set(config.GROUPS)
    for group in config.GROUPS:
        start = next(i for i, line in enumerate(lines) if line.startswith(f"  {group}: "))
        listed = {}
        for line in lines[start + 1 :]:
            if line[:4].strip() in ("", "*") and line[4:5].strip():
                listed[line[4:].split()[0]] = line[2] == "*"
            elif not line.startswith(" " * 20):
                break
        default = config.compose([])
        assert listed == {name: getattr(default, group).name == name for name in config.choices(group)}, group


def test_every_value_is_listed_with_its_default_and_meaning():
    text = help.text()
    values = config.Experiment.model_fields.keys() - {*config.GROUPS, "deviations"}
    told = {name: (default, comment) for name, default, comment in help.scalars()}
    assert told.keys() == values
    default = config.compose([]).plain()
    for name, (given, comment) in told.items():
        assert f"\n  {name}={given}" in text
        assert comment, f"{name} has no comment in conf/config.yaml"
        assert given in (str(default[name]), str(default[name]).lower(), "null"), name
        assert comment.split()[0] in text


def test_it_teaches_the_words_the_examples_and_the_exit_codes():
    text = help.text()
    for word in ("usage: python -m mlbench.run", "Examples", "Results", "Exit codes", "130: interrupted"):
        assert word in text
    for word in ("scale", "division", "goal", "recipe"):
        assert f"\n  {word} " in text
    assert text.count("\n  python -m mlbench.run") == 3


def test_see_also_names_every_other_command():
    sources = [*(ROOT / "mlbench").glob("*.py"), *(ROOT / "mlbench").glob("*/__main__.py")]
    started = [path for path in sources if 'if __name__ == "__main__":' in path.read_text()]
    commands = {path.parent.name if path.stem == "__main__" else path.stem for path in started}
    see_also = help.text().partition("\nSee also\n")[2]
    named = re.findall(r"python -m mlbench\.(\w+) --help", " ".join(see_also.split()))
    assert sorted(named) == sorted(commands - {"run"})


def test_the_examples_are_valid_commands():
    text = help.text().replace("\\\n", " ")
    commands = [line.split() for line in text.splitlines() if line.startswith("  python -m mlbench.run")]
    assert len(commands) == 3
    for words in commands:
        config.compose(words[3:])


def test_it_fits_a_terminal_of_80_columns_and_any_encoding():
    assert max(map(len, help.text().splitlines())) < 80
    assert help.text().isascii()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("# Task 1: a net (He et al. 2015). More of it.\nname: x\n", "Task 1: a net (He et al. 2015)."),
        ("# A sentence of\n# two lines.\nname: x\n", "A sentence of two lines."),
        ("# A comment.\nname: x\ndescription: A node, 4 CPUs\n", "A node, 4 CPUs"),
        ("name: x\n", ""),
    ],
)
def test_a_choice_is_described_by_its_own_file(tmp_path, source, said):
    path = tmp_path / "x.yaml"
    path.write_text(source)
    assert help.description(path) == said


def test_recipes_are_those_of_the_task_file():
    assert help.recipes(config.CONF / "task" / "resnet20.yaml") == ["mlbench2020", "mlbench2018"]
    assert "Recipes: mlbench2020, mlbench2018." in " ".join(help.text().split())


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_the_command_answers_without_torch_and_ray(word):
    program = (
        "import sys; from mlbench import run; code = run.main(sys.argv[1:]); "
        "heavy = {'torch', 'ray', 'mlflow', 'hydra', 'pyarrow'} & sys.modules.keys(); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    ended = subprocess.run([sys.executable, "-c", program, word], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == help.text()
