"""FLOP, tokens/s and MFU of measured scripts, against closed forms and torch's own counter."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_ops
from commands import PATIENCE_S
from test_measure import PYTHON, SCRIPTS, TWO, measure, only_record
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mlbench.config import compose
from mlbench.probe.flop_counter import ASKED, BEFORE, Trace, _hidden
from mlbench.record import events, fields, formulas, node_types
from mlbench.record.record import Gpu, Node

LAYERS, WIDTH, LENGTH, WORDS, ROWS = 2, 64, 32, 256, 8  # of scripts/decoder.py
MATRICES = LAYERS * 12 * WIDTH**2 + WORDS * WIDTH
ROW = (6 * MATRICES + 12 * LAYERS * LENGTH * WIDTH) * LENGTH  # FLOP: 6N + 12 L T d a token
SECOND = 4 * WIDTH**2  # FLOP of a row: forward and the gradient of the weight


@pytest.fixture(autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "1")


def traced(model: nn.Module, *inputs: Any, loss: Callable[[Any], torch.Tensor] = torch.sum) -> dict[str, Any]:
    """Return what a trace says of one forward and backward pass."""
    trace = Trace(torch)
    assert trace.register()
    trace.start(0)
    trace.add(1, len(inputs[0]), 0)
    loss(model(*inputs)).backward()
    trace.close()
    weights = [
        (tuple(part.weight.shape),) * 2
        for part in model.modules()
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)
    ]
    result = trace.result(weights, gpu=False)
    trace.remove()
    return result


def counted(model: nn.Module, inputs: torch.Tensor) -> float:
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    return counter.get_total_flops()


def test_a_resnet_50_takes_what_counting_by_hand_gives(capfd: pytest.CaptureFixture[str]) -> None:
    model = torchvision_ops.load().models.resnet50()
    result = traced(model, torch.randn(1, 3, 224, 224))
    first = 2 * 118e6  # whose input gets no gradient
    assert result["flops"] == {"fp32": pytest.approx(3 * 2 * 4.09e9 - first, rel=0.03)}
    assert capfd.readouterr() == ("", "")  # what torch prints about its observer


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3)), (2, 3, 17, 17)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 7)),
        (nn.Conv1d(4, 6, 3, dilation=2, padding=1), (2, 4, 19)),
        (nn.Conv3d(2, 3, 3), (1, 2, 5, 6, 7)),
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False)), (5, 3, 8)),
    ],
)
def test_layers_take_what_torch_s_counter_counts(model: nn.Module, inputs: tuple[int, ...]) -> None:
    given = torch.randn(inputs)
    assert traced(model, given)["flops"]["fp32"] == counted(model, given)


def test_each_group_of_a_convolution_takes_its_own_channels() -> None:
    """Torch's counter takes all of them for the gradient of the weight."""
    result = traced(nn.Conv2d(8, 12, 3, groups=4), torch.randn(2, 8, 6, 6))["flops"]["fp32"]
    assert result == 2 * (2 * 12 * 4 * 4) * (8 // 4 * 9) * 2  # no gradient of the input


def test_a_transformer_takes_its_products_and_attention_backward_twice_its_forward() -> None:
    width, words, rows = 32, 64, 3
    model = nn.Transformer(width, 4, 1, 1, 64, batch_first=True, dropout=0.0)
    source, target = torch.randn(rows, words, width), torch.randn(rows, words, width)
    attention = 4 * width**2 + 2 * words * width  # products of a word: four projections, scores and their use
    layer = attention + 2 * 64 * width
    forward = 2 * rows * words * (layer + layer + attention)
    inputs = 2 * rows * words * width * (3 * width + width + 2 * width)  # whose gradients nobody needs
    result = traced(model, source, target)["flops"]["fp32"]
    assert result == pytest.approx(3 * forward - inputs, rel=0.001)


@pytest.mark.parametrize(
    ("kernel", "says"), [(nn.LSTM(4, 8, batch_first=True), "rnn"), (nn.Linear(8, 8), None)]
)
def test_an_operator_without_a_formula_is_named(kernel: nn.Module, says: str | None) -> None:
    rows = torch.randn(3, 5, 4 if says else 8)
    result = traced(kernel, rows, loss=lambda output: (output[0] if says else output).sum())
    assert says in result["why"] if says else result["flops"]


def test_a_weight_without_products_in_either_pass_lacks_some() -> None:
    weights = [((50257, 64), (50257, 64)), ((64, 64), (32, 64)), ((8, 3, 3, 3), (8, 3, 3, 3))]
    seen = [(64, 50264), (32, 64), (8, 3, 3, 3)]  # padded, sharded, a convolution's
    assert _hidden(weights, [seen, seen]) is None
    assert "1 weights" in str(_hidden(weights, [seen, seen[1:]]))
    assert "1 weights" in str(_hidden(weights, [seen[1:], seen]))
    assert _hidden(weights, [seen[:1], seen]) is None  # the others are under a hundredth


class Again(torch.autograd.Function):
    """A product that its backward pass computes again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        again = gradients[0] + 0 * (x @ weight.T)
        return again @ weight, again.T @ x


class Unseen(torch.autograd.Function):
    """A product that no operator of torch makes, as by an extension."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy().T)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = (each.detach().numpy() for each in ctx.saved_tensors)
        rows = gradients[0].numpy()
        return torch.from_numpy(rows @ weight), torch.from_numpy(rows.T @ x)


class Head(nn.Linear):
    """A layer whose product is made by `function`."""

    function: Any = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.function.apply(input, self.weight)


@pytest.mark.parametrize(
    ("function", "says"),
    [(Unseen, "the products of 1 weights are in no execution trace"), (Again, "again, unseen")],
)
def test_a_product_that_is_hidden_or_made_again_is_told(function: Any, says: str) -> None:
    head = Head(64, 64)
    head.function = function
    assert says in traced(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 64), head), torch.randn(4, 64))["why"]


def test_a_step_that_is_observed_again_counts_alone() -> None:
    model, rows = nn.Linear(8, 4), torch.randn(3, 8)
    trace = Trace(torch)
    assert trace.register()
    for _ in range(2):
        trace.start(0)
        trace.add(1, len(rows), 0)
        model(rows).sum().backward()
        trace.stop()
    trace.close()
    result = trace.result([((4, 8), (4, 8))], gpu=False)
    trace.remove()
    assert (result["flops"], result["rows"]) == ({"fp32": counted(model, rows)}, 3)


def test_a_launched_triton_kernel_hides_products(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("JITFunction", (), {"__module__": "triton.runtime.jit", "device_caches": {}})
    kernel, module = kind(), type(sys)("own_kernels")
    module.kernel = type("Autotuner", (kind,), {"fn": kernel, "__module__": "triton.runtime.autotuner"})()
    monkeypatch.setitem(sys.modules, "own_kernels", module)
    assert _hidden([], []) is None
    vars(kernel)["device_caches"] = {0: "launched"}
    assert "Triton kernels of own_kernels" in str(_hidden([], []))


def test_code_from_a_template_of_torch_compile_hides_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codecache import PyCodeCache

    made = type(sys)("made")
    made.__file__ = str(tmp_path / "made.py")
    monkeypatch.setattr(PyCodeCache, "modules", [made])
    Path(made.__file__).write_text("@triton_heuristics.pointwise(\n")
    assert _hidden([], []) is None
    Path(made.__file__).write_text("@triton_heuristics.template(\n")
    assert "templates" in str(_hidden([], []))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "watts", "mig", "precision", "peak"),
    [
        ("NVIDIA H200", 700.0, None, "bf16", 989e12),
        ("NVIDIA H100 80GB HBM3", 700.0, False, "bf16", 989e12),
        ("NVIDIA H100 80GB HBM3", 700.0, False, "tf32", 494e12),
        ("NVIDIA H100 80GB HBM3", 700.0, False, "fp64", None),
        ("NVIDIA H100 80GB HBM3", 700.0, True, "bf16", None),
        ("NVIDIA H100 80GB HBM3", 350.0, False, "bf16", None),
        ("NVIDIA H100 80GB HBM3", None, False, "bf16", None),
        ("NVIDIA H100 PCIe", 350.0, False, "bf16", None),
        ("NVIDIA H100 NVL", 700.0, False, "bf16", None),
        ("NVIDIA GH200 480GB", 700.0, False, "bf16", None),
        ("NVIDIA GeForce RTX 4090", 450.0, False, "bf16", None),
    ],
)
def test_a_peak_needs_name_and_power(
    name: str, watts: float | None, mig: bool | None, precision: str, peak: float | None
) -> None:
    experiment = compose.compose(["task=script", "launcher=command", "backend=nccl"])
    node = Node(hostname="a", usable_cpus=8, gpus=[Gpu(name=name, power_limit_max_w=watts, mig=mig)] * 2)
    found = node_types.peak(experiment, [node], precision, 2)
    assert (found and (found.flops_per_s, found.devices)) == (peak and (peak, 2))


def alone(*arguments: object) -> list[str]:
    command = [*PYTHON, SCRIPTS / "decoder.py", *arguments]
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WAYS: list[tuple[tuple[str, ...], float | str, float]] = [
    (("accumulated", "autocast", "checkpoint", "profiler"), ROW, 1e-9),
    (("compiled",), ROW, 1e-9),
    (("turns",), (ROW + SECOND) / 2, 1e-9),  # a row of either
    (("lengths",), "times the tokens", 0),
]


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
@pytest.mark.parametrize(("ways", "expected", "error"), WAYS, ids=[" ".join(each) for each, *_ in WAYS])
def test_a_script_s_flop_are_its_closed_form_or_it_says_why(
    tmp_path: Path, ways: tuple[str, ...], expected: float | str, error: float
) -> None:
    steps = BEFORE + 15
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "decoder.py", steps, *ways])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == alone(steps, *ways)  # losses to the last bit, and what is compiled
    assert "Execution Trace Observer" not in done.stderr
    record = only_record(tmp_path)
    if isinstance(expected, str):
        assert (record.flops_per_sample, record.model_flops_per_s) == (None, None)
        assert expected in str(record.flops_lacking) and expected in fields.rows(record)["arithmetic"]
        return
    assert (record.flops_lacking, record.flops_per_sample) == (None, pytest.approx(expected, rel=error))
    assert record.warm_up is not None and record.warm_up.steps >= 2 and record.warm_up.observation_s > 0
    assert (
        record.samples_per_s is not None
        and record.flops_per_sample is not None
        and record.tokens_per_s is not None
    )
    if "turns" not in ways:  # of which half the steps have no tokens
        assert record.tokens_per_s == pytest.approx(LENGTH * record.samples_per_s)
    assert record.model_flops_per_s == pytest.approx(record.flops_per_sample * record.samples_per_s)
    log = events.read(next(tmp_path.glob("*/events.jsonl")))
    for name in ("tokens_per_s", "model_flops_per_s", "warm_up_observation"):
        assert formulas.explain(record, log, name).value > 0


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
def test_ranks_add_up_and_a_stated_peak_gives_the_mfu(tmp_path: Path) -> None:
    command = [*TWO, SCRIPTS / "decoder.py", BEFORE + 15, "ddp"]
    peak = ["hardware.peak.fp32=1e12", "hardware.peak.source=a_test"]
    done = measure(tmp_path, *peak, command=command)
    assert done.returncode == 0, done.stderr
    record = only_record(tmp_path)
    assert (record.flops_per_sample, record.workers) == (ROW, 2)
    assert record.model_flops_per_s is not None and record.mfu == record.model_flops_per_s / 1e12
    log = events.read(next(tmp_path.glob("*/events.jsonl")))
    assert formulas.explain(record, log, "mfu").value == record.mfu
    assert re.search(r"MFU \S+ % of 1 TFLOP/s \(fp32 dense, a_test\)", fields.rows(record)["arithmetic"])
    assert re.search(r"MFU +\S+ % of 1 TFLOP/s", done.stderr)


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
def test_a_script_of_few_steps_is_not_observed(tmp_path: Path) -> None:
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "decoder.py", BEFORE - 1])
    assert done.returncode == 0, done.stderr
    record = only_record(tmp_path)
    assert (record.flops_lacking, record.steps) == ("too few steps", BEFORE - 1)
    assert record.warm_up is None or not record.warm_up.observation_s


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
def test_nothing_is_observed_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASKED)
    done = measure(tmp_path, command=[*PYTHON, SCRIPTS / "decoder.py", BEFORE + 15])
    assert done.returncode == 0, done.stderr
    record = only_record(tmp_path)
    assert f"{ASKED}=1" in str(record.flops_lacking) and record.flops_per_sample is None
    assert record.tokens_per_s and (record.warm_up is None or not record.warm_up.observation_s)


@pytest.mark.slow
@pytest.mark.usefixtures("own_temporary_files")
def test_a_script_whose_steps_are_observed_again_ends_as_alone(tmp_path: Path) -> None:
    """Each has a pass without gradients, and each ends within a range that the optimizer has begun."""
    command = [*PYTHON, SCRIPTS.parents[1] / "use" / "scripts" / "dqn.py"]
    done = measure(tmp_path / "runs", command=command, cwd=tmp_path)  # where it saves its policy
    record = only_record(tmp_path / "runs")
    assert done.returncode == 7, done.stderr
    assert record.warm_up is not None and record.warm_up.observation_s > 0
