"""profile=N: the traces of torch.profiler are what their readers expect, and no time of such a run counts."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import driven
import pytest
import torch
from ranks import run_ranks
from records import record
from torch import nn

from mlbench.config.compose import compose
from mlbench.launch import cache
from mlbench.launch.ray_hooks import EventLogCallback
from mlbench.record import attempts
from mlbench.record.record import Profile
from mlbench.training.loop import train
from mlbench.training.profiler import WARM_UP
from mlbench.training.setup import TaskResult, TrainingSetup
from mlbench.training.worker import Worker

STEPS = 3


@dataclass
class Epoch:
    """Equal steps."""

    steps: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Any:
        return iter([[torch.ones(4, 10)]] * self.steps)


def trained(worker: Worker, steps: int, profiled: int) -> TaskResult:
    worker.profile_steps = profiled
    model = nn.Linear(10, 10)
    setup = TrainingSetup(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        epochs=1,
        steps=lambda _, __: Epoch(steps),
        forward=lambda net, x: net(x),
        loss=lambda output, _: output.square().mean(),
        validate=lambda *_: {"loss": 0.0},
        samples=len,
    )
    return train(setup, worker)


@pytest.mark.slow
def test_every_rank_records_the_steps_after_the_warm_up_for_both_readers() -> None:
    for rank, result in enumerate(run_ranks(trained, 2, WARM_UP + STEPS + 4, STEPS)):
        profile = result.profile
        assert profile is not None and profile.steps == STEPS
        assert list(profile.files) == [f"rank{rank}.execution_trace.json", f"rank{rank}.trace.json"]
        execution, trace = (json.loads(gzip.decompress(packed)) for packed in profile.files.values())

        # Chrome's trace event format: complete events have a begin and a duration in microseconds.
        complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in complete)
        steps = {event["name"] for event in complete if event["name"].startswith("ProfilerStep#")}
        assert len(steps) == STEPS
        calls = [event for event in complete if event["name"] == "aten::linear"]
        assert len(calls) == STEPS
        assert any("allreduce" in event["name"] or "all_reduce" in event["name"] for event in complete)

        # Chakra's execution trace: a tree whose nodes name their parent, from one root.
        assert "chakra" in execution["schema"]
        nodes = {node["id"]: node for node in execution["nodes"]}
        assert len(nodes) == len(execution["nodes"]) and all(n["ctrl_deps"] in nodes for n in nodes.values())
        assert all({"name", "inputs", "outputs", "attrs"} <= node.keys() for node in nodes.values())
        assert sum(node["name"] == "aten::linear" for node in nodes.values()) == STEPS

        shares = [operator["share"] for operator in profile.operators]
        assert len(shares) == 10 and shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1
        Profile.model_validate({"steps": profile.steps, "operators": profile.operators, "files": []})


def test_a_run_shorter_than_the_warm_up_has_no_profile_and_one_without_is_not_slowed() -> None:
    assert trained(Worker(), WARM_UP - 1, STEPS).profile is None
    assert trained(Worker(), WARM_UP + STEPS, 0).profile is None


@pytest.mark.parametrize("steps", [0, 3])
def test_a_profiled_run_is_never_reused_and_enters_no_point(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = compose([f"profile={steps}", "seed=7"])
    run = record(experiment=experiment)
    monkeypatch.setattr(cache.reader, "find_all", lambda root, trials: {trial: [run] for trial in trials})
    monkeypatch.setattr(cache, "obstacle", lambda *_, **__: None)
    assert (cache.find_cached(experiment, data=None) is None) == (steps > 0)
    assert attempts.results([run]) == ([] if steps else [run])


def test_a_profiled_run_has_a_caveat_and_is_not_official(tmp_path: Path) -> None:
    run = driven.Run(tmp_path, "profile=3")
    run.validate(99.0)
    record = run.end("goal_reached")
    assert any("torch.profiler" in caveat for caveat in record.caveats) and not record.eligible
    assert any("torch.profiler" in reason for reason in record.official_reasons)


def test_all_ranks_traces_come_into_the_run_s_folder(tmp_path: Path) -> None:
    messages = [
        {"rank": rank, "result": {}, "profile": {f"rank{rank}.trace.json": gzip.compress(b"{}")}}
        for rank in range(2)
    ]
    EventLogCallback(tmp_path / "events.jsonl").after_report(None, messages, None)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "rank0.trace.json",
        "rank1.trace.json",
    ]
    assert (tmp_path / "profile/rank1.trace.json").read_text() == "{}"


@pytest.mark.parametrize("overrides", [["task=allreduce", "workers=2"]])
def test_what_trains_no_steps_cannot_be_profiled(overrides: list[str]) -> None:
    from mlbench.config.errors import UserError
    from mlbench.launch.execute import execute

    with pytest.raises(UserError, match="trains no steps"):
        execute(compose([*overrides, "profile=2"]))
