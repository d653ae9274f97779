"""Over two hundred wrong command lines: each ends with exit code 2 and one sentence with the field."""

import os
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from driven import Run

import mlbench.__main__
from mlbench.clusters import connection
from mlbench.config import compose
from mlbench.studies import spec

# A command line, and what its sentence must contain. {root} has two runs, {tmp} nothing.
MISTAKES = """
run task=resnet                                    | task=resnet is unknown: did you mean resnet
run worker=2                                       | did you mean workers?
run task.recipe=mlbench2021                        | task.recipe=mlbench2021
run cluster=remote                                 | cluster=remote is unknown
run task = resnet20                                | write task=resnet20 without spaces
run workers =2                                     | write workers=2 without spaces
run "task=resnet20 workers=2"                      | holds several overrides
run --workers 4                                    | write workers=4
run -m workers=1,2                                 | mlbench sweep
run -sc install=bash                               | mlbench --completion bash
run hydra.run.dir=x                                | only hydra.searchpath is supported
run --info                                         | --cfg job
run --hydra-help                                   | use --help
run --verbos                                       | --verbos is not an option of run
run --                                             | -- is not an option
run workers=1,2                                    | use mlbench sweep
run workers=1, 2                                   | write workers=1,2 without spaces
run task=resnet20 task=logreg                      | task is given twice
run seed=1 seed=2                                  | seed is given twice
run task.lr=0.3                                    | task.lr is 0.3
run task.batch_size=-5                             | task.batch_size
run task.goals=80                                  | task.goals
run hardware=local hardware.cpus=0                 | hardware.cpus
run hardware.price=3                               | hardware.price
run hardware.price.usd_per_hour=3                  | hardware.price.usd_per_hour
run backend.timeout_s=-1                           | backend.timeout_s
run ~task                                          | ~task
run =2                                             | '=2' is not of the form name=value
run scale=official data_root={tmp}                 | mlbench data prepare task=resnet20
sweep                                              |
sweep tsk=logreg workers=1,2                       | tsk is unknown: did you mean task?
sweep task=logreg,resnet workers=1                 | task=resnet is unknown
sweep task=logreg wrokers=1,2                      | did you mean workers?
sweep task=logreg workers=0,1                      | workers=0
sweep task=logreg workers=1, 2                     | write workers=1,2 without spaces
sweep task=logreg workers=1-4                      | write workers=range(1,5)
sweep task=logreg workers=1,2 max_usd=5            | hardware=local has none
sweep task=logreg workers=1,2 workers=4            | workers is given twice
sweep study=nosuch output_root={tmp}               | unknown study=nosuch
sweep --cfg job                                    | nothing to sweep over
sweep --dry workers=1,2                            | --dry is not an option of sweep
sweep task=logreg workers=1 output_root=/dev/null  | /dev/null
data                                               |
data lst                                           | did you mean list?
data lists                                         | did you mean list?
data task=logreg                                   | is not a sub-command of data
data prepare taks=logreg                           | taks is unknown: did you mean task?
data prepare logreg                                | write task=logreg
data prepare task=cifar10                          | task=cifar10 is unknown
data prepare task=logreg task.train_file=a.txt     | task.train_file
data verify data_root={tmp}/none                   | {tmp}/none
data verify task=resnet20 data_root={tmp}/none     | prepare task=NAME scale=SCALE data_root={tmp}/none
data list data_root=[1]                            | data_root
results                                            |
results lst                                        | did you mean list?
results --json                                     | results needs a sub-command
results show output_root={root}                    | show takes one RUN
results show nothing output_root={root}            | 'nothing'
results show 2026 output_root={root}               | '2026' matches 2 runs
results show last output_root={tmp}                | no finished run in {tmp}
results show last worker=2 output_root={root}      | results show has no setting worker
results show last --ful output_root={root}         | did you mean --full?
results list worker=2 output_root={root}           | did you mean workers?
results list sort=speed output_root={root}         | (--wide prints all)
results list last=few output_root={root}           | last=few is not a number of runs
results list study:none output_root={root}         | 'none'
results compare output_root={root}                 | compare takes two selections, A and B
results compare a-1 b-2 c-3 output_root={root}     | got a third: c-3
results compare a-1 none output_root={root}        | (mlbench results list output_root={root})
results compare a-1 a-1 output_root={root}         | is on both sides
results compare a-1 b-2 --fail-if-slower 5 output_root={root}  | got: 5
results compare a-1 b-2 --fail-if-slower           | --fail-if-slower
results compare a-1 b-2 --fail-if-slower=x% output_root={root} | got: x%
results compare a-1 b-2 --fail-if-slow 5%          | did you mean --fail-if-slower?
results export output_root={root}                  | name the runs
results export none output_root={root}             | matches none
results export 2026 to={tmp}/one.zip output_root={root}        | is one file for 2 runs
results export a-1 to=/dev/null/x output_root={root}           | to=/dev/null/x
results import                                     | (e.g. mlbench results import runs.zip)
results import /nowhere.zip output_root={tmp}      | /nowhere.zip
results import {file} output_root={tmp}            | no-archive.zip
results plot none output_root={root}               | matches none
results plot output_root={tmp}                     | no finished run in {tmp}
results plot a-1 to=/dev/null/x output_root={root} | /dev/null/x
results delete output_root={root}                  | name the runs
results delete none output_root={root}             | matches none
results delete a-1 output_root={root}              | deleting 1 run needs your confirmation
results sync here output_root={root}               | results sync takes no positional arguments, got: here
results sync worker=1 output_root={root}           | results sync has no setting worker
cluster                                            |
cluster begin                                      | 'begin' is not a sub-command of cluster
cluster strat                                      | did you mean start?
cluster start now                                  | cluster start takes no positional arguments, got: now
cluster start workers=2                            | cluster start has no setting workers
cluster stop --force                               | --force is not an option of cluster stop
"""
# The same of the plugins, each in its own folder.
MORE = "".join(path.read_text() for path in sorted(Path(__file__).parent.rglob("mistakes.txt")))
CASES = [
    tuple(part.strip() for part in line.rsplit("|", 1)) for line in (MISTAKES + MORE).strip().splitlines()
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("2026-a", 1), ("2026-b", 2)):
        run = Run(root, name=name, seed=seed)
        run.validate(90.0)
        run.end("goal_reached")
    empty = tmp_path_factory.mktemp("empty")
    (empty / "no-archive.zip").write_text("text")
    (empty / "broken").mkdir()
    (empty / "broken" / "mlflow.db").write_text("no database")
    return {"root": str(root), "tmp": str(empty), "file": str(empty / "no-archive.zip")}


def test_there_are_more_than_two_hundred_over_all_commands() -> None:
    assert len(CASES) == len(set(CASES)) > 200
    assert {line.split()[0] for line, _ in CASES} >= {"run", "sweep", "data", "results", "cluster"}


@pytest.mark.parametrize(("line", "part"), CASES, ids=[line for line, _ in CASES])
def test_a_mistake_is_one_sentence_that_names_the_field(
    line: str,
    part: str,
    places: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places["tmp"])
    monkeypatch.setattr(connection, "join", None)  # nothing starts Ray: a mistake is told before
    command, *arguments = shlex.split(line.format(**places))
    assert import_module(f"mlbench.{command}").main(arguments) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if not arguments:  # nothing was written: the help
        assert out.startswith(f"usage: mlbench {command}") and err == ""
        return
    messages = [line for line in err.splitlines() if line.startswith("mlbench: ")]
    assert len(messages) == 1 and part.format(**places) in messages[0], err
    others = [line for line in err.splitlines() if not line.startswith("mlbench: ")]
    assert all(line.startswith(("[", "2026-")) for line in others), "nothing else but progress and names"
    assert len(messages[0]) < 600, "a sentence, not a list of everything"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("RUN", "did you mean run?"),
        ("list", "mlbench results list"),
        ("compare a b", "did you mean mlbench results compare?"),
        ("task=logreg", "Write mlbench run task=logreg"),
        ("--verbose run", "Options follow the command"),
    ],
)
def test_a_command_that_is_not_there_is_one_sentence(
    line: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mlbench.__main__.main(line.split()) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("mlbench: ") and part in message
    assert mlbench.__main__.main(["help"]) == 0


@pytest.mark.parametrize(
    "command",
    ["run --dry-run", "sweep study=quick", "data list", "results list", "predict x", "cluster status"],
)
def test_a_current_folder_that_was_deleted_is_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert mlbench.__main__.main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "the current folder" in error


@pytest.mark.parametrize("word", ["output_root=résultats/ünïcode", "study=日本", "output_root=Größe 2"])
def test_names_in_any_script_are_accepted(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, _, value = word.partition("=")
    assert str(getattr(compose.compose([word]), name)) == value
    assert spec.sample_of(spec.read(["task=logreg", word]).output_settings)
    assert import_module("mlbench.run").main(["workers=1", "--dry-run", "--", word]) == 0


def test_a_word_nested_beyond_all_reason_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    deep = "[" * 3000 + "]" * 3000
    for line in (["run", f"workers={deep}"], ["sweep", "task=logreg", f"workers={deep}"]):
        assert mlbench.__main__.main(line) == 2
        assert len(capsys.readouterr().err) < 600


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: os.PathLike[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from mlbench import results

    file = f"{tmp_path}/file"
    open(file, "w").close()
    assert results.main(["export", "last", f"output_root={file}"]) == 2
    assert file in capsys.readouterr().err
