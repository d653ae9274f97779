"""Training loops of many kinds under a probe in this process, on a clock that their modules move on."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from mlbench.probe import buckets, clock, install, models, sender
from mlbench.probe.stamps import DATA
from mlbench.script.steps import FRESH_PASSES, PASSES, Splitter, Step

FORWARD_S, BACKWARD_S = 1.0, 2.0
ROWS = torch.ones(8, 4)
GPU = torch.device("cuda:1")
# gloo's groups end with this process: one that ends right after a backward pass may wait for its own thread,
# which waits for Python's lock to free the context of the pass (torch 2.13).
GROUPS: list[Any] = []


SPLITTERS: WeakKeyDictionary[install.Probe, Splitter] = WeakKeyDictionary()


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
    monkeypatch.setattr(DataLoader, "__init_subclass__", DataLoader.__init_subclass__)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    monkeypatch.setattr(torch.autograd, "grad", torch.autograd.grad)


@pytest.fixture
def watching(unsent: None) -> Iterator[install.Probe]:
    watching = install.Probe(torch)
    watching.watch()
    yield watching
    assert watching.recording.failure is None
    watching.finish()


def steps(watching: install.Probe, *, final: bool = False) -> list[Step]:
    """Return the steps of the stamps that were not taken yet; final: of a script that ends here."""
    splitter = SPLITTERS.setdefault(watching, Splitter())
    return splitter.feed(watching.take(wait=False)) + (splitter.finish() if final else [])


def notes(watching: install.Probe) -> list[str]:
    return sorted(watching.recording.notes)


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
    moving: Clock, watching: install.Probe, *, first: bool, loader: bool
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
    assert [parts(step) for step in steps(watching)] == [(0, 2 * FORWARD_S, 0, BACKWARD_S, 0)] * 5


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("loaders", [(True, True), (True, False), (False, True), (False, False)])
def test_a_validation_between_two_steps_is_outside_them(
    moving: Clock, watching: install.Probe, *, bare: bool, loaders: tuple[bool, bool]
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
    assert [parts(step) for step in steps(watching)] == [trained] * 4 + [after] + [trained] * 3
    assert len(SPLITTERS[watching]._part.stamps) < 8  # however many passes there are


def test_a_step_of_an_optimizer_that_raises_is_none_and_the_next_are(
    moving: Clock, watching: install.Probe
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
    assert len(steps(watching)) == 4


def test_an_optimizer_within_another_is_a_part_of_its_step(watching: install.Probe) -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    model = torch.nn.Linear(4, 4)
    inner, outer = sgd(model), Outer(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, outer)
    assert len(steps(watching)) == 3


def test_what_an_optimizer_does_between_two_calls_of_its_closure_is_its_own(
    moving: Clock, watching: install.Probe
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
    taken = steps(watching)
    assert [parts(step) for step in taken] == [(0, 2 * FORWARD_S, 0, 2 * BACKWARD_S, 0)] * 3
    assert [step.optimizer for step in taken] == [6] * 3


def test_outputs_that_share_a_backward_pass_have_one_loss(moving: Clock, watching: install.Probe) -> None:
    """As those of a siamese network, or a discriminator's: one is through when the next gets its gradient."""
    model = Net(moving)
    optimizer = sgd(model)
    for _ in range(5):
        optimizer.zero_grad()
        (model(ROWS) - model(2 * ROWS)).pow(2).mean().backward()
        optimizer.step()
    taken = steps(watching)
    assert [parts(step) for step in taken] == [(0, 2 * FORWARD_S, 0, 2 * BACKWARD_S, 0)] * len(taken)


def test_the_backward_pass_of_layers_that_train_later_is_none_of_the_optimizer_s(
    moving: Clock, watching: install.Probe
) -> None:
    model = Net(moving)
    optimizer = sgd(model)
    for step in range(6):
        model.first.requires_grad_(step > 3)
        train(model, optimizer)
    frozen, whole = [(0, FORWARD_S, 0, 0, 0)], [(0, FORWARD_S, 0, BACKWARD_S, 0)]
    taken = steps(watching)
    assert [parts(step) for step in taken] == frozen * 4 + whole * 2


def test_a_backward_pass_that_comes_to_no_output_is_none_of_the_optimizer_s(
    moving: Clock, watching: install.Probe
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
    taken = steps(watching)
    assert [parts(step) for step in taken] == [(0, FORWARD_S, 0, BACKWARD_S + 5, 0)] * 3
    assert [step.optimizer for step in taken] == [0] * 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_block_that_backward_computes_again_is_a_part_of_it(
    moving: Clock, watching: install.Probe, *, reentrant: bool
) -> None:
    model = Wrapper(Net(moving), again=reentrant)
    optimizer = sgd(model)
    for _ in range(5):
        train(model, optimizer, ROWS.clone().requires_grad_())
    taken = steps(watching)
    assert [parts(step) for step in taken] == [(0, FORWARD_S, 0, FORWARD_S + BACKWARD_S, 0)] * 5
    assert {step.rows for step in taken} == {8}


def test_the_second_optimizer_of_a_step_is_an_optimizer_of_the_next(
    moving: Clock, watching: install.Probe
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
    assert [(step.optimizer, step.metrics) for step in steps(watching)] == [(3, 0), (6, 0), (6, 0)]


class DistributedDataParallel(Wrapper):
    """As apex and Megatron-LM call theirs."""


def test_a_model_may_get_a_communication_hook_until_it_trains(
    watching: install.Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DDP takes one hook, and a validation may come before the script gives it its own."""
    hooked: list[Any] = []
    monkeypatch.setattr(buckets, "watch_buckets", lambda _, model: hooked.append(model))
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
def test_no_kind_of_module_ends_the_watching(watching: install.Probe, make: Callable[[], Any]) -> None:
    model = make()
    train(model, sgd(model))
    assert [step.rows for step in steps(watching)] == [8]


def test_an_optimizer_that_steps_within_backward_has_its_steps_and_is_told(watching: install.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    for weight in model.parameters():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(3):
        model(ROWS).sum().backward()
    assert [step.rows for step in steps(watching)] == [8] * 3
    assert notes(watching) == ["forward", "fused"]


def test_rows_are_those_of_the_model_that_got_most(watching: install.Probe) -> None:
    encoder, decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    train(lambda rows: decoder(encoder(rows)), sgd(encoder, decoder))
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(10)])
    train(layers.forward, sgd(layers))
    optimizer = sgd(encoder)
    encoder(ROWS).sum().backward()
    train(encoder, optimizer)  # the second micro-batch
    assert [step.rows for step in steps(watching)] == [8, 8, 16]


def test_after_its_end_nothing_is_kept(watching: install.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    train(model, optimizer)
    watching.finish()
    count, watching.recording.failure = len(watching.recording.stamps), None  # nobody listens here
    for rows in batches(20, loader=True):
        train(model, optimizer, rows)
    assert len(watching.recording.stamps) == count > 0
    assert models.KEY not in watching._models._hooks


def test_a_loader_with_iterators_of_its_own_is_waited_for(moving: Clock, watching: install.Probe) -> None:
    class Batches:
        def __init__(self) -> None:
            self.left = list(ROWS.repeat(3, 1).split(8))

        def __next__(self) -> torch.Tensor:
            moving.now += 0.5
            if not self.left:
                raise StopIteration
            return self.left.pop()

    class Loader(DataLoader[torch.Tensor]):
        def __iter__(self) -> Any:
            return self.batches()

        def batches(self) -> Batches:
            moving.now += 0.25
            return Batches()

    Batches.__iter__ = lambda self: self  # pyright: ignore[reportAttributeAccessIssue]
    model = Net(moving)
    optimizer = sgd(model)
    for rows in Loader([]):  # pyright: ignore[reportArgumentType]
        train(model, optimizer, rows)
    assert [step.data_wait for step in steps(watching)] == [0.75, 0.5, 0.5]


def in_thread(call: Callable[..., object], *arguments: Any) -> None:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def fit(model: torch.nn.Module, count: int) -> None:
    optimizer = sgd(model)
    for rows in batches(count, loader=True):
        train(model, optimizer, rows)


def test_the_thread_that_trains_is_watched_and_the_next_after_its_end(
    moving: Clock, watching: install.Probe
) -> None:
    model = Net(moving)
    list(batches(2, loader=True))  # in the main thread, which trains nothing
    in_thread(fit, model, 3)
    in_thread(fit, Net(moving), 2)
    assert [parts(step) for step in steps(watching)] == [(0, FORWARD_S, 0, BACKWARD_S, 0)] * 5
    assert notes(watching) == ["data", "forward"]


def test_a_second_thread_that_trains_is_told_and_not_measured(moving: Clock, watching: install.Probe) -> None:
    model = Net(moving)
    optimizer = sgd(model)
    train(model, optimizer)
    in_thread(fit, Net(moving), 3)
    in_thread(optimizer.step)  # a step that another thread makes is one
    train(model, optimizer)
    in_thread(fit, Net(moving), 2)
    assert [step.rows for step in steps(watching)] == [8, 8]
    assert notes(watching) == ["forward", "threads"]


def test_a_failure_of_the_probe_does_not_reach_the_script(watching: install.Probe) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    train(model, optimizer)
    watching.recording.now = lambda: 1 / 0
    for rows in batches(3, loader=True):
        train(model, optimizer, rows)
    assert watching.recording.failure == "ZeroDivisionError: division by zero" and len(steps(watching)) == 1
    assert "in now" in watching.recording.log[0] or "<lambda>" in watching.recording.log[0]
    watching.recording.failure = None


@pytest.mark.usefixtures("cuda")
def test_a_model_on_a_cpu_that_is_called_after_one_on_a_gpu_leaves_the_clock(watching: install.Probe) -> None:
    watching.recording.begin_anew(GPU)
    torch.nn.Linear(4, 4)(ROWS)
    device = watching.recording.device
    assert device is not None and device.gpu == GPU and watching.recording.stamps


class Events(list[Any]):
    """Streams on which CUDA's events were recorded, named by devices; and the threads that called CUDA."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def used(self, answer: Any) -> Callable[..., Any]:
        return lambda *_, **__: self.threads.add(threading.get_ident()) or answer

    def record(self, stream: Any = None) -> None:
        self.threads.add(threading.get_ident())
        self.append(stream)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Stand in for torch.cuda."""
    events = Events()
    methods: dict[str, Any] = {"query": events.used(True), "elapsed_time": events.used(1.0)}
    methods |= {"record": lambda _, stream=None: events.record(stream), "synchronize": events.used(None)}
    kind = type("Event", (), methods)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing=True: kind())
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: device)
    monkeypatch.setattr(torch.cuda, "synchronize", events.used(None))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return events


def test_the_gpu_of_the_weights_is_stamped_whichever_the_process_has_chosen(
    watching: install.Probe, cuda: Events
) -> None:
    """Backward runs on that of the weights, and CUDA gives no time between events of two GPUs."""
    weights = [SimpleNamespace(is_cuda=False), SimpleNamespace(is_cuda=True, device=GPU)]
    # As libraries do before the first forward pass, to fill the optimizer's state.
    watching._optimizers.before(SimpleNamespace(param_groups=[{"params": weights}]), (), {})
    assert cuda == [GPU]
    watching.restart()
    watching.mark(DATA)
    assert cuda == [GPU, GPU] and watching.describe()["device"] == "cuda"
    watching._in_child()  # which cannot use CUDA
    watching.mark(DATA)
    assert len(cuda) == 2 and watching.describe()["device"] == "cpu"


class Graph:
    """A CUDA graph without a GPU; a replay takes as long as the clock says."""

    def __init__(self, moving: Clock) -> None:
        self.moving = moving

    def capture_begin(self, mode: str = "global") -> None:
        assert mode == "relaxed"

    def replay(self) -> None:
        self.moving.now += FORWARD_S


def test_a_step_in_a_cuda_graph_is_one_at_each_replay(moving: Clock, watching: install.Probe) -> None:
    kind: Any = type("CUDAGraph", (Graph,), {})
    watching._graphs.watch(kind)
    model, graph, other = Net(moving), kind(moving), kind(moving)
    optimizer = sgd(model)
    train(model, optimizer)
    assert not model._forward_pre_hooks and not model._forward_hooks  # make_graphed_callables refuses them
    other.capture_begin(mode="relaxed")  # of another part of the script
    graph.capture_begin(mode="relaxed")
    watching.recording.now = lambda: None
    train(model, optimizer)
    watching.recording.now = moving
    assert len(steps(watching)) == 1, "what is captured does not happen yet"
    moving.now += BACKWARD_S + FORWARD_S + 5
    for _ in range(3):
        other.replay()
        graph.replay()
    assert "graph" in notes(watching)
    first, *others = steps(watching)
    assert (first.optimizer, first.rows) == (FORWARD_S, len(ROWS)) and first.metrics > 5
    assert [(step.optimizer, step.metrics, step.rows) for step in others] == [(FORWARD_S, FORWARD_S, 8)] * 2


def test_only_the_thread_that_trains_calls_cuda(watching: install.Probe, cuda: Events) -> None:
    """A call from another one ends the capture of a CUDA graph, and so the script."""
    watching.recording.begin_anew(GPU)
    collected: list[int] = []
    model = torch.nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer)
        ended = clock.monotonic()
        thread = threading.Thread(target=lambda: collected.append(len(steps(watching))))
        thread.start()
        thread.join()
        assert watching.recording.until < ended, "no step that ended later was read"
    assert collected == [0, 2, 1], "what is asked for is read as the next step ends"
    assert cuda.threads == {threading.get_ident()}
    watching.recording.begin_anew()


def by_hand(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        assert weight.grad is not None
        weight.data.add_(weight.grad, alpha=-0.1)
        weight.grad = None


def a_weight_s_data(model: torch.nn.Module) -> Callable[[Any], object]:
    def step(rows: Any) -> None:
        model(rows).pow(2).mean().backward()
        by_hand(model)

    return step


def gradients_alone(model: torch.nn.Module) -> Callable[[Any], object]:
    weights = [*model.parameters()]

    def step(rows: Any) -> None:
        gradients = torch.autograd.grad(model(rows).pow(2).mean(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.data.add_(gradient, alpha=-0.1)

    return step


def functions(model: torch.nn.Module) -> Callable[[Any], object]:
    weights = dict(model.named_parameters())

    def loss(weights: Any, rows: Any) -> Any:
        return torch.func.functional_call(model, weights, (rows,)).pow(2).mean()

    def step(rows: Any) -> None:
        gradients = torch.func.grad(loss)(weights, rows)
        weights.update({name: weight - 0.1 * gradients[name] for name, weight in weights.items()})

    return step


def a_compiled_optimizer(model: torch.nn.Module) -> Callable[[Any], object]:
    optimizer = sgd(model)
    compiled = torch.compile(optimizer.step, backend="eager")

    def step(rows: Any) -> None:
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        compiled()

    return step


def a_compiled_step(model: torch.nn.Module) -> Callable[[Any], object]:
    optimizer = sgd(model)
    whole = torch.compile(lambda rows: train(model, optimizer, rows), backend="eager")

    def step(rows: Any) -> None:
        whole(rows)

    return step


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize(
    "kind",
    [a_weight_s_data, gradients_alone, functions, a_compiled_optimizer, a_compiled_step],
)
@pytest.mark.filterwarnings("ignore:.*(Tensor that is not a leaf|torch.jit):")
def test_without_an_optimizer_s_step_a_step_is_a_backward_pass(
    watching: install.Probe, kind: Callable[[torch.nn.Module], Callable[[Any], object]], *, loader: bool
) -> None:
    torch._dynamo.reset()
    model = torch.nn.Linear(4, 4)
    step = kind(model)
    for rows in batches(6, loader=loader):
        step(rows)
    taken = steps(watching, final=True)
    assert len(taken) == 6
    # Python 3.13: torch calls a compiled step's optimizer outside of the graph, where it is seen.
    seen = kind in (a_compiled_optimizer, a_compiled_step) and sys.version_info >= (3, 13)
    assert SPLITTERS[watching].by_passes != seen
    assert all(each.backward > 0 for each in taken)
    if kind is not a_compiled_step:
        assert [each.rows for each in taken] == [8] * 6 and all(each.forward > 0 for each in taken)
    assert all(each.data_wait > 0 for each in taken) == loader


def test_weights_without_a_module_train_in_backward_passes(moving: Clock, watching: install.Probe) -> None:
    weight = torch.ones(4, requires_grad=True)
    for _ in range(5):
        moving.now += FORWARD_S
        Work.apply(weight, moving).sum().backward()
        assert weight.grad is not None
        weight.data -= 0.1 * weight.grad
        weight.grad = None
    taken = steps(watching, final=True)
    assert [(step.backward, step.metrics, step.forward) for step in taken] == [(BACKWARD_S, 0, 0)] + [
        (BACKWARD_S, 2 * FORWARD_S, 0)
    ] * 4


@pytest.mark.parametrize("fresh", [True, False])
def test_what_an_update_by_hand_takes_is_no_part_of_the_optimizer(
    moving: Clock, watching: install.Probe, *, fresh: bool
) -> None:
    model = Net(moving)
    count = FRESH_PASSES if fresh else PASSES
    for _ in range(count + 1):
        model(ROWS).pow(2).mean().backward()
        moving.now += 7
        if fresh:
            model.zero_grad()
    taken = steps(watching)  # while the script goes on
    assert len(taken) == count
    assert [(step.metrics, step.optimizer, step.backward) for step in taken[1:]] == [(7, 0, BACKWARD_S)] * (
        count - 1
    )


def test_micro_batches_before_the_first_step_are_one_step(moving: Clock, watching: install.Probe) -> None:
    model = Net(moving)
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(40):
            model(ROWS).pow(2).mean().backward()
        optimizer.step()
    taken = steps(watching)
    assert [parts(step) for step in taken] == [(0, 40 * FORWARD_S, 0, 40 * BACKWARD_S, 0)] * 2
    assert [step.rows for step in taken] == [320, 320]
    assert not SPLITTERS[watching].by_passes


def test_a_validation_of_a_model_that_is_updated_by_hand_is_one(
    moving: Clock, watching: install.Probe
) -> None:
    """Without a DataLoader, as in language models with batches of their own."""
    model = Net(moving)
    for _ in range(2):
        for _ in range(3):
            model(ROWS).pow(2).mean().backward()
            by_hand(model)
        with torch.no_grad():
            model(ROWS)
            model(ROWS)
    taken = steps(watching, final=True)
    trained, after = (0, FORWARD_S, 0, BACKWARD_S, 0), (2 * FORWARD_S, FORWARD_S, 0, BACKWARD_S, 0)
    assert [parts(step) for step in taken] == [trained] * 3 + [after] + [trained] * 2


class Sizeless:
    ndim = 2

    def size(self, dimension: int) -> int:
        raise RuntimeError("no size")


def test_rows_that_cannot_be_counted_are_said_and_the_rest_is_seen(watching: install.Probe) -> None:
    class Odd(torch.nn.Linear):
        def forward(self, rows: Any) -> Any:
            return super().forward(ROWS)

    model = Odd(4, 4)
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer, Sizeless())
    taken = steps(watching)
    assert [step.rows for step in taken] == [0] * 3 and all(step.forward > 0 for step in taken)
    assert "uncounted" in notes(watching) and len(watching.recording.log) == 1
    assert "no size" in watching.recording.log[0]


def test_gradients_within_a_forward_pass_are_a_part_of_it(moving: Clock, watching: install.Probe) -> None:
    """As a model of forces, which are the gradient of its energy."""

    class Forces(Net):
        def forward(self, rows: torch.Tensor) -> Any:
            energy = super().forward(rows).sum()
            return torch.autograd.grad(energy, rows)[0].sum() + super().forward(rows).mean()

    model = Forces(moving)
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(ROWS.clone().requires_grad_()).backward()
        optimizer.step()
    expected = (0, 2 * FORWARD_S + BACKWARD_S, 0, BACKWARD_S, 0)
    assert [parts(step) for step in steps(watching)] == [expected] * 3


def test_an_encoder_layer_keeps_its_fast_path(
    watching: install.Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    calls: list[Any] = []
    fast: Any = vars(torch)["_transformer_encoder_layer_fwd"]
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: calls.append(1) or fast(*a))
    optimizer = sgd(layer)
    rows = torch.ones(2, 3, 8)
    for _ in range(2):
        layer.train()
        train(layer, optimizer, rows)
        layer.eval()
        with torch.no_grad():
            layer(rows)
    assert len(calls) == 2
    train(layer.train(), optimizer, rows)
    assert [step.validation > 0 for step in steps(watching)] == [False, True, True]


@pytest.mark.usefixtures("unsent")
def test_a_compiled_step_has_the_graphs_that_it_has_without_the_probe() -> None:
    counts: list[int] = []
    for watched in (False, True):
        torch._dynamo.reset()
        watching, graphs = install.Probe(torch), list[Any]()
        if watched:
            watching.watch()
            assert not watching.recording.log

        def backend(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        model = torch.nn.Linear(4, 4)
        optimizer = sgd(model)
        whole = torch.compile(lambda model=model, o=optimizer: train(model, o), backend=backend)
        for _ in range(4):
            whole()
        counts.append(len(graphs))
        watching.finish()
    assert counts[0] == counts[1] > 0
