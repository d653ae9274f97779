import io
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ranks import mini_worker

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.identity import key
from mlbench.launch import worker_process
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.precision import STUCK, LossScaler, on_device
from mlbench.training.worker import Worker

CPU = torch.device("cpu")
LSTM_IN_BF16 = "AVX512" in torch.backends.cpu.get_cpu_capability()  # of x86; what oneDNN computes it with
GNMT: dict[str, Any] = {"first": 2.0**10, "window": 128, "largest": 2.0**13}


class Walk:
    """A parameter that falls by the gradient, 1 a step; an overflow makes one gradient infinite."""

    def __init__(self, **rules: Any) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scaler = LossScaler(CPU, **(GNMT | rules))

    def step(self, *, overflow: bool = False) -> float:
        self.scaler.scale(self.weight.sum()).backward()
        assert self.weight.grad is not None
        if overflow:
            self.weight.grad[1] = torch.inf
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return self.scaler.get_scale()

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


def test_the_scale_doubles_every_window_and_stops_at_the_largest():
    walk = Walk()
    assert walk.scaler.get_scale() == 2**10
    scales = walk.steps(1000)
    assert scales[:128] == [2**10] * 127 + [2**11]
    assert scales[128:384] == [2**11] * 127 + [2**12] * 128 + [2**13]
    assert set(scales[384:]) == {2**13}
    assert walk.scaler.skipped_steps() == 0


def test_an_overflow_halves_the_scale_skips_the_update_and_starts_the_window_again():
    walk = Walk()
    walk.steps(100)
    weight = walk.weight.detach().clone()
    assert torch.equal(weight, torch.full((3,), -100.0))
    assert walk.step(overflow=True) == 2**9
    assert torch.equal(walk.weight.detach(), weight)
    assert walk.steps(128) == [2**9] * 127 + [2**10]
    assert [walk.step(overflow=True) for _ in range(3)] == [2**9, 2**8, 2**7]
    assert walk.scaler.skipped_steps() == 4


def test_the_scale_is_stuck_once_so_many_updates_in_a_row_overflowed():
    walk = Walk(first=2.0**20)
    for _ in range(STUCK - 1):
        walk.step(overflow=True)
    assert not walk.scaler.stuck()
    walk.step()
    for _ in range(STUCK - 1):
        walk.step(overflow=True)
    assert not walk.scaler.stuck(), "one in between was made"
    walk.step(overflow=True)
    assert walk.scaler.stuck() and walk.scaler.skipped_steps() == 2 * STUCK - 1


def test_a_scale_of_0_stays_stuck():
    """From 2^-149 on float32 halves to 0, which cannot fall any more."""
    walk = Walk(first=2.0)
    assert [walk.step(overflow=True) for _ in range(160)][-1] == 0
    assert bool(walk.scaler.overflowed) and walk.scaler.stuck() and walk.scaler.skipped_steps() == 160


def test_a_fused_optimizer_skips_and_counts_too():
    walk = Walk()
    walk.optimizer = torch.optim.Adam([walk.weight], lr=1.0, fused=True)
    assert walk.step(overflow=True) == 2**9
    assert torch.equal(walk.weight.detach(), torch.zeros(3))
    walk.step()
    assert torch.allclose(walk.weight.detach(), torch.full((3,), -1.0))
    assert walk.scaler.skipped_steps() == 1


def test_the_state_survives_a_restart():
    whole, first = Walk(window=5), Walk(window=5)
    for walk in (whole, first):
        walk.step(overflow=True)
        walk.steps(3)
    file = io.BytesIO()
    torch.save(first.scaler.state_dict(), file)
    file.seek(0)
    second = Walk(window=5)
    second.scaler.load_state_dict(torch.load(file, weights_only=True))
    assert second.steps(30) == whole.steps(30)
    assert second.scaler.skipped_steps() == whole.scaler.skipped_steps() == 1


@pytest.mark.parametrize("name", ["resnet20", "logreg", "awdlstm", "gnmt"])
def test_every_task_trains_and_validates_in_bfloat16_on_a_cpu(name, data_root, monkeypatch):
    """And says so to the loop: the product of its weights comes out in that type, in both."""
    task = compose([f"task={name}", "task.precision=bf16", "division=open", "task.epochs=1"]).task
    worker = mini_worker(Worker(seed=1), data_root)
    if name in ("awdlstm", "gnmt") and not LSTM_IN_BF16:
        with pytest.raises(UserError, match="no LSTM in bf16"):
            registry.build(task, worker)
        return
    setup = registry.build(task, worker)
    run, types = loop.Run(setup, worker, report_s=math.inf), {True: set(), False: set()}

    def note(module, _, output):
        types[module.training].add((output[0] if isinstance(output, tuple) else output).dtype)

    setup.model.register_forward_hook(note)
    data = setup.load()
    run.trainer.train()
    run.train_step(next(iter(setup.steps(data, 0))))
    run.data, run.epoch = data, 1.0
    if name != "gnmt":  # whose search calls the network piece by piece
        run.validate()
        assert types[False] == {torch.bfloat16}
    assert types[True] == {torch.bfloat16}
    setup.close()


@pytest.mark.parametrize("overrides", [["task.precision=fp16"], ["task.precision=tf32", "division=open"]])
def test_a_cpu_has_no_formats_of_tensor_cores(overrides):
    with pytest.raises(UserError, match="backend=gloo .*fp32, bf16"):
        compose(["task=resnet20", *overrides])


@pytest.mark.parametrize("name", ["gnmt", "awdlstm"])
def test_a_gpu_has_no_bf16_for_lstms(name):
    """torch's autocast hands them to cuDNN in fp16."""
    compose([f"task={name}", "task.precision=bf16"])
    compose(["task=transformer", "task.precision=bf16", "backend=nccl"])
    with pytest.raises(UserError, match=f"{name} .*fp32, tf32, fp16"):
        compose([f"task={name}", "task.precision=bf16", "backend=nccl"])


def test_a_gpu_before_ampere_has_neither_tf32_nor_bf16():
    """Its profile tells before nodes are paid for; on GPUs bf16 is what gpt computes in unless it is told."""
    compose(["task=gpt", "backend=nccl", "hardware=gcp_g2_standard_4"])
    with pytest.raises(UserError, match="hardware=gcp_n1_t4 .*fp32(?!,)"):
        compose(["task=gpt", "backend=nccl", "hardware=gcp_n1_t4"])


def test_the_precision_is_the_devices_unless_it_is_chosen_and_decides_the_key():
    on_cpu, on_gpu = (cast(Any, compose)(["task=gnmt", f"backend={name}"]) for name in ("gloo", "nccl"))
    assert (on_cpu.task.precision, on_gpu.task.precision) == ("fp32", "fp16")
    lower = compose(["task=gnmt", "task.precision=bf16"])
    assert lower.deviations == () and key(lower) != key(on_cpu)
    assert key(compose(["task=gnmt", "task.precision=fp32"])) == key(on_cpu)


def test_a_gpu_gets_what_the_recipe_declares(monkeypatch):
    made = []
    monkeypatch.setattr(
        "mlbench.training.precision.LossScaler", lambda device, **rules: made.append(rules) or "scaler"
    )
    cuda: Any = SimpleNamespace(type="cuda")
    rules: Any = {"scale": 128.0, "window": 2000, "largest": None}
    assert on_device("fp16", cuda, **rules) == (torch.float16, "scaler")
    assert made == [{"first": 128.0, "window": 2000, "largest": None}]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    assert on_device("tf32", cuda, **rules) == (None, None)
    assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    assert on_device("fp32", cuda, **rules) == (None, None)
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    assert on_device("bf16", cuda, **rules) == (torch.bfloat16, None)


@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_what_came_with_ampere_is_refused_on_older_gpus(name, monkeypatch):
    """They emulate bf16, and compute float32 as it is, under the name of tf32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(UserError, match=f"Tesla T4 has no {name}") as caught:
        on_device(name, SimpleNamespace(type="cuda"), scale=1.0, window=1, largest=None)  # pyright: ignore
    assert caught.value.hint == "task.precision=fp16 or fp32"  # gpt has no fp16


def test_every_worker_computes_in_float32_unless_its_recipe_declares_less(monkeypatch):
    """torch lets cuDNN use TF32 unless told otherwise, so ResNet-20 did on GPUs since Ampere."""
    switches: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    context = worker_process.RankContext(0, 1, 0, 1, 0)
    monkeypatch.setattr(worker_process, "rank_context", lambda launcher: context)
    monkeypatch.setattr(worker_process, "_resume", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = worker_process.WorkerSpec(
        compose(["task=resnet20"]),
        seed=1,
        threads=torch.get_num_threads(),
        heartbeats=("127.0.0.1", 9),
        token="",
        log="",
        driver=None,
        epoch=clock.epoch(),
    )
    try:
        for switch in switches:
            switch.allow_tf32 = True
        worker_process.build_worker(spec)
        assert [switch.allow_tf32 for switch in switches] == [False, False]
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed
