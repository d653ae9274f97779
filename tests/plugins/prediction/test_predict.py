"""What `python -m mlbench.predict` prints, on records and studies that lie in a folder."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import prediction
import pytest
import sample
from conftest import ROOT
from records import save
from syrupy.assertion import SnapshotAssertion
from worlds import World, as_record

from mlbench import predict
from mlbench.plugins.prediction.forecast import leave_one_out
from mlbench.plugins.prediction.model import from_records
from mlbench.record import events, reader, run_folders, study
from mlbench.terminal import completion

WORLD = World(grows=True, batch=32, alpha=1e-3)


def lay(
    root: Path, world: World, *overrides: str, counts: tuple[int, ...] = (1, 2, 4), repeats: int = 3
) -> None:
    """Write a folder with a record for each run of a world."""
    runs = world.measure(counts, repeats=repeats, noise=0.02, luck=0.03).runs
    for seed, run in enumerate(runs, start=len(list(root.glob("*")))):
        # A point's key is its configuration's; here the words and the workers stand for it.
        record = as_record(run, *overrides, seed=seed, key=f"{'-'.join(overrides)}-{run.workers}")
        folder = root / record.run_id
        folder.mkdir()
        save(record, folder)


def planned(root: Path, *choices: tuple[str, ...], counts: tuple[int, ...] = (1, 2, 4)) -> None:
    """Write a study `scaling` of these experiments, each at three worker counts with three runs."""
    points = []
    for position, overrides in enumerate(choices):
        lay(root, WORLD, *overrides, counts=counts)
        for index, workers in enumerate(counts):
            first = 9 * position + 3 * index
            key = f"{'-'.join(overrides)}-{workers}"
            points.append(
                study.StudyPoint(key=key, overrides=overrides, seeds=tuple(range(first, first + 3)))
            )
    plan = study.new("scaling", question="?").model_copy(update={"points": tuple(points)})
    folder = study.folder(root, "scaling")
    study.save(plan, folder)
    for trial in study.trials(plan):
        events.append(folder / study.LOG, study.STARTED, {"trial": trial.id})


class Today(datetime.date):
    """The day of the test: prices age."""

    @classmethod
    def today(cls) -> "Today":
        return cls(2026, 11, 24)


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlbench.plugins.prediction.command.date", Today)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A study of two backends in a folder of runs."""
    planned(tmp_path, ("hardware=gcp_n1_t4",), ("hardware=gcp_n1_t4", "backend=nccl"))
    return tmp_path


def ask(root: Path, *arguments: str) -> int:
    return predict.main([*arguments, f"output_root={root}"])


def test_a_study_is_predicted_in_a_table_and_sentences(root: Path, capsys: Any) -> None:
    assert ask(root, "scaling", "backend=gloo", "max_workers=64", "deadline=1h", "budget=5") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0] == "scaling" and "Emulated" not in shown
    assert re.split(r"\s{2,}", lines[2].strip())[:4] == ["workers", "measured", "predicted", "95 % interval"]
    assert [line.split()[0] for line in lines[3:10]] == ["1", "2", "4", "8", "16", "32", "64"]
    for start in ("Fastest: ", "Cheapest: ", "Deadline of 1 h 00 min: ", "Budget of 5.00 USD: "):
        assert any(line.startswith(start) for line in lines), start
    assert "9 runs at 1, 2, 4 workers" in shown
    assert "12.0 s (median)" in shown
    assert any(line.startswith("Leave one out") for line in lines)


@pytest.mark.slow
def test_a_prediction_from_emulated_hosts_says_so_first(tmp_path: Path, capsys: Any) -> None:
    planned(tmp_path, ("network=100mbit_5ms",), counts=(2, 4, 8))
    assert ask(tmp_path, "scaling", "max_workers=8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("Emulated: ") and "(100 Mbit/s and 5 ms)" in lines[1]
    assert ask(tmp_path, "scaling", "network=10gbit,50us", "--json") == 0
    first = json.loads(capsys.readouterr().out)["sentences"][0]
    assert first.startswith("Emulated: ") and "10gbit,50us" in first


def test_json_has_the_numbers_of_the_table(root: Path, capsys: Any) -> None:
    assert ask(root, "scaling", "backend=gloo", "max_workers=8", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert [prediction["workers"] for prediction in output["predictions"]] == [1, 2, 4, 8]
    eight = output["predictions"][-1]
    assert eight["time_s"]["value"] == pytest.approx(WORLD.run(8).total_s, rel=0.15)
    assert eight["time_s"]["low"] < WORLD.run(8).total_s < eight["time_s"]["high"]
    assert eight["cost_usd"]["value"] == pytest.approx(8 * eight["time_s"]["value"] / 3600 * 0.54)
    assert [prediction["workers"] for prediction in output["leave_one_out"]] == [1, 2, 4]
    assert {answer["question"] for answer in output["advice"]} == {"fastest", "cheapest"}


def test_runs_can_be_named_one_by_one_and_some_held_out(root: Path, capsys: Any) -> None:
    names = [f"resnet20-w{workers}-{seed:x}" for workers, seed in ((1, 0), (2, 3), (4, 6))]
    assert ask(root, *names, "workers=1,2", "max_workers=4") == 0
    shown = capsys.readouterr().out
    assert "* measured" in shown
    assert re.search(r": 4 workers [+-]\d", shown)


def test_other_hardware_and_an_allreduce_run_as_network(root: Path, capsys: Any) -> None:
    line = {"kind": "fit", "collective": "all_reduce", "dtype": "float32", "workers": 2}
    line |= {"alpha_s": 2e-5, "beta_s_per_byte": 1e-10}
    for name, table in (("allreduce", [line]), ("resnet50", [{"kind": "decoding", "images": 256}])):
        folder = root / f"2026-{name}-w2-ff"
        folder.mkdir()
        save(as_record(WORLD.run(2), run_id=folder.name, table=table), folder)
    assert ask(root, "scaling", "backend=gloo", "network=2026-resnet50") == 2  # a table of another task
    assert "bandwidth of all_reduce" in capsys.readouterr().err
    arguments = ["scaling", "backend=gloo", "hardware=gcp_a2_highgpu_1g", "max_workers=8"]
    arguments.append("network=2026-allreduce")
    assert ask(root, *arguments, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    eight = output["predictions"][-1]
    assert eight["measured_s"] is None
    assert eight["cost_usd"]["value"] == pytest.approx(8 * eight["time_s"]["value"] / 3600 * 3.673)
    share = WORLD.batch * WORLD.a_sample + WORLD.fixed + WORLD.optimizer
    exposed = 2 * 7 * 1e-5 + 2 * 7 / 8 * 4e6 * 1e-10
    peaks = 19.5e12 / 8.1e12  # fp32, of an A100 and a T4
    assert eight["step_s"] == pytest.approx(share / peaks + WORLD.batch * WORLD.data_wait + exposed, rel=0.05)
    assert any("gcp_n1_t4 to gcp_a2_highgpu_1g" in sentence for sentence in output["sentences"])


@pytest.mark.slow
def test_a_missed_goal_is_no_error_and_its_json_is_json(tmp_path: Path, capsys: Any) -> None:
    lay(tmp_path, WORLD, counts=(1, 2, 4))
    names = [path.name for path in tmp_path.glob("2026*")]
    for name in names:
        if "-w4-" in name:
            record = reader.load(tmp_path / name / "record.json")
            missed = {"status": "goal_not_reached", "time_to_accuracy": None}
            save(record.model_copy(update=missed), tmp_path / name)

    def no_json(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert ask(tmp_path, *names, "max_workers=4", "--json") == 0
    output = json.loads(capsys.readouterr().out, parse_constant=no_json)
    infinite = [prediction["measured_s"] == "infinite" for prediction in output["predictions"]]
    assert infinite == [False, False, True]
    assert ask(tmp_path, *names, "workers=1,2", "max_workers=4", "--json") == 0
    output = json.loads(capsys.readouterr().out, parse_constant=no_json)
    assert output["held_out"] == []
    assert ask(tmp_path, *names, "workers=1,2", "max_workers=4") == 0
    shown = capsys.readouterr().out
    assert "missed *" in shown and "Measured, but" not in shown


def test_the_figure_shows_band_and_runs(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    assert ask(root, "scaling", "backend=gloo", f"plot={path}") == 0
    assert path.read_bytes().startswith(b"\x89PNG") and len(path.read_bytes()) > 10_000


def test_the_documented_tables_are_what_the_command_prints(tmp_path: Path, capsys: Any) -> None:
    documented = (ROOT / "docs" / "prediction-model.md").read_text()
    for task in ("gnmt", "transformer"):
        assert ask(tmp_path, f"published:{task}", "workers=1,2,4", "max_workers=16") == 0
        for line in capsys.readouterr().out.splitlines()[2:9]:
            # The ends of intervals are quantiles of draws, whose last digit may differ between processors.
            assert line.split("  95 %")[0][:35].rstrip() in documented


def examples() -> list[str]:
    """Return the command lines that the help and the documentation show as examples."""
    lines = [line.strip() for line in (ROOT / "docs" / "prediction.md").read_text().splitlines()]
    shown = predict.COMMAND.verbs[""].help.replace("\\\n", "")
    lines += [line.strip() for line in shown.splitlines()]
    typed = re.compile(r"(?:python -m mlbench\.|mlbench )predict (.*)")
    found = [" ".join(match[1].split()) for line in lines if (match := typed.fullmatch(line))]
    return list(dict.fromkeys(found))


@pytest.mark.slow
def test_the_documented_examples_work_on_a_study_of_several_tasks(tmp_path: Path, capsys: Any) -> None:
    planned(tmp_path, (), ("task=logreg",))
    assert ask(tmp_path, "scaling") == 2, "the shipped study has several tasks as well"
    assert "runs of 2 tasks" in capsys.readouterr().err
    assert len(examples()) == 5
    for example in examples():
        assert ask(tmp_path, *example.split()) == 0, example
        assert re.search("^(Fastest:|Deadline of) ", capsys.readouterr().out, re.M), example


OFFERED = ["aws_g4dn_xlarge", "aws_p4d_24xlarge", "gcp_a2_highgpu_1g", "gcp_g2_standard_4", "gcp_n1_t4"]


def test_all_profiles_are_cost_against_time(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("mlbench.plugins.prediction.forecast.compose.choices", lambda group: OFFERED)
    arguments = ["published:gnmt", "hardware=all", "max_workers=16", "network=25gbit,30us"]
    assert ask(tmp_path, *arguments, "deadline=4h", "budget=1", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    offers = [
        (offer["forecast"]["time_s"]["value"], offer["forecast"]["cost_usd"]["value"], offer["dominated"])
        for offer in output["offers"]
    ]
    assert offers == sorted(offers) and len(offers) == 15  # 1, 2, 4, 8 and 16 on each of three
    for time, usd, dominated in offers:
        better = [(t, u) for t, u, _ in offers if t <= time and u <= usd and (t, u) != (time, usd)]
        assert dominated is bool(better)
    assert output["refused"] == snapshot
    in_time, for_money = output["advice"]
    cheapest = min(usd for time, usd, _ in offers if time <= 4 * 3600)
    assert f"{cheapest:.2f} USD" in in_time["sentence"] and in_time["question"] == "deadline"
    assert for_money["workers"] is None and for_money["question"] == "budget"
    assert ask(tmp_path, *arguments[:-1]) == 0
    shown = capsys.readouterr().out
    assert "with more than 8 workers" in shown and "with more than 1 worker" in shown  # no network of p4d, a2
    assert (
        shown.count("never advice.") == 1
    )  # the fastest is on another processor, the cheapest on the measured
    fitted = "Fitted on 5 runs at 1, 2, 4, 8, 16 workers."
    assert fitted in output["sentences"] and fitted in shown.splitlines()
    share = "Its line rate is reached to the same share as the runs reached of 7.5 Gbit/s"
    assert any(share in sentence for sentence in output["sentences"])


def test_all_profiles_are_offered_on_spot_nodes_too(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlbench.plugins.prediction.forecast.compose.choices", lambda group: OFFERED[-1:])
    monkeypatch.setattr("mlbench.plugins.prediction.forecast.DRAWS", 100)
    picture = tmp_path / "frontier.png"
    arguments = ["published:gnmt", "hardware=all", "max_workers=4", "spot=0.05", "restart=5min"]
    assert ask(tmp_path, *arguments, f"plot={picture}", "--json") == 0
    offers = {
        (offer["hardware"], offer["forecast"]["workers"]): offer["forecast"]
        for offer in json.loads(capsys.readouterr().out)["offers"]
    }
    assert len(offers) == 6 and picture.read_bytes().startswith(b"\x89PNG")
    for workers in (1, 2, 4):
        calm, spot = offers["gcp_n1_t4", workers], offers["gcp_n1_t4, spot", workers]
        assert spot["time_s"]["value"] > calm["time_s"]["value"]
        assert spot["cost_usd"]["value"] < calm["cost_usd"]["value"]


def test_a_run_on_spot_nodes_has_a_checkpoint_an_epoch(tmp_path: Path, capsys: Any) -> None:
    # 3.9 to 4.3 epochs
    arguments = ["published:gnmt", "max_workers=2", "spot=0.05", "restart=5min", "--json"]
    assert ask(tmp_path, *arguments) == 0
    sentences = json.loads(capsys.readouterr().out)["sentences"]
    assert any("5 checkpoints after 5 min" in text for text in sentences)


def test_each_count_of_a_study_of_one_s_own_is_predicted_from_the_others(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    planned(tmp_path, ())
    rows = list(prediction.own(["scaling"], tmp_path))
    assert [row.case for row in rows] == snapshot
    records = run_folders.study(tmp_path, "scaling")
    left_out = leave_one_out(from_records(records, title="scaling"))
    for row, error in zip(rows, left_out, strict=True):
        assert (row.predicted, row.measured) == (pytest.approx(error.predicted_s), (error.measured_s,))
        assert row.low < WORLD.run(error.workers).total_s < row.high and row.inside


def test_links_that_no_profile_states_are_given_on_the_command_line(tmp_path: Path, capsys: Any) -> None:
    arguments = ["published:gnmt", "hardware=aws_p4d_24xlarge", "max_workers=16"]
    for field, value in (("network_gbit_per_s", "400"), ("network_us", "20")):
        assert ask(tmp_path, *arguments) == 2
        assert f"no hardware.{field} " in capsys.readouterr().err
        arguments.append(f"hardware.{field}={value}")
    assert ask(tmp_path, *arguments, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    eight, sixteen = output["predictions"][-2:]
    assert (eight["workers"], sixteen["workers"]) == (8, 16)
    assert sixteen["communication_share"] > 3 * eight["communication_share"] > 0
    assert any("factor of 5.2" in text and "df = 11" in text for text in output["sentences"])
    assert {answer["workers"] for answer in output["advice"]} == {None}


@pytest.mark.parametrize(
    "arguments",
    [
        ["resnet20"],
        ["scaling"],
        ["scaling", "backend=mpi"],
        ["scaling", "task=gnmt"],
        ["scaling", "backend=gloo", "workers=1"],
        ["scaling", "backend=gloo", "workers=1,3"],
        ["scaling", "backend=gloo", "hardware=local"],
        ["published:transformer", "network=10gbit,20us"],
    ],
)
def test_mistakes_are_sentences_with_exit_code_2(
    root: Path, capsys: Any, arguments: list[str], snapshot: SnapshotAssertion
) -> None:
    assert ask(root, *arguments) == 2
    shown = capsys.readouterr()
    assert shown.err == snapshot and len(shown.err.splitlines()) == 1


@pytest.mark.slow
def test_where_no_profile_can_be_predicted_the_reasons_are_a_mistake(tmp_path: Path, capsys: Any) -> None:
    """The sample's machine states no peak; a table without rows came, and exit code 0."""
    root = sample.copy(tmp_path / "runs")
    assert ask(root, sample.STUDY, "task=resnet20", "hardware=all") == 2
    shown = capsys.readouterr()
    assert "peak in fp32" in shown.err and not shown.out


def test_a_damaged_record_is_named(root: Path, capsys: Any) -> None:
    broken = next(root.glob("*w1-0/record.json"))
    broken.write_text("{")
    assert ask(root, "resnet20-w1-0", "resnet20-w2-3") == 2
    assert f"{broken} is damaged" in capsys.readouterr().err


def test_runs_without_a_plan_that_say_that_they_are_of_a_study_are_predicted_from(
    tmp_path: Path, capsys: Any
) -> None:
    lay(tmp_path, WORLD, "study=tutorial")
    for word in ("tutorial", "study:tutorial"):
        assert ask(tmp_path, word) == 0
        assert "predicted" in capsys.readouterr().out


def test_profiles_and_studies_are_completed(root: Path) -> None:
    assert completion.replies("zsh", "mlbench predict on=gcp_n1_t", ["predict"]) == ["on=gcp_n1_t4 "]
    line = f"mlbench predict output_root={root} sc"
    assert completion.replies("zsh", line, ["predict"]) == ["scaling "]
