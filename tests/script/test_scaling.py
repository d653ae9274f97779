"""Whether a script's workers share a batch or have one each is told from what was measured."""

from types import SimpleNamespace
from typing import Any

import pytest

from mlbench.report import summary


def curve(rows: dict[int, int], **task: Any) -> Any:
    def point(workers: int) -> Any:
        experiment = SimpleNamespace(task=SimpleNamespace(name="script", **task))
        run = {"workers": workers, "steps": 10, "samples": 10 * rows[workers], "sample_unit": "rows"}
        return SimpleNamespace(records=[SimpleNamespace(experiment=experiment, **run)])

    return SimpleNamespace(points=[point(workers) for workers in rows])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({1: 32, 2: 64, 4: 127}, "; weak scaling: each worker has 32 rows of a step"),
        ({2: 64, 4: 128}, "; weak scaling: each worker has 32 rows of a step"),
        ({1: 64, 2: 64}, "; strong scaling: the workers share the 64 rows of a step"),
        (
            {1: 64, 2: 96},
            "; neither weak nor strong scaling: a step has 64 with 1 worker, 96 with 2 workers (rows)",
        ),
        ({2: 64}, ""),
    ],
)
def test_an_answer_tells_weak_from_strong_scaling(rows: dict[int, int], sentence: str) -> None:
    assert summary._scaling([curve(rows)]) == sentence


def test_a_task_that_states_its_batch_needs_no_such_sentence() -> None:
    assert summary._scaling([curve({1: 32, 2: 64}, batch_size=32)]) == ""
