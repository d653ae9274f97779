"""The original's readers still understand our result line."""

import re
from pathlib import Path

import pytest
from driven import Run

from mlbench.config.goal import Goal
from mlbench.tracking.run_files import official_result

PART = r"\d+(?:\.\d+)? seconds"
# As in all published downloads of MLBench, e.g. 80% Top 1 Validation Accuracy reached in 106.912 seconds, ...
LINE = re.compile(
    r"(?P<goal>.+) reached in (?P<total>\d+\.\d{3}) seconds, "
    rf"Compute: (?P<compute>{PART}), Communication: (?P<communication>{PART}), "
    rf"Metrics Computation: (?P<metrics>{PART}), Pre-processing: (?P<loading>{PART})"
)


def test_a_reached_goal_is_told_as_the_original_told_it(tmp_path: Path) -> None:
    run = Run(tmp_path, "goal=80", "division=open")
    run.validate(70.0)
    run.validate(81.0)
    record = run.end("goal_reached")
    line = official_result(record)
    match = LINE.fullmatch(line or "")
    assert match is not None, line
    assert match["goal"] == "80% Top 1 Validation Accuracy"
    assert match["total"] == "8.000"
    parts = {
        name: float(match[name].split()[0]) for name in match.groupdict() if name not in ("goal", "total")
    }
    mean = {phase: spread.mean for phase, spread in record.phases.items()}
    assert parts["compute"] == pytest.approx(
        mean["forward"] + mean["loss"] + mean["backward"] + mean["optimizer"]
    )
    assert sum(parts.values()) == pytest.approx(sum(mean.values()))


@pytest.mark.parametrize(
    ("goal", "sentence"),
    [
        (Goal("perplexity", 70, "min"), "Validation Perplexity of 70"),
        (Goal("bleu", 24, "max"), "Validation BLEU-Score of 24"),
        (Goal("f1", 0.5, "max"), "Validation f1 of 0.5"),
    ],
)
def test_other_metrics_have_their_own_words(tmp_path: Path, goal: Goal, sentence: str) -> None:
    run = Run(tmp_path)
    run.validate(99.0)
    ended = run.end("goal_reached")
    assert (
        official_result(ended.model_copy(update={"status": "goal_not_reached", "time_to_accuracy": None}))
        is None
    )
    record = ended.model_copy(update={"goal": goal, "phases": {}})
    assert official_result(record) == f"{sentence} reached in 4.000 seconds"
