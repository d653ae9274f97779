"""Records that were edited, copied, or have no log: what is said of each."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from driven import Run

import mlbench
from mlbench import results
from mlbench.config.errors import UserError
from mlbench.record import events, reader
from mlbench.record.build_record import verify_against_log


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a price that reached its goal at its second validation."""
    run = Run(tmp_path, "hardware=gcp_n1_standard_4", "backend=gloo")
    run.validate(50.0)
    run.validate(90.0)
    run.end("goal_reached")
    return run


def edited(run: Run, **changes: Any) -> Path:
    path = run.folder / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def changed(run: Run, name: str, factor: float) -> Any:
    """Return the field's value, where it is a number times the factor."""
    value = json.loads((run.folder / "record.json").read_text())[name]
    return factor * value if isinstance(value, float) else round(factor * value)


@pytest.mark.parametrize(
    "name",
    ["time_to_accuracy", "best", "epochs", "steps", "samples", "samples_per_s", "samples_per_s_per_worker",
     "wall", "workers"],
)  # fmt: skip
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_an_edited_headline_is_noticed_when_the_record_is_read(run: Run, name: str, factor: float) -> None:
    path = edited(run, **{name: changed(run, name, factor)})
    with pytest.raises(UserError, match="record.json was changed") as error:
        reader.load(path)
    assert name.removesuffix("_per_worker") in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "goal_not_reached", "time_to_accuracy": None},
        {"status": "goal_reached", "validations": [], "intervals": []},
        {"accuracy_after_time": 99.0},
        {"goal": {"metric": "accuracy", "target": 40.0, "direction": "max"}},
        {"cost": None},
        {"intervals": []},
    ],
)
def test_other_parts_that_do_not_fit_are_noticed(run: Run, change: dict[str, Any], as_stored: Any) -> None:
    values = json.loads((run.folder / "record.json").read_text())
    if change == {"intervals": []}:
        change = {"intervals": values["intervals"][:1]}
    with pytest.raises(UserError, check=as_stored):
        reader.load(edited(run, **change))


def test_no_command_uses_an_edited_record(run: Run, tmp_path: Path, capsys: Any) -> None:
    edited(run, time_to_accuracy=0.5)
    where = f"output_root={tmp_path}"
    for arguments, code in (
        (["list"], 0),
        (["show", "last"], 2),
        (["compare", "workers=2", "run"], 2),
        (["plot"], 2),
        (["export", "run"], 2),
        (["verify"], 1),
    ):
        assert results.main([*arguments, where]) == code, arguments
        shown = capsys.readouterr()
        assert "time_to_accuracy is 0.5, " in shown.err and " make 8" in shown.err
        assert "500 ms" not in shown.out
    assert mlbench.load_runs(tmp_path).empty
    assert "was changed or" in capsys.readouterr().out


def test_verify_derives_every_number_from_the_logs(run: Run, tmp_path: Path, capsys: Any) -> None:
    where = f"output_root={tmp_path}"
    assert results.main(["verify", where]) == 0
    assert capsys.readouterr().out.splitlines() == ["run-7: as logged", "1 as logged"]
    edited(run, train_time=0.001)  # no other field of the record tells it
    assert reader.load(run.folder / "record.json").train_time == 0.001
    assert results.main(["verify", where, "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["outcome"] == "different" and "train_time of" in row["why"]
    run.log.unlink()
    assert results.main(["verify", "workers=2", where]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "run-7: without a log"
    assert results.main(["verify", "workers=3", where]) == 2


@pytest.mark.parametrize(
    ("later", "outcome"), [("0.2.1", "different"), ("0.3.0.dev0", "not checked"), ("0.3.0", "not checked")]
)
def test_a_later_version_checks_the_runs_of_an_earlier_one(
    later: str, outcome: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """It may word the reasons against official otherwise; what it derives otherwise it does not judge."""
    monkeypatch.setattr(mlbench, "__version__", "0.2.0")
    run = Run(tmp_path)
    run.validate(90.0)
    made = run.end("goal_reached")
    monkeypatch.setattr(mlbench, "__version__", later)
    edited(run, official_reasons=["in other words"])
    assert made.official_reasons and reader.verdict(run.folder) == ("as logged", "")
    edited(run, train_time=0.001)
    assert reader.verdict(run.folder)[0] == outcome
    without = made.model_copy(update={"official_reasons": []})
    with pytest.raises(UserError, match="official_reasons of"):
        verify_against_log(without, events.read(run.log))


def test_a_copied_folder_is_said_to_be_one(run: Run, tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(run.folder, copy / run.folder.name)
    assert results.main(["list", f"output_root={tmp_path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["source"] == "mlbench"
    assert results.main(["list", f"output_root={copy}"]) == 0
    shown = capsys.readouterr()
    assert (
        shown.out.split()[-1] == "copied" and "1 of 1 run (" in shown.err and "(source=copied)" in shown.err
    )
    assert results.main(["show", "last", f"output_root={copy}"]) == 0
    assert "recorded in" in " ".join(capsys.readouterr().out.split())
    assert reader.load(copy / run.folder.name / "record.json").recorded_in == str(tmp_path)
    assert results.main(["list", "source=copied", f"output_root={copy}"]) == 0
    assert results.main(["verify", f"output_root={copy}"]) == 0
    copy.rename(tmp_path / "runs")
    (tmp_path / "link").symlink_to(tmp_path)
    linked = tmp_path / "link" / run.folder.name / "record.json"
    assert reader.load(linked).origin == "mlbench", "another name of the same folder"


def test_a_diverged_run_whose_value_meets_the_goal_contradicts_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.validate(90.0)
    log = events.read(run.log)
    log[-1]["value"] |= {"goal_reached": False, "metrics": log[-1]["value"]["metrics"] | {"loss": None}}
    run.log.write_text("".join(json.dumps(event) + "\n" for event in log))
    record = run.end("diverged")
    assert (record.status, record.time_to_accuracy) == ("diverged", None)
    assert not [caveat for caveat in record.caveats if "contradict" in caveat]
    assert reader.verdict(run.folder) == ("as logged", "")
