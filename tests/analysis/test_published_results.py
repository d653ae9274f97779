"""Others' results: MLPerf's folders, speedrun logs and tables, as a user imports them."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlbench import results
from mlbench.analysis import published_records, published_results
from mlbench.record import run_folders

START_MS = 1_726_859_868_707
SYSTEM = {
    "submitter": "Acme",
    "division": "closed",
    "number_of_nodes": "2",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
    "accelerator_interconnect": "NVLINK Gen4",
    "host_networking": "8x 400Gb/s",
    "framework": "PyTorch 2.4",
}


def line(ms: int, key: str, value: Any = None, prefix: str = "", **about: Any) -> str:
    event = {"namespace": "", "time_ms": START_MS + ms, "event_type": "POINT_IN_TIME", "key": key}
    return f"{prefix}:::MLLOG {json.dumps(event | {'value': value, 'metadata': about})}"


def log(seconds: float, *, status: str = "success", samples: int | None = 3200, prefix: str = "") -> str:
    about = {} if samples is None else {"samples_count": samples}
    end = round(1000 * seconds)
    lines = [
        "warming up \N{SNOWMAN}",
        line(-9000, "submission_benchmark", "llama2_70b_lora", prefix),
        line(-8000, "global_batch_size", 16, prefix),
        line(0, "run_start", None, prefix),
        line(end // 2, "tracked_stats", {"throughput": 2.5}, prefix),
        line(end // 2, "eval_accuracy", 0.95, prefix, **about),
        line(end, "eval_accuracy", 0.92, prefix, **about),
        line(end, "run_stop", None, prefix, status=status, **about),
    ]
    return "\n".join(lines) + "\n"


def submission(root: Path, *logs: str, system: dict[str, str] | None = None) -> Path:
    folder = root / "Acme" / "results" / "box_n2" / "llama2_70b_lora"
    folder.mkdir(parents=True)
    for i, text in enumerate(logs):
        (folder / f"result_{i}.txt").write_text(text, "utf-8")
    systems = root / "Acme" / "systems"
    systems.mkdir()
    (systems / "box_n2.json").write_text(json.dumps(SYSTEM if system is None else system))
    return folder


def imported(root: Path, *words: str) -> int:
    return results.main(["import", "published", *words, f"output_root={root / 'runs'}"])


def test_a_folder_of_mlperf_is_the_olympic_mean_of_its_runs(tmp_path: Path) -> None:
    seconds = (600, 660, 720, 780, 1800)
    folder = submission(tmp_path, *(log(s, prefix="0: " if s > 700 else "") for s in seconds))
    (found,) = published_results.read(folder)
    row = found.result
    assert row.minutes_mean_of_middle == pytest.approx((660 + 720 + 780) / 3 / 60)
    assert (row.minutes_min, row.minutes_max, row.runs, row.of) == (10, 30, 5, 5)
    assert (row.submitter, row.system, row.benchmark) == ("Acme", "box_n2", "llama2_70b_lora")
    assert (row.accelerators, row.global_batch, row.samples_to_goal, row.throughput) == (16, 16, 3200, 2.5)
    assert [run.begun for run in found.runs] == [START_MS / 1e3] * 5
    assert found.runs[0].evaluations[0] == (300.0, 3200, 0.95)


def test_imported_runs_are_marked_and_imported_once(tmp_path: Path, capsys: Any) -> None:
    folder = submission(tmp_path, log(600), log(660, samples=None), log(60, status="aborted"))
    words = (str(folder.parents[2]), "licence=Apache-2.0", "source=acme/results, commit 1", "round=4.1")
    assert imported(tmp_path, *words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 imported"
    assert imported(tmp_path, *words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 present"
    records = list(run_folders.readable(tmp_path / "runs"))
    assert {run.source for run in records} == {"published by Acme"}
    mark = "published by Acme, not measured here: acme/results, commit 1; licence: Apache-2.0"
    assert all(run.caveats == [mark] and not run.eligible for run in records)
    assert sorted((run.status, run.time_to_accuracy) for run in records) == [
        ("goal_not_reached", None),
        ("goal_reached", 600.0),
        ("goal_reached", 660.0),
    ]
    assert {run.started_at for run in records} == {"2024-09-20T19:17:48.707+00:00"}
    assert published_records.result_of(records[0]) == published_records.result_of(records[1])
    root = f"output_root={tmp_path / 'runs'}"
    assert results.main(["show", records[0].run_id, root]) == 0
    assert "published by Acme" in capsys.readouterr().out
    assert results.main(["list", "source=published by Acme", root]) == 0


def test_published_results_get_no_verdict(tmp_path: Path, capsys: Any) -> None:
    folder = submission(tmp_path, *(log(s) for s in (600, 601, 602, 603)))
    assert imported(tmp_path, str(folder)) == 0
    table = tmp_path / "other.csv"
    table.write_text(
        "submitter,system,benchmark,accelerator,nodes,accelerators_per_node,minutes_mean_of_middle\n"
        + "".join(f"Acme,box,llama2_70b_lora,NVIDIA H100,1,8,{20 + i / 100}\n" for i in range(4))
    )
    assert imported(tmp_path, str(table)) == 0
    capsys.readouterr()
    root = f"output_root={tmp_path / 'runs'}"
    assert results.main(["compare", "workers=16", "workers=8", root, "--json", "--fail-if-slower", "5%"]) == 3
    (pair, *_) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["verdict"] == "no verdict" and "published" in pair["why"]


SPEEDRUN = """step:0/1750 val_loss:10.8258 train_time:0ms step_avg:0.02ms
step:125/1750 train_time:11000ms step_avg:88.00ms
step:1625/1750 val_loss:3.3104 train_time:140000ms step_avg:86.15ms
step:1750/1750 val_loss:3.2774 train_time:150373ms step_avg:85.93ms
"""
ABOUT = ("submitter=Keller", "benchmark=fineweb-3.28", "accelerator=NVIDIA H100", "nodes=1")


def test_a_speedrun_ends_at_its_last_validation(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "run1.txt"
    path.write_text(SPEEDRUN)
    assert imported(tmp_path, str(path), *ABOUT, "accelerators_per_node=8", "licence=MIT") == 0
    (record,) = run_folders.readable(tmp_path / "runs")
    assert record.time_to_accuracy == 150.373 and record.workers == 8
    assert [point.metrics["evaluation"] for point in record.validations] == [10.8258, 3.3104, 3.2774]
    assert record.source == "published by Keller" and "licence: MIT" in record.caveats[0]


HEAD = "submitter,system,benchmark,accelerator,nodes,accelerators_per_node,minutes_mean_of_middle"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.csv", "submitter,sytem\nA,b\n", "line 1: unknown column 'sytem'"),
        ("a.csv", "submitter,system\nA,b\n", "line 1: no column benchmark"),
        (
            "a.csv",
            f"{HEAD}\nA,b,c,H100,1,8,12.5\nA,b,c,H100,1,8,soon\n",
            "line 3: minutes_mean_of_middle=soon",
        ),
        ("a.csv", f"{HEAD}\nA,b,c,H100,1,8,-1\n", "line 2: minutes_mean_of_middle=-1"),
        ("a.csv", f"{HEAD}\nA,b,c,H100,1,8,nan\n", "line 2: minutes_mean_of_middle=nan"),
        ("a.csv", f"{HEAD}\nA,b,c,H100,0,8,1\n", "line 2: nodes=0"),
        ("a.csv", f"{HEAD}\nA,b,c,H100,1,8\n", "line 2: not 7 cells"),
        ("a.csv", f"{HEAD}\nA,,c,H100,1,8,1\n", "line 2: system is missing"),
        ("a.csv", f"{HEAD}\n", "has no rows"),
        ("a.csv", "", "line 1: no column submitter"),
        ("a.log", "hello\n", "none of its 1 lines is a result"),
        ("a.log", SPEEDRUN.rpartition("step:1750")[0], "the last validation is of step 1625 of 1750"),
        ("a.log", SPEEDRUN, "submitter is missing"),
    ],
)
def test_a_bad_file_gets_a_sentence_with_its_line(
    tmp_path: Path, capsys: Any, name: str, text: str, sentence: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert imported(tmp_path, str(path)) == 2
    error = capsys.readouterr().err
    assert sentence in error and str(path) in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("lines", "letters", "sentence"),
    [(8, -40, "line 8 is cut or damaged"), (7, None, "no run_stop"), (3, None, "no run_start")],
)
def test_a_cut_log_of_mlperf_is_refused(
    tmp_path: Path, capsys: Any, lines: int, letters: int | None, sentence: str
) -> None:
    folder = submission(tmp_path, "\n".join(log(600).splitlines()[:lines])[:letters])
    assert imported(tmp_path, str(folder)) == 2
    error = capsys.readouterr().err
    assert sentence in error and "result_0.txt" in error


def test_what_is_missing_is_a_sentence(tmp_path: Path, capsys: Any) -> None:
    folder = submission(tmp_path, log(600, status="aborted"))
    assert imported(tmp_path, str(folder)) == 2
    assert "none of 1 runs" in capsys.readouterr().err
    (tmp_path / "Acme" / "systems" / "box_n2.json").unlink()
    assert imported(tmp_path, str(folder)) == 2
    assert "box_n2.json: No such" in capsys.readouterr().err
    assert imported(tmp_path, str(tmp_path / "nowhere")) == 2
    assert imported(tmp_path) == 2
    assert imported(tmp_path, str(tmp_path / "Acme" / "systems")) == 2
    assert "has no result_*.txt" in capsys.readouterr().err.splitlines()[-1]
    assert results.main(["import", "x.zip", "licence=MIT", f"output_root={tmp_path}"]) == 2


def test_the_shipped_results_are_of_the_closed_division_and_named_once() -> None:
    rows = published_results.shipped()
    names = [(row.round, row.submitter, row.system, row.benchmark) for row in rows]
    assert len(rows) == len(set(names)) == 439
    assert {row.division for row in rows} == {"closed"}
    assert published_results.with_shipped(rows) == list(rows)
