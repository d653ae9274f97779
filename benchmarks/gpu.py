"""Everything that one GPU can tell, as a plan that calls of some minutes carry out one after another.

    python benchmarks/gpu_wheels.py        where there is a network: wheels that the machine lacks
    python benchmarks/gpu.py --minutes 9   on a machine with one GPU, until the exit code is not 75
    python benchmarks/gpu.py --minutes 1 --dry-run    on a CPU: mini models, a few steps, the same code

Needs torch >= 2.11, numpy and pyarrow, and what lies in build/gpu-wheels; no Ray, MLflow, network or data.
The tasks at official size on stand-in data of the official shape: the three most telling cases, then the
tests marked `gpu`, where pytest is installed, then all else. A case is a task in one precision with one
value of `compile=`, through the loop's own steps with its clocks on, and the reference
(benchmarks/references) on the same batches, compiled where ours is. A case may have further words: a field
of the task, or attention=flash or cudnn, for both. Writes gpu.json and gpu.md into --output; a later call
goes on there. benchmarks/gpu_page.py makes a page's table and picture of them.

Exit code: 0, the plan is carried out; 75, there was no time for all of it: call again; 1, it is carried out
and a case or a test failed; 2, it cannot begin.
"""

import argparse
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
import gpu_wheels  # noqa: E402

LACKING = gpu_wheels.unpacked()
sys.path += LACKING  # what the machine has comes first
# What is imported for data, validation, clusters and display, none of which happens here.
STUBBED = (
    "PIL",
    "sacrebleu",
    "sacrebleu.metrics",
    "sacrebleu.metrics.bleu",
    "sacremoses",
    "tokenizers",
    "psutil",
)
for name in STUBBED:
    try:
        import_module(name)
    except ImportError:
        sys.modules[name] = mock.MagicMock()

try:
    import hydra  # noqa: F401
    import pydantic  # noqa: F401
except ImportError as error:
    print(
        f"{error}; python benchmarks/gpu_wheels.py makes {gpu_wheels.WHEELS.name} where there is a network",
        file=sys.stderr,
    )
    sys.exit(2)

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import torch  # noqa: E402
from references import build, joint, size_of, train_step  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from mlbench.clusters import calibrate  # noqa: E402
from mlbench.config.compose import compose  # noqa: E402
from mlbench.config.errors import UserError  # noqa: E402
from mlbench.tasks import registry  # noqa: E402
from mlbench.training import loop, precision  # noqa: E402
from mlbench.training.timer import PhaseTimer  # noqa: E402
from mlbench.training.worker import Worker  # noqa: E402

TASKS = ("gpt", "resnet50", "transformer", "gnmt", "resnet20", "logreg", "awdlstm")
FIRST = ("gpt", "resnet50", "transformer")  # whose step time, MFU and ratio say most
# The goals: nanoGPT's rate, three times an eager ResNet-20's, a quarter of the peak for ResNet-50.
BEGIN = (("gpt", "inductor"), ("resnet20", "graphs"), ("resnet50", "inductor"))
# What may make gpt faster and changes no mathematics: smaller and larger micro-batches, attention's kernels.
TRIES = (
    ("inductor", "task.batch_size=16"),
    ("inductor", "task.batch_size=64"),
    ("inductor", "attention=flash"),
    ("inductor", "attention=cudnn"),
    ("max_autotune",),
    ("inductor_graphs",),
)
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
WARM_UP_S, MEASURE_S = 2.0, 6.0  # s of a case, at least one step each
WARM_UP_STEPS = 14  # steps at least where some are captured: 11 before that, and two that replay
CASE_S, TESTS_S = 150, 200  # s that a case, whose kernels may have to be compiled, and the tests may take
LAST_LINES = 15  # of a failed test's report
TOP = 5  # operators of a profile
ABSENT = "ModuleNotFoundError"  # in pytest's report of what needs a package that this machine has not got
TIME_OVER = 75  # exit code: EX_TEMPFAIL of sysexits.h
MODES = ("eager", "inductor", "graphs", "inductor_graphs", "max_autotune")  # values of compile=, and none
# What a plain script asks of torch.compile for the same.
PUBLIC: dict[str, dict[str, Any]] = {
    "inductor": {},
    "graphs": {"mode": "reduce-overhead"},
    "inductor_graphs": {"mode": "reduce-overhead"},
    "max_autotune": {"mode": "max-autotune-no-cudagraphs"},
}
# torch's own CUDA graphs refuse gradients that micro-batches add up (pytorch/pytorch issue 169545).
NO_PUBLIC_GRAPHS = ("gpt",)
ONE_SHAPE = ("resnet50", "resnet20", "logreg", "gpt")  # tasks that `compile=graphs` takes
NO_BF16 = ("gnmt", "awdlstm")  # autocast knows none for cuDNN's LSTMs
NO_FP16 = ("gpt",)  # bf16 is its only half precision
HOPPER = {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12}
AMPERE = {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
# FLOP/s of dense products by torch's whole name of a card: data sheets of H100 and H200 SXM (2022, 2023) and
# A100 SXM (2020). Cards for PCIe, pairs (NVL) and slices (MIG) have other peaks.
PEAKS: dict[str, dict[str, float]] = {
    "NVIDIA H100 80GB HBM3": HOPPER,
    "NVIDIA H200": HOPPER,
    "NVIDIA A100-SXM4-40GB": AMPERE,
    "NVIDIA A100-SXM4-80GB": AMPERE,
}
TINY = {  # of a dry run
    "resnet50": ("task.batch_size=4",),
    "gnmt": ("task.global_batch_size=8", "task.chunks=1", "task.batch_size=8"),
    "transformer": ("task.global_batch_size=256", "task.chunks=1", "task.batch_size=256"),
    "gpt": ("task.global_batch_size=2",),
}
COLUMNS = (
    "task", "precision", "mode", "words", "samples_per_s", "unit", "step_ms", "mfu", "data_wait", "peak_gb",
    "reference_per_s", "ratio", "flop_per_byte",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Carry out the plan for so many minutes and write the files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--output", type=Path, default=Path("gpu-results"))
    parser.add_argument("--dry-run", action="store_true", help="on a CPU: mini models and a few steps")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TASKS)}")
    options = parser.parse_args(arguments)
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --dry-run shows what would be measured")
    if options.dry_run:
        torch.set_num_threads(1)
    begin = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    result = earlier(options.output / "gpu.json", machine(options.dry_run))
    begun = False
    items = plan(options.tasks or TASKS, dry_run=options.dry_run)
    for item in items:
        name = " ".join(item)
        if name in result["done"]:
            continue
        left = 60 * options.minutes - (time.perf_counter() - begin)
        # Each call carries out one item at least, however little time it has beside the longest so far.
        if left <= 0 or (begun and left < max(result["done"].values())):
            break
        begun = True
        started = time.perf_counter()
        failure = carry_out(item, result, dry_run=options.dry_run)
        result["done"][name] = round(time.perf_counter() - started, 1)
        if failure:
            print(f"FAILED {name}: {failure}", flush=True)
        save(options.output, result)
        if "CUDA error" in failure:  # after which this process can compute nothing more
            left = options.minutes - (time.perf_counter() - begin) / 60
            again = ["--minutes", f"{left:.2f}", "--output", str(options.output), *options.tasks]
            os.execv(sys.executable, [sys.executable, __file__, *again])
        release()
    result["left"] = [name for name in map(" ".join, items) if name not in result["done"]]
    save(options.output, result)
    print(markdown(result))
    if result["left"]:
        return TIME_OVER
    return 1 if result["failed"] else 0


def earlier(path: Path, here: dict[str, Any]) -> dict[str, Any]:
    """Return what earlier calls left, where they measured the same code on the same machine; else nothing."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError):
        results = {}
    before = results.get("machine", {})
    if all(before.get(key) == value for key, value in here.items() if key != "date"):
        return results
    return {"machine": here, "done": {}, "cases": [], "skipped": {}, "failed": {}, "left": []}


def save(folder: Path, result: dict[str, Any]) -> None:
    """Write both files; a call that is killed leaves those of the item before."""
    for name, text in (("gpu.json", json.dumps(result, indent=1) + "\n"), ("gpu.md", markdown(result))):
        part = folder / f"{name}.part"
        part.write_text(text)
        part.replace(folder / name)


def carry_out(item: tuple[str, ...], result: dict[str, Any], *, dry_run: bool) -> str:
    """Carry out one item of the plan and add to the result; return why it failed, or nothing."""
    name, failure = " ".join(item), ""
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(CASE_S)
    try:
        if item == ("rates",):
            result["rates"] = calibrate.calibrate(torch.get_num_threads(), clock=time.perf_counter)
        elif item == ("tests",):
            signal.alarm(0)
            result["tests"] = gpu_tests(TESTS_S)
            failure = ", ".join(result["tests"]["failed"])
        elif item[0] == "profile":
            result["profile"] = {item[1]: profile(*item[1:], dry_run=dry_run)}
        else:
            task, number, mode, *words = item
            result["cases"].append(case(task, number, mode, words, dry_run=dry_run))
            print(" ".join(f"{key}={result['cases'][-1][key]}" for key in COLUMNS), flush=True)
    except UserError as error:  # e.g. a GPU without bf16
        result["skipped"][name] = str(error)
    except Exception as error:
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"[:500]
    finally:
        signal.alarm(0)
    if failure:
        result["failed"][name] = failure
    return failure


def _out_of_time(*_: Any) -> None:
    raise TimeoutError(f"it took more than {CASE_S} s")


def plan(tasks: Sequence[str], *, dry_run: bool) -> list[tuple[str, ...]]:
    """Return the items in the order of what they tell; cases are (task, precision, mode, *words)."""
    ordered = sorted(tasks, key=[*FIRST, *tasks].index)
    half = {name: "fp16" if name in NO_BF16 else "bf16" for name in tasks}
    if dry_run:
        items = [(name, number, "eager") for number in ("bf16", "fp32") for name in ordered]
        return [*items, *((name, "fp32", "inductor") for name in ordered if name in ONE_SHAPE)]
    items: list[tuple[str, ...]] = [(name, half[name], mode) for name, mode in BEGIN if name in tasks]
    items.append(("tests",))
    if "gpt" in tasks:
        items += [("gpt", half["gpt"], *words) for words in TRIES]
        items.append(("profile", "gpt", half["gpt"], "inductor"))
    items += [(name, half[name], "eager") for name in ordered] + [("rates",)]
    items += [(name, half[name], mode) for mode in MODES for name in ordered if name in ONE_SHAPE]
    items += [(name, half[name], "inductor") for name in ordered]
    for number in ("fp16", "tf32", "fp32"):
        items += [(name, number, "eager") for name in ordered if number != "fp16" or name not in NO_FP16]
    return list(dict.fromkeys(items))


def case(name: str, number: str, mode: str, words: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
    """Return what one task does in one precision and mode."""
    device = torch.device("cpu" if dry_run else "cuda")
    with attention(words), built(name, number, mode, words, dry_run=dry_run) as (config, run, data):
        setup = run.setup
        batches = chain.from_iterable(setup.steps(data, epoch) for epoch in count())
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        train(run, batches, 0.0 if dry_run else WARM_UP_S, least=1 if dry_run else WARM_UP_STEPS)
        times = train(run, batches, 0.0 if dry_run else MEASURE_S)
        peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
        rate = times.samples / times.seconds
        flops = setup.flops_per_sample(data)
        ready = list(islice(batches, 1 if dry_run else 4))
        theirs = reference_rate(name, config, setup, ready, device, number, mode, dry_run=dry_run)
        ours = ready_rate(lambda: advance(run, ready), setup, ready, device, dry_run=dry_run)
        hardware = PEAKS.get(torch.cuda.get_device_name()) if device.type == "cuda" else None
        return {
            "task": name,
            "precision": number,
            "mode": mode,
            "words": " ".join(words),
            "samples_per_s": rounded(rate),
            "unit": setup.sample_unit,
            "step_ms": rounded(1e3 * times.seconds / times.steps),
            "mfu": rounded(flops * rate / hardware[number]) if flops and hardware else None,
            "data_wait": None if name == "resnet50" else rounded(times.phases["data_wait"] / times.seconds),
            "peak_gb": rounded(peak),
            "reference_per_s": rounded(theirs),
            "ratio": rounded(ours / theirs),
            "flop_per_byte": rounded(intensity(run, ready[0], flops)) if mode == "eager" and flops else None,
            "flops_per_sample": flops,
            "phases": {phase: rounded(seconds / times.seconds) for phase, seconds in times.phases.items()},
            "steps": times.steps,
        }


@contextmanager
def built(name: str, number: str, mode: str, words: Sequence[str], *, dry_run: bool) -> Iterator[Any]:
    """Yield a task's configuration, its run and its data, as `compile=` has them."""
    device = torch.device("cpu" if dry_run else "cuda")
    overrides = [f"task={name}", f"task.precision={number}", "goal=none", "division=open"]
    overrides += ["scale=mini", *TINY.get(name, ())] if dry_run else ["scale=official", "backend=nccl"]
    config = compose([*overrides, *(word for word in words if word.startswith("task."))]).task
    worker = Worker(seed=1, device=device, timer=PhaseTimer(str(device)))
    # A dry run goes the way of a compiled step, and takes no minute for it.
    worker.compile = None if mode == "eager" else "aot_eager" if dry_run else mode
    with stand_in(name, small=dry_run):
        setup = registry.build(config, worker)
        data = setup.load()
    try:
        yield config, loop.Run(setup, worker), data
    finally:
        setup.close()


def attention(words: Sequence[str]) -> Any:
    """Return a context in which attention has the kernels that a word names, in both programs."""
    names = [word.removeprefix("attention=") for word in words if word.startswith("attention=")]
    return sdpa_kernel(ATTENTION[names[0]]) if names else nullcontext()


class Traffic(TorchDispatchMode):
    """Adds up the bytes that operators read and write, each by itself: no cache, nothing fused."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
            self.bytes += sum(each.numel() * each.element_size() for each in tensors)
        return result


def intensity(run: loop.Run, micro_batches: Sequence[Any], flops_per_sample: float) -> float:
    """Return the model's FLOP for each byte that the operators of an eager step move."""
    samples = sum(map(run.setup.samples, micro_batches))
    # In one thread, as an operator of another thread's backward pass would not be seen.
    with torch.autograd.set_multithreading_enabled(False), Traffic() as traffic:
        advance(run, [micro_batches])
    return flops_per_sample * samples / traffic.bytes


def profile(name: str, number: str, mode: str, *, dry_run: bool) -> list[dict[str, Any]]:
    """Return the kernels that take most of a step's time on the device, with their shares."""
    with built(name, number, mode, (), dry_run=dry_run) as (_, run, data):
        batches = chain.from_iterable(run.setup.steps(data, epoch) for epoch in count())
        train(run, batches, 0.0 if dry_run else WARM_UP_S)
        with torch.profiler.profile() as recorded:
            train(run, islice(batches, 2), 0.0)
    kind = "CPU" if dry_run else "CUDA"
    events = [each for each in recorded.key_averages() if each.device_type.name == kind]
    took = {each.key: each.self_cpu_time_total if dry_run else each.self_device_time_total for each in events}
    total = sum(took.values())
    largest = sorted(took.items(), key=lambda each: -each[1])[:TOP]
    return [{"kernel": key[:120], "share": rounded(spent / total)} for key, spent in largest]


def train(run: loop.Run, batches: Iterator[Any], seconds: float, *, least: int = 2) -> Any:
    """Train for so long, and so many steps at least, with all clocks; return the PhaseTimes."""
    run.trainer.train()
    run.worker.timer.start()
    begin = time.perf_counter()
    for number, micro_batches in enumerate(batches, start=1):
        run.worker.timer.end_phase("data_wait")
        run.train_step(micro_batches)
        if number >= least and time.perf_counter() - begin > seconds:
            break
    synchronise(run.worker.device)
    return run.worker.timer.pop()[0]


def advance(run: loop.Run, ready: Sequence[Any]) -> None:
    """Run the loop's steps over batches that lie ready."""
    for micro_batches in ready:
        run.worker.timer.end_phase("data_wait")
        run.train_step(micro_batches)


def reference_rate(
    name: str,
    config: Any,
    setup: Any,
    ready: Sequence[Any],
    device: torch.device,
    number: Any,
    mode: str,
    *,
    dry_run: bool,
) -> float:
    """Return the reference's samples/s on the same batches, in the same precision and mode.

    In fp16 it has torch's loss scale, from where ours has come to, so that no step is skipped.
    """
    size = size_of(name, setup.model)
    overrides = {"layout": "channels_first"} if number == "fp32" and not dry_run else {}
    scaler = None
    if setup.scaler is not None:
        scaler = torch.amp.GradScaler(device.type, init_scale=setup.scaler.get_scale())
        overrides = {"optimizer": "fused"}  # steps that take the scale back
    reference = build(config, size, overrides, device.type)
    precision.on_device(number, device)
    net: Any = reference.model
    if mode != "eager":
        how = PUBLIC["inductor" if name in NO_PUBLIC_GRAPHS and "graphs" in mode else mode]
        reference = joint(reference, **({"backend": "aot_eager"} if dry_run else how))
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(number)
    context = torch.autocast(device.type, lower, enabled=lower is not None)
    for group in reference.optimizer.param_groups:
        group["lr"] = 1e-6  # finite over many passes of the same batches
    reference.model.train()

    def steps() -> None:
        for micro_batches in ready:
            train_step(reference, net, micro_batches, context, scaler)

    return ready_rate(steps, setup, ready, device, dry_run=dry_run)


def ready_rate(
    steps: Callable[[], None], setup: Any, ready: Sequence[Any], device: torch.device, *, dry_run: bool
) -> float:
    """Return samples/s of `steps`, which goes once through the batches that lie ready."""
    samples = sum(setup.samples(batch) for micro_batches in ready for batch in micro_batches)
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < 2 or time.perf_counter() - begin < (0.0 if dry_run else MEASURE_S / 2):
        start = time.perf_counter()
        steps()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return samples / median(seconds[1:])


def stand_in(name: str, *, small: bool) -> Any:
    """Return a context in which task `name` opens random data of the official shape."""
    package = "translation" if name in ("gnmt", "transformer") else name
    module = import_module(f"mlbench.tasks.{package}.data")
    patches = {
        "prepare_dataset": lambda *_, **__: Path(),
        "open_dataset": lambda _, **shape: OPENED[package](module, np.random.default_rng(0), small, **shape),
    }
    stack = mock.patch.multiple(module, **patches)
    if name != "resnet50":
        return stack
    decode = import_module("mlbench.tasks.resnet50.decode")
    return _both(stack, mock.patch.object(decode, "Loader", Noise))


class _both:
    def __init__(self, *contexts: Any) -> None:
        self.contexts = contexts

    def __enter__(self) -> None:
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


class Noise:
    """Takes the place of the decoding processes: random pixels, so waiting for data is not measured."""

    def __init__(self, decoder: Any, *, processes: int, largest: int) -> None:
        shape = (largest, decoder.crop, decoder.crop, 3)
        self.images = torch.randint(256, shape, dtype=torch.uint8)

    def batches(self, tasks: Sequence[Any]) -> Iterator[Any]:
        from mlbench.tasks.resnet50.decode import Pixels

        for task in tasks:
            yield Pixels(self.images[: len(task.rows)], torch.zeros(len(task.rows), dtype=torch.int64))

    def close(self) -> None:
        """Do nothing."""


def _images(module: Any, random: np.random.Generator, small: bool) -> Any:
    train = 500 if small else 50_000
    splits = [
        module.Images(
            torch.from_numpy(random.integers(0, 256, (rows, 3, 32, 32), np.uint8)),
            torch.from_numpy(random.integers(0, 10, rows)),
        )
        for rows in (train, train // 5)
    ]
    return module.ImageSplits(*splits, torch.full((3,), 0.5), torch.full((3,), 0.25), flip=True)


def _photographs(module: Any, random: np.random.Generator, small: bool) -> Any:
    rows = 1_000 if small else 100_000  # of 1,281,167: an epoch's order is all that they decide
    numbers = {name: [np.zeros(rows, np.int64)] for name in ("label", "height", "width")}
    split = module.EncodedImages([], np.zeros(1, np.int64), numbers)
    return module.ImageNetSplits(split, split, [str(label) for label in range(10 if small else 1000)])


def _rows(module: Any, random: np.random.Generator, small: bool) -> Any:
    rows, features = (2_000, 200) if small else (400_000, 2_000)
    made = [
        module.Rows(torch.rand(n, features).sub_(0.5).div_(features**0.5), torch.rand(n).round_())
        for n in (rows, rows // 4)
    ]
    return tuple(made)


def _text(module: Any, random: np.random.Generator, small: bool) -> Any:
    tokens, vocabulary = (5_000, 300) if small else (2_088_628, 33_278)
    made = [torch.from_numpy(random.integers(0, vocabulary, n, np.int32)) for n in (tokens, tokens // 10)]
    return module.Text(*made, vocabulary)


def _sequences(module: Any, random: np.random.Generator, small: bool, context: int) -> Any:
    tokens, vocabulary = (20_000, 2_048) if small else (10_000_000, 50_257)
    text = module.TokenText.__new__(module.TokenText)  # which reads files when it is made
    text.train, text.valid = (
        module.Sequences(random.integers(0, vocabulary, n, np.uint16), context)
        for n in (tokens, tokens // 10)
    )
    text._bytes = np.ones(vocabulary, np.uint8)
    return text


def _sentences(module: Any, random: np.random.Generator, small: bool) -> Any:
    # Lengths about as WMT's: log-normal with a mean of 29 sub-words, of both sides alike.
    pairs, vocabulary, most = (2_000, 753, 24) if small else (300_000, 32_320, 72)
    long = np.exp(random.normal(2.0 if small else 3.2, 0.55, pairs)).clip(2, most)
    sides = []
    for lengths in (long, (long * random.normal(1.05, 0.1, pairs)).clip(2, most)):
        offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])
        sides += [random.integers(4, vocabulary, offsets[-1], np.int32), offsets]
    train = module.Pairs(*sides)
    test = module.Pairs(sides[0][:4], np.array([0, 4]), sides[2][:4], np.array([0, 4]))
    pieces = pa.chunked_array([pa.array([""] * vocabulary)])
    return module.CorpusSplits(train, test, pa.chunked_array([pa.array(["a"])]), pieces, "de")


OPENED: dict[str, Callable[..., Any]] = {
    "resnet20": _images,
    "resnet50": _photographs,
    "logreg": _rows,
    "awdlstm": _text,
    "gpt": _sequences,
    "translation": _sentences,
}


def machine(dry_run: bool) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    description: dict[str, Any] = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dry_run": dry_run,
    }
    git = ["git", "-C", str(ROOT)]
    commit = _output([*git, "rev-parse", "--short", "HEAD"])
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])  # the output is not tracked
    description["commit"] = f"{commit}{' with changes' if changed else ''}" if commit else "unknown"
    if not dry_run:
        query = "--query-gpu=name,driver_version,memory.total"
        driver = _output(["nvidia-smi", query, "--format=csv,noheader"])
        description |= {
            "gpu": driver or torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return description


def gpu_tests(seconds: float) -> dict[str, Any]:
    """Run the tests marked `gpu` of the files that can be imported here; name the others, and what failed."""
    result: dict[str, Any] = {"passed": 0, "failed": [], "not_imported": [], "reason": "", "alone": {}}
    missing = [name for name in ("pytest", "xdist") if importlib.util.find_spec(name) is None]
    if missing:
        return result | {
            "reason": f"{' and '.join(missing)} not installed: the tests marked gpu were not run"
        }
    files = [
        str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        code, seconds_left = run_tests([f"--junitxml={report}", *files], seconds, echo=True)
        if not report.exists():
            end = f"took more than {seconds:.0f} s" if code is None else f"ended with {code}"
            return result | {"failed": [f"pytest {end}"]}
        for each in ElementTree.parse(report).iter("testcase"):
            problem = next((child for child in each if child.tag in ("error", "failure")), None)
            if problem is None:
                result["passed"] += each.find("skipped") is None
            elif ABSENT in (problem.text or ""):  # of the whole file, or in a test
                result["not_imported"].append(each.get("name"))
            else:
                result["failed"].append(f"{each.get('classname')}.{each.get('name')}")
                lines = (problem.text or "").splitlines()[-LAST_LINES:]
                print("\n".join([f"FAILED {result['failed'][-1]}", *lines]), flush=True)
    # A failure may be what another test has left on the GPU: each by itself, in a process of its own.
    for name in result["failed"]:
        if seconds_left > 0:
            *folders, test = name.split(".")
            code, seconds_left = run_tests([f"{'/'.join(folders)}.py::{test}"], seconds_left, echo=False)
            result["alone"][name] = "passes" if code == 0 else "fails"
    return result


def run_tests(words: Sequence[str], seconds: float, *, echo: bool) -> tuple[int | None, float]:
    """Run pytest, one test after the other; return its exit code, None for out of time, and the seconds left.

    - echo: whether to print each line as it comes, so that what was seen is there if the machine goes away.
    """
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-n", "0", "-m", "gpu", "-o", "addopts="]
    command += ["--continue-on-collection-errors", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *LACKING])}
    begin, code = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        timer = threading.Timer(seconds, running.kill)
        timer.start()
        assert running.stdout is not None
        for line in running.stdout:
            if echo and "::" in line:
                print(line.rstrip(), flush=True)
        code = running.wait()
        timer.cancel()
    left = seconds - (time.perf_counter() - begin)
    return (None if left <= 0 else code), left


def markdown(result: dict[str, Any]) -> str:
    """Return the machine, the table and what was skipped."""
    lines = [", ".join(f"{key} {value}" for key, value in result["machine"].items()), ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for each in result["cases"]:
        lines.append(f"| {' | '.join('' if each[key] is None else str(each[key]) for key in COLUMNS)} |")
    for what in ("skipped", "failed"):
        lines += ["", *(f"- {what}: {name}: {reason}" for name, reason in result[what].items())]
    lines += [f"- no time yet: {name}" for name in result["left"]]
    for task, kernels in (result.get("profile") or {}).items():
        lines += [f"- {task}, {100 * each['share']:.3g} % of a step: {each['kernel']}" for each in kernels]
    for key, value in (result.get("rates") or {}).items():
        lines.append(f"- {key}: {value}")
    for key, value in (result.get("tests") or {}).items():
        lines.append(f"- tests, {key.replace('_', ' ')}: {value}")
    return "\n".join(lines) + "\n"


def rounded(value: float | None) -> float | None:
    """Return three significant digits."""
    return None if value is None else float(f"{value:.3g}")


def release() -> None:
    """Give memory back before the next case, and undo what a task decides for its whole process."""
    torch.compiler.reset()
    torch.backends.cuda.enable_cudnn_sdp(True)  # the Transformer's batches are better off without
    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.default_stream())  # captured steps have one of their own
    torch.backends.cudnn.benchmark = False  # convolutions of one shape are better off with it
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
