"""What `python -m mlbench.results` prints, on folders that runs left."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driven import Run

from mlbench import events, record, results

# MLflow 3.17 uses what SQLAlchemy 2.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two finished runs, one that reached its goal."""
    good = Run(tmp_path, name="2026-a", seed=1)
    good.validate(88.0)
    good.end("goal_reached")
    bad = Run(tmp_path, name="2026-b", seed=2)
    bad.validate(50.0)
    bad.end("goal_not_reached")
    return tmp_path


def test_list_is_a_table_of_one_line_a_run(root: Path, capsys: Any) -> None:
    assert results.main(["list", f"output_root={root}"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["run", "task", "scale"]
    assert first.split()[:2] == ["2026-a-1", "logreg"] and "goal_reached" in first
    assert second.split()[:2] == ["2026-b-2", "logreg"] and "goal_not_reached" in second
    assert first.index("goal_reached") == heading.index("status")


def test_list_as_json_is_for_scripts(root: Path, capsys: Any) -> None:
    assert results.main(["list", f"output_root={root}", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["time_to_accuracy"], first["best"]) == ("2026-a-1", 4.0, 88.0)
    assert second["time_to_accuracy"] is None


def test_a_damaged_record_is_named_and_the_others_listed(root: Path, capsys: Any) -> None:
    broken = root / "2026-a-1" / "record.json"
    broken.write_text(broken.read_text()[:100])
    assert results.main(["list", f"output_root={root}"]) == 0
    shown = capsys.readouterr()
    assert str(broken) in shown.err
    assert len(shown.out.splitlines()) == 2


def test_a_reader_of_the_table_may_leave_early(root: Path) -> None:
    command = [sys.executable, "-m", "mlbench.results", "list", f"output_root={root}"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody_listens:
        ended = subprocess.run(command, stdout=nobody_listens, stderr=subprocess.PIPE, cwd=REPOSITORY)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_list_of_nothing_says_so(tmp_path: Path, capsys: Any) -> None:
    assert results.main(["list", f"output_root={tmp_path}"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "" and str(tmp_path) in shown.err


def test_show_takes_any_part_of_a_name_that_no_other_has(root: Path, capsys: Any) -> None:
    assert results.main(["show", "a-1", f"output_root={root}"]) == 0
    shown = capsys.readouterr().out
    assert "GOAL REACHED" in shown and str(root / "2026-a-1") in shown
    assert results.main(["show", "2026-b-2", f"output_root={root}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == "2026-b-2"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "nothing"], "no finished run 'nothing'"),
        (["show", "2026"], "'2026' is a part of 2 runs' names"),
        (["show"], "show takes RUN, given: nothing"),
        (["list", "here"], "list takes no further word, given: here"),
        (["list", "root=x"], "root is unknown"),
        (["list", "tracking_uri=x"], "tracking_uri is unknown"),
    ],
)
def test_mistakes_are_sentences_with_exit_code_2(
    root: Path, capsys: Any, words: list[str], told: str
) -> None:
    assert results.main([*words, f"output_root={root}"]) == 2
    assert told in capsys.readouterr().err


def test_help_names_every_command(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        results.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, command in results.COMMANDS.items():
        assert name in shown and command.about.split(";")[0] in shown


def test_sync_brings_each_run_once_and_counts(root: Path, capsys: Any) -> None:
    assert results.main(["sync", f"output_root={root}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-a-1: uploaded",
        "2026-b-2: uploaded",
        "2 uploaded",
    ]
    Run(root, name="2026-c", seed=3)
    damaged = Run(root, name="2026-d", seed=4)
    damaged.log.unlink()
    events.append(damaged.log, "run_configuration", damaged.start | {"experiment": {"tracking_uri": None}})
    assert results.main(["sync", f"output_root={root}", "--json"]) == 1
    found = {one["run_id"]: one["outcome"] for one in json.loads(capsys.readouterr().out)}
    assert list(found.values()) == ["present", "present", "uploaded", "failed"]
    assert record.load(root / "2026-c-3" / "record.json").status == "interrupted"


def test_a_store_that_is_down_is_one_sentence(root: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    uri = f"http://me:secret@127.0.0.1:{port}"
    assert results.main(["sync", f"output_root={root}", f"tracking_uri={uri}"]) == 2
    told = capsys.readouterr().err
    assert f"the MLflow store http://127.0.0.1:{port} does not answer" in told
    assert "secret" not in told
