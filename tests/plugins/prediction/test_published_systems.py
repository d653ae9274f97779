"""`mlbench.predict published:...` on others' systems, as it is typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mlbench import predict, results
from mlbench.analysis import published_results
from mlbench.analysis.systems import SystemsModel

NEBIUS = ("published:mlperf", "task=llama31_8b", "on=nebius_b200_n4")
TABLE = Path(published_results.FOLDER) / "mlperf-training-v5.1-part.csv"


def printed(capsys: Any, *words: str) -> list[dict[str, str]]:
    assert predict.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["predictions"]


def test_more_nodes_of_a_published_system_are_predicted_from_its_sizes(capsys: Any) -> None:
    rows = printed(capsys, *NEBIUS)
    assert [row["accelerators"] for row in rows] == ["64 B200", "128 B200", "256 B200"]
    assert {row["from"] for row in rows} == {"two sizes"}
    assert predict.main([*NEBIUS]) == 0
    assert "published by Nebius" in capsys.readouterr().out.splitlines()[0]


def test_a_table_and_what_was_imported_from_it_predict_as_what_ships(tmp_path: Path, capsys: Any) -> None:
    shipped = printed(capsys, *NEBIUS, "max_workers=64")
    assert printed(capsys, f"published:{TABLE}", *NEBIUS[1:], "max_workers=64") == shipped
    root = f"output_root={tmp_path}"
    assert results.main(["import", "published", str(TABLE), root]) == 0
    capsys.readouterr()
    assert printed(capsys, "published:imported", *NEBIUS[1:], "max_workers=64", root) == shipped


def test_another_accelerator_is_predicted_without_results_on_it(capsys: Any) -> None:
    rows = printed(capsys, *NEBIUS, "hardware=GB300", "max_workers=32")
    assert [(row["accelerators"], row["from"]) for row in rows] == [("32 GB300", "accelerator")]


def test_a_target_is_known_to_nobody() -> None:
    rows = published_results.shipped()[-40:]
    target = rows[5]
    alone = SystemsModel(rows).forecasts(6)
    assert [one.minutes for one in SystemsModel(rows, targets=[target]).forecasts(6)] == pytest.approx(
        [one.minutes for one in alone]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["published:nowhere.csv"],
        ["published:mlperf"],
        [*NEBIUS[:2], "on=nebius_b200_n5"],
        [*NEBIUS, "hardware=abacus"],
        [*NEBIUS, "max_workers=32"],
        [*NEBIUS, "deadline=8h"],
    ],
)
def test_a_mistake_is_a_sentence(capsys: Any, words: list[str], snapshot: SnapshotAssertion) -> None:
    assert predict.main(words) == 2
    error = capsys.readouterr().err
    assert error == snapshot and len(error.splitlines()) == 1
