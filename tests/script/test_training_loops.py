"""Training loops of many kinds under a probe in this process, on a clock that their modules move on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from mlbench import clock
from mlbench.script import probe, sender
from mlbench.script.steps import Step

FORWARD_S, BACKWARD_S = 1.0, 2.0
ROWS = torch.ones(8, 4)
GPU = torch.device("cuda:1")
# gloo's groups end with this process: one that ends right after a backward pass may wait for its own thread,
# which waits for Python's lock to free the context of the pass (torch 2.13).
GROUPS: list[Any] = []


class Clock:
    """Stands still but for the work of modules."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, moving: Clock) -> torch.Tensor:
        ctx.moving = moving
        moving.now += FORWARD_S
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.moving.now += BACKWARD_S
        return gradients[0], None


class Net(torch.nn.Module):
    def __init__(self, moving: Clock) -> None:
        super().__init__()
        self.first, self.last, self.moving = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), moving

    def forward(self, rows: torch.Tensor) -> Any:
        return self.last(Work.apply(self.first(rows), self.moving))


class Wrapper(torch.nn.Module):
    """Calls another module, as DistributedDataParallel does; `again`: backward computes it again."""

    def __init__(self, module: torch.nn.Module, again: bool | None = None) -> None:
        super().__init__()
        self.module, self.again = module, again

    def forward(self, rows: torch.Tensor) -> Any:
        if self.again is None:
            return self.module(rows)
        return checkpoint(self.module, rows, use_reentrant=self.again)


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moving = Clock()
    monkeypatch.setattr(clock, "monotonic", moving)
    return moving


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender.Sender, "start", lambda *_: None)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)


@pytest.fixture
def watching(unsent: None) -> Iterator[probe.Probe]:
    watching = probe.Probe(torch)
    watching.watch()
    yield watching
    assert watching.failure is None
    watching.finish()


def train(model: Callable[..., Any], optimizer: torch.optim.Optimizer, rows: Any = ROWS) -> None:
    optimizer.zero_grad()
    model(rows).pow(2).mean().backward()
    optimizer.step()


def sgd(*modules: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([weight for module in modules for weight in module.parameters()], lr=0.1)


def batches(count: int, *, loader: bool) -> Any:
    rows = ROWS.repeat(count, 1)
    return DataLoader(rows, 8) if loader else rows.split(8)  # pyright: ignore[reportArgumentType]


def parts(step: Step) -> tuple[float, ...]:
    return step.validation, step.forward, step.loss, step.backward, step.metrics


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_teacher_s_forward_pass_is_a_part_of_the_step(
    moving: Clock, watching: probe.Probe, *, first: bool, loader: bool
) -> None:
    student, teacher = Net(moving), Net(moving).eval()
    optimizer = sgd(student)
    for rows in batches(5, loader=loader):
        output = None if first else student(rows)
        with torch.no_grad():
            target = teacher(rows)
        output = student(rows) if output is None else output
        (output - target).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    # Between the student's output and the loss, all is loss, but for the teacher.
    assert [parts(step) for step in watching.take(wait=False)] == [(0, 2 * FORWARD_S, 0, BACKWARD_S, 0)] * 5


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("loaders", [(True, True), (True, False), (False, True), (False, False)])
def test_a_validation_between_two_steps_is_outside_them(
    moving: Clock, watching: probe.Probe, *, bare: bool, loaders: tuple[bool, bool]
) -> None:
    model = Wrapper(Net(moving))
    optimizer = sgd(model)
    for _ in range(2):
        for rows in batches(4, loader=loaders[0]):
            train(model, optimizer, rows)
        with torch.no_grad():
            for rows in batches(3, loader=loaders[1]):
                (model.module if bare else model)(rows)
    trained = (0, FORWARD_S, 0, BACKWARD_S, 0)
    after = (3 * FORWARD_S, *trained[1:])
    assert [parts(step) for step in watching.take(wait=False)] == [trained] * 4 + [after] + [trained] * 3
    assert watching._stamps == [] or len(watching._stamps) < 8  # however many passes there are


def test_a_new_model_each_fold_is_seen(moving: Clock, watching: probe.Probe) -> None:
    for _ in range(5):
        model = Net(moving)
        optimizer = sgd(model)
        for _ in range(6):
            train(model, optimizer)
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == [(0, FORWARD_S, 0, BACKWARD_S, 0)] * 30
    assert {step.rows for step in taken} == {8}


def test_a_step_of_an_optimizer_that_raises_is_none_and_the_next_are(
    moving: Clock, watching: probe.Probe
) -> None:
    class Raises(torch.optim.SGD):
        count = 0

        def step(self, closure: Any = None) -> Any:
            self.count += 1
            if self.count == 3:
                raise torch.OutOfMemoryError("simulated")
            return super().step(closure)

    for _ in range(2):
        model = Net(moving)
        optimizer = Raises(model.parameters(), lr=0.1)
        for _ in range(3):
            with suppress(torch.OutOfMemoryError):
                train(model, optimizer)
    assert len(watching.take(wait=False)) == 4


def test_an_optimizer_within_another_is_a_part_of_its_step(watching: probe.Probe) -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    model = torch.nn.Linear(4, 4)
    inner, outer = sgd(model), Outer(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, outer)
    assert len(watching.take(wait=False)) == 3


def test_what_an_optimizer_does_between_two_calls_of_its_closure_is_its_own(
    moving: Clock, watching: probe.Probe
) -> None:
    """As torch's LBFGS, which looks for a direction."""

    class Searching(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            for _ in range(2):
                closure()
                moving.now += 3

    model = Net(moving)
    optimizer = Searching(model.parameters(), {})
    for _ in range(3):
        optimizer.step(lambda: model(ROWS).pow(2).mean().backward())
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == [(0, 2 * FORWARD_S, 0, 2 * BACKWARD_S, 0)] * 3
    assert [step.optimizer for step in taken] == [6] * 3


def test_outputs_that_share_a_backward_pass_have_one_loss(moving: Clock, watching: probe.Probe) -> None:
    """As those of a siamese network, or a discriminator's: one is through when the next gets its gradient."""
    model = Net(moving)
    optimizer = sgd(model)
    for _ in range(probe.LEARN_STEPS + 2):
        optimizer.zero_grad()
        (model(ROWS) - model(2 * ROWS)).pow(2).mean().backward()
        optimizer.step()
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == [(0, 2 * FORWARD_S, 0, 2 * BACKWARD_S, 0)] * len(taken)


def test_the_backward_pass_of_layers_that_train_later_is_none_of_the_optimizer_s(
    moving: Clock, watching: probe.Probe
) -> None:
    model = Net(moving)
    optimizer = sgd(model)
    for step in range(probe.LEARN_STEPS + 3):
        model.first.requires_grad_(step > probe.LEARN_STEPS)
        train(model, optimizer)
    frozen, whole = [(0, FORWARD_S, 0, 0, 0)], [(0, FORWARD_S, 0, BACKWARD_S, 0)]
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == frozen * (probe.LEARN_STEPS + 1) + whole * 2


def test_a_backward_pass_that_comes_to_no_output_is_none_of_the_optimizer_s(
    moving: Clock, watching: probe.Probe
) -> None:
    """As that of a loss on forces, which are the gradient of an energy."""
    model, rows = Net(moving), ROWS.clone().requires_grad_()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        (forces,) = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)
        forces.register_hook(lambda _: setattr(moving, "now", moving.now + 5))
        forces.pow(2).mean().backward()
        optimizer.step()
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == [(0, FORWARD_S, 0, BACKWARD_S + 5, 0)] * 3
    assert [step.optimizer for step in taken] == [0] * 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_block_that_backward_computes_again_is_a_part_of_it(
    moving: Clock, watching: probe.Probe, *, reentrant: bool
) -> None:
    model = Wrapper(Net(moving), again=reentrant)
    optimizer = sgd(model)
    for _ in range(5):
        train(model, optimizer, ROWS.clone().requires_grad_())
    taken = watching.take(wait=False)
    assert [parts(step) for step in taken] == [(0, FORWARD_S, 0, FORWARD_S + BACKWARD_S, 0)] * 5
    assert {step.rows for step in taken} == {8}


def test_what_a_module_s_own_hooks_do_is_a_part_of_its_forward_pass(
    moving: Clock, watching: probe.Probe
) -> None:
    """As FSDP2 gathers the weights in one."""
    model = Net(moving)
    model.register_forward_pre_hook(lambda *_: setattr(moving, "now", moving.now + 1))
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer)
    assert [parts(step) for step in watching.take(wait=False)] == [(0, FORWARD_S + 1, 0, BACKWARD_S, 0)] * 3


def test_the_second_optimizer_of_a_step_is_an_optimizer_of_the_next(
    moving: Clock, watching: probe.Probe
) -> None:
    class Slow(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            moving.now += 3

    model = Net(moving)
    optimizers = [Slow([part.weight], {}) for part in (model.first, model.last)]
    for _ in range(3):
        model(ROWS).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert [(step.optimizer, step.metrics) for step in watching.take(wait=False)] == [(3, 0), (6, 0), (6, 0)]


class DistributedDataParallel(Wrapper):
    """As apex and Megatron-LM call theirs."""


def test_a_model_may_get_a_communication_hook_until_it_trains(
    watching: probe.Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DDP takes one hook, and a validation may come before the script gives it its own."""
    hooked: list[Any] = []
    monkeypatch.setattr(watching, "_watch_buckets", hooked.append)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    GROUPS.append(torch.distributed.group.WORLD)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        with torch.no_grad():
            model(ROWS)
        assert hooked == []
        for _ in range(2):
            train(model, sgd(model))
        assert hooked == [model]
    finally:
        torch.distributed.destroy_process_group()


def lazy() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 4))
    model(ROWS)
    return model


def traced() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    torch.fx.symbolic_trace(model)
    return model


def drawn() -> torch.nn.Module:
    """As TensorBoard's add_graph and torch.onnx look at a model; its dimensions are then tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    torch.jit.trace(model, ROWS)
    return model


@pytest.mark.parametrize(
    "make", [lazy, traced, drawn, lambda: DistributedDataParallel(torch.nn.Linear(4, 4))]
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:`torch.jit:DeprecationWarning")
def test_no_kind_of_module_ends_the_watching(watching: probe.Probe, make: Callable[[], Any]) -> None:
    model = make()
    train(model, sgd(model))
    assert [step.rows for step in watching.take(wait=False)] == [8]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_measured_model_can_be_scripted_and_a_scripted_one_measured(watching: probe.Probe) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    train(model, sgd(model))
    scripted: Any = torch.jit.script(model)
    for module in (model, scripted):
        train(module, sgd(module))
    assert [step.rows for step in watching.take(wait=False)] == [8] * 3


def test_an_optimizer_that_steps_within_backward_has_its_steps_and_is_told(watching: probe.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    for weight in model.parameters():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(3):
        model(ROWS).sum().backward()
    assert [step.rows for step in watching.take(wait=False)] == [8] * 3
    assert watching.notes() == ["forward", "fused"]


def test_rows_are_those_of_the_model_that_got_most(watching: probe.Probe) -> None:
    encoder, decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    train(lambda rows: decoder(encoder(rows)), sgd(encoder, decoder))
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(10)])
    train(layers.forward, sgd(layers))
    optimizer = sgd(encoder)
    encoder(ROWS).sum().backward()
    train(encoder, optimizer)  # the second micro-batch
    assert [step.rows for step in watching.take(wait=False)] == [8, 8, 16]


@pytest.mark.usefixtures("unsent")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_what_is_compiled_is_compiled_once_and_no_warning_tells_of_the_probe() -> None:
    watching = probe.Probe(torch)
    watching.watch()
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    within, model = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    function = torch.compile(lambda rows: within(rows) * 2, backend=backend)
    whole = torch.compile(Wrapper(torch.nn.Linear(4, 4)), backend=backend)
    optimizer = sgd(within, model, whole)  # pyright: ignore[reportArgumentType]
    for _ in range(probe.LEARN_STEPS + 3):
        train(lambda rows: whole(model(function(rows))), optimizer)
    assert len(compiled) == 2
    assert len(watching.take(wait=False)) == probe.LEARN_STEPS + 3
    watching.finish()


def test_after_its_end_nothing_is_kept(watching: probe.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    train(model, optimizer)
    watching.finish()
    watching.failure = None  # nobody listens here
    for rows in batches(20, loader=True):
        train(model, optimizer, rows)
    assert len(watching._steps) <= 1 and len(watching._stamps) == 0
    assert watching._key not in watching._searching


def test_another_thread_is_told(watching: probe.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    thread = threading.Thread(target=train, args=(model, sgd(model)))
    thread.start()
    thread.join()
    assert watching.notes() == ["apart"]


def test_a_failure_of_the_probe_does_not_reach_the_script(watching: probe.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    train(model, optimizer)
    watching._now = lambda: 1 / 0
    for rows in batches(3, loader=True):
        train(model, optimizer, rows)
    assert watching.failure == "ZeroDivisionError: division by zero" and len(watching._steps) == 1
    watching.failure = None


def test_a_model_on_a_cpu_that_is_called_after_one_on_a_gpu_leaves_the_clock(watching: probe.Probe) -> None:
    watching._gpu, watching._now, watching._capturing = GPU, lambda: 0.0, lambda: False
    torch.nn.Linear(4, 4)(ROWS)
    assert watching._gpu == GPU and watching._stamps


def test_the_gpu_of_the_weights_is_stamped_whichever_the_process_has_chosen(
    watching: probe.Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backward runs on that of the weights, and CUDA tells no time between events of two GPUs."""
    streams: list[Any] = []
    event = SimpleNamespace(record=streams.append)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: device)
    watching._capturing = lambda: False
    weights = [SimpleNamespace(is_cuda=False), SimpleNamespace(is_cuda=True, device=GPU)]
    # As libraries do before the first forward pass, to fill the optimizer's state.
    watching._before_optimizer(SimpleNamespace(param_groups=[{"params": weights}]), (), {})
    assert streams == [GPU]
    watching.restart()
    watching.mark("data")
    assert streams == [GPU, GPU] and watching.describe()["device"] == "cuda"
    watching._begin_anew()  # as in a fork, which cannot use CUDA
    watching.mark("data")
    assert len(streams) == 2 and watching.describe()["device"] == "cpu"


class Graph:
    """A CUDA graph without a GPU; a replay takes as long as the clock says."""

    def __init__(self, moving: Clock) -> None:
        self.moving = moving

    def capture_begin(self, mode: str = "global") -> None:
        assert mode == "relaxed"

    def replay(self) -> None:
        self.moving.now += FORWARD_S


def refusing(callables: Any) -> Any:
    """As torch.cuda.make_graphed_callables, which takes no module with hooks."""
    assert not callables._forward_pre_hooks and not callables._forward_hooks
    return callables


def test_a_step_in_a_cuda_graph_is_one_at_each_replay(moving: Clock, watching: probe.Probe) -> None:
    cuda: Any = SimpleNamespace(CUDAGraph=Graph, make_graphed_callables=refusing)
    watching._watch_graphs(cuda)
    model, graph, other = Net(moving), Graph(moving), Graph(moving)
    optimizer = sgd(model)
    train(model, optimizer)
    other.capture_begin(mode="relaxed")  # of another part of the script
    graph.capture_begin(mode="relaxed")
    watching._capturing = lambda: True
    train(model, optimizer)
    watching._capturing = lambda: False
    assert len(watching.take(wait=False)) == 1, "what is captured does not happen yet"
    moving.now += BACKWARD_S + FORWARD_S + 5
    for _ in range(3):
        other.replay()
        graph.replay()
    assert "graph" in watching.notes()
    first, *others = watching.take(wait=False)
    assert (first.optimizer, first.rows) == (FORWARD_S, len(ROWS)) and first.metrics > 5
    assert [(step.optimizer, step.metrics, step.rows) for step in others] == [(FORWARD_S, FORWARD_S, 8)] * 2
    assert cuda.make_graphed_callables(model) is model


def test_only_the_thread_that_trains_calls_cuda(
    watching: probe.Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call from another one ends the capture of a CUDA graph, and so the script."""
    callers: set[int] = set()

    class Event:
        def __init__(self, enable_timing: bool = True) -> None: ...

        def record(self, stream: Any = None) -> None:
            callers.add(threading.get_ident())

        def query(self) -> bool:
            callers.add(threading.get_ident())
            return True

        def elapsed_time(self, other: "Event") -> float:
            callers.add(threading.get_ident())
            return 1.0

        synchronize = record

    def take() -> None:
        collected.append(len(watching.take(wait=False)))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: callers.add(threading.get_ident()))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    watching._gpu, watching._capturing = GPU, lambda: False
    collected: list[int] = []
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer)
        ended = clock.monotonic()
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        assert watching.until < ended, "no step that ended later was read"
    assert collected == [0, 2, 1], "what is asked for is read as the next step ends"
    assert callers == {threading.get_ident()}
