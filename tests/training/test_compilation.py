"""`compile=`: the same losses, compiled on the clock, and a sentence where inductor lacks its compiler."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import mini_worker, run_ranks

from mlbench import run
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract.by_hand import beginning
from mlbench.tasks import registry
from mlbench.training import compilation, loop
from mlbench.training.worker import Worker

SMALL = ["task=logreg", "goal=none", "division=open", "task.epochs=1"]


def trained(worker: Worker, root: Path, overrides: list[str], compile: Any = None) -> dict[str, Any]:
    """Return the mean loss and the metrics of three steps."""
    experiment = compose(overrides)
    worker.compile, worker.sync = compile or experiment.compile, experiment.sync
    setup = registry.build(experiment.task, mini_worker(worker, root))
    whole = setup.steps
    setup.steps = lambda data, epoch: beginning(whole(data, epoch), 3)
    setup.validate_at, setup.epochs, setup.flops_per_sample = (1.0,), 1, lambda _: None
    (validation,) = loop.train(setup, worker, report_s=math.inf).validations
    return {"loss": validation["train_loss"], **validation["metrics"]}


def test_it_is_compiled_once_for_a_shape_and_on_the_clock(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule R16: torch compiles at the first batch, and a run pays for that, whatever an earlier one left."""
    events, outputs, said, worker = [], [], [], Worker()
    worker.heartbeat = lambda beat: said.append((beat.get("doing"), len(events)))
    start = worker.timer.start
    worker.timer.start = lambda **given: (events.append("clock"), start(**given))[1]
    (tmp_path / "earlier").touch()
    for name in compilation.CACHES:
        monkeypatch.setenv(name, str(tmp_path))

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        events.append(["earlier" in os.listdir(os.environ[name]) for name in compilation.CACHES])
        outputs.append([each.ndim for each in graph(*inputs)])
        return graph.forward

    compiled = trained(worker, data_root, SMALL, backend)
    assert events == ["clock", [False, False]]
    assert said[0][0].startswith("compiling") and said[0][1] == 1  # before the backend does
    assert outputs == [[0]], "one graph of model and loss, from which only the loss comes out"
    assert compiled == pytest.approx(trained(Worker(), data_root, SMALL), rel=1e-6)


def test_it_is_free_in_the_closed_division_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose(["compile=eager"]).deviations == ()
    assert run.main(["task=logreg", "compile=eager", "--dry-run"]) == 0
    assert ", compile=eager, " in capsys.readouterr().out


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_inductor_without_a_compiler_is_refused_before_a_worker_starts(
    device: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(UserError, match=f"no-such-compiler is .* {variable}"):
        compilation.require("inductor", device)
    compilation.require("aot_eager", device)
    compilation.require(None, device)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run.main(["task=logreg", "compile=inductor", "--dry-run"]) == 2
    assert "compile=inductor needs a C++" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["sync=ddp"], ["sync=fsdp"]])
def test_two_workers_train_as_without_it(overrides: list[str], data_root: Path) -> None:
    overrides = ["task=gpt", "goal=none", "division=open", "task.layers=1", "task.context=32", *overrides]
    overrides += ["task.batch_size=2"]  # two micro-batches, of which the first sends nothing
    plain = run_ranks(trained, 2, data_root, overrides)
    compiled = run_ranks(trained, 2, data_root, [*overrides, "compile=aot_eager"])
    assert compiled == [pytest.approx(each, rel=1e-5) for each in plain] and plain[0] == plain[1]
