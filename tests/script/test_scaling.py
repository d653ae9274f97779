"""Whether a script's workers share a batch or have one each is told from what was measured."""

from types import SimpleNamespace
from typing import Any

import pytest

from mlbench.report import answers


def curve(rows: dict[int, int], **task: Any) -> Any:
    def point(workers: int) -> Any:
        experiment = SimpleNamespace(task=SimpleNamespace(name="script", **task))
        run = {"workers": workers, "steps": 10, "samples": 10 * rows[workers], "sample_unit": "rows"}
        return SimpleNamespace(records=[SimpleNamespace(experiment=experiment, **run)])

    return SimpleNamespace(points=[point(workers) for workers in rows])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({1: 32, 2: 64, 4: 127}, ". Weak scaling: each worker has 32 rows of a step"),
        ({2: 64, 4: 128}, ". Weak scaling: each worker has 32 rows of a step"),
        ({1: 64, 2: 64}, ". Strong scaling: the workers share the 64 rows of a step"),
        (
            {1: 64, 2: 96},
            ". Neither weak nor strong scaling: a step has 64 with 1 worker, 96 with 2 workers (rows)",
        ),
        ({2: 64}, ""),
    ],
)
def test_an_answer_tells_weak_from_strong_scaling(rows: dict[int, int], sentence: str) -> None:
    assert answers._scaling([curve(rows)]) == sentence
