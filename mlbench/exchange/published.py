"""Results that MLBench published (2020-21), as records that stand beside ours.

An archive tells what was measured, and nothing of how: task, backend, hardware and torch are read from the
path it was published under, e.g. `torch-1.7.0/nlp/translation/wmt16-gnmt-all-reduce/metrics_nccl-16.zip`, or
given by the user.
What the numbers do not mean is said in the record's caveats.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbench.exchange import layout
from mlbench.exchange.archive import Archive
from mlbench.exchange.caveats import caveats
from mlbench.exchange.layout import Point, Series
from mlbench.experiment import clock, config, cost
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError
from mlbench.experiment.goal import Goal, better
from mlbench.experiment.identity import hashed, identity
from mlbench.experiment.phases import PHASES
from mlbench.experiment.record import Record, Spread

SOURCE = "mlbench-published"
FOLDERS = {  # the folders of MLBench's results: our task, and how gradients were combined
    "cifar10-resnet20-all-reduce": ("resnet20", "all_reduce"),
    "cifar10-resnet20-ddp": ("resnet20", "ddp"),
    "epsilon-logistic-regression-all-reduce": ("logreg", "all_reduce"),
    "wikitext2-lstm-all-reduce": ("awdlstm", "all_reduce"),
    "wmt16-gnmt-all-reduce": ("gnmt", "all_reduce"),
    "wmt17-transformer-all-reduce": ("transformer", "all_reduce"),
    "backend_benchmark": ("allreduce", "all_reduce"),
}
HARDWARE = "gcp_n1_t4"  # of torch-1.7.0 and backend_benchmark: the results' README and blog, 2020-21
TORCH_OF_BACKENDS = "1.5"  # of backend_benchmark: MLBench's blog, 2020-09-08
BACKENDS = ("gloo", "mpi", "nccl")
SEED = 42  # of every published task's main.py; archives have none
REPEATS = 100  # calls that backend_benchmark averaged over, its main.py
THIRDS = (0.3, 0.6, 0.9)  # shares of an epoch at which GNMT validated for its goal, its main.py
QUARTERS = (*THIRDS, 1.0)  # and the Transformer
UNLIKE_OURS = {  # what `_plain` puts where none of our runs may have it: not told, or not done there
    "backend.timeout_s": None,
    "sync.bucket_cap_mb": None,
    "task.warmups": 0,
}
NAME = re.compile(r"metrics_(?P<backend>[a-z]+)(?P<gpu>-gpu)?-(?P<workers>\d+)\.zip")


@dataclass(frozen=True)
class Origin:
    """What an archive does not say itself."""

    task: str
    backend: str
    device: str  # cpu or cuda
    sync: str
    hardware: str
    torch: str | None
    workers: int | None  # as the file's name says


def origin(path: Path, given: dict[str, str]) -> Origin:
    """Return where an archive comes from, by its path and by what the user gave: task, backend, hardware."""
    folders = [part for part in path.absolute().parts if part in FOLDERS]
    folder_task, folder_sync = FOLDERS[folders[-1]] if folders else (None, "all_reduce")
    task = given.get("task") or folder_task
    named = NAME.fullmatch(path.name)
    backend = given.get("backend") or (named["backend"] if named else None)
    release = next((p for p in path.absolute().parts if re.fullmatch(r"torch-\d+(\.\d+)*", p)), None)
    torch = release.removeprefix("torch-") if release else None
    if folder_task == "allreduce":
        torch = TORCH_OF_BACKENDS
    hardware = given.get("hardware") or (HARDWARE if torch in ("1.7.0", TORCH_OF_BACKENDS) else None)
    missing = [name for name, value in (("task", task), ("backend", backend), ("hardware", hardware))
               if not value]  # fmt: skip
    if missing:
        words = " ".join(f"{name}=..." for name in missing)
        raise UserError(f"{path.name} does not say its {' or '.join(missing)}", hint=f"add {words}")
    assert task and backend and hardware
    if backend not in BACKENDS:
        raise UserError(f"backend={backend} is unknown", hint=f"choose from {', '.join(BACKENDS)}")
    cpu = task == "allreduce" and not (named and named["gpu"])
    return Origin(
        task=task,
        backend=backend,
        device="cpu" if cpu else "cuda",
        sync=folder_sync,
        hardware=hardware,
        torch=torch,
        workers=int(named["workers"]) if named else None,
    )


def convert(archive: Archive, place: Origin, *, copies: Sequence[str] = ()) -> Record:
    """Return the record of one published archive; `copies` are the names of others with the same bytes."""
    series = layout.parse(archive)
    workers = 1 + max(rank for _, rank in series)
    if place.workers not in (None, workers):
        raise archive.refusal(f"its name says {place.workers} workers, it holds {workers}")
    official = layout.reached(archive)
    experiment = _experiment(place, workers)
    goal = experiment.target
    if official:
        if goal is None or layout.METRICS.get(goal.metric) != official.metric:
            raise archive.refusal(f"its official result is about {official.metric}, not about {place.task}")
        goal = Goal(goal.metric, official.target, goal.direction)
    total = _single(series, layout.TOTAL)
    if (total is None) != (official is None) or (official and f"{total:.3f}" != f"{official.seconds:.3f}"):
        raise archive.refusal(f"{layout.OFFICIAL} and {layout.TOTAL} say different things")
    walls = [point.wall for points in series.values() for point in points]
    if not walls:
        raise archive.refusal("its lists are empty")
    training = [p.wall for (name, _), points in series.items() if name == "train_loss" for p in points]
    begun, ended = min(training or walls), max(walls)
    validations = _validations(series, place.task, goal=goal, begun=begun)
    table = _table(archive, series, place) if place.task == "allreduce" else []
    if not validations and not table:
        raise archive.refusal(f"it holds no validation, so it is none of {place.task}")
    steps = {step: _single(series, f"global_cum_{step}") for step in (*layout.STEPS, *layout.BETWEEN)}
    phases = {phase: steps[step] or 0.0 for step, phase in layout.STEPS.items()} if total else {}
    plain = _plain(experiment, place, goal)
    best = None
    for validation in validations:
        value = validation["metrics"][experiment.task.metric]
        best = value if better(value, best, experiment.task.direction) else best
    bill = cost.cost(experiment.hardware, workers, wall_s=ended - begun, time_to_accuracy_s=total)
    measured = total is not None and (workers == 1 or steps["agg"] is not None)
    return Record(
        source=SOURCE,
        run_id=f"published-{place.task}-{place.sync}-{place.backend}-{place.device}-w{workers}"
        f"-{archive.sha256[:12]}",
        key=_key(plain, place),
        mlbench="original",
        command=f"python -m mlbench.results import {archive.path.name}",
        experiment=plain,
        deviations=[],
        official=False,
        status="goal_reached" if total else "goal_not_reached" if goal else "completed",
        goal=str(goal) if goal else None,
        error=None,
        seed=SEED,
        workers=workers,
        oversubscribed=False,
        caveats=caveats(
            task=place.task, device=place.device, workers=workers, steps=steps, total=total, copies=copies
        ),
        warnings=[],
        started_at=clock.iso(begun),
        ended_at=clock.iso(ended),
        wall=ended - begun,
        startup={},
        startup_time=None,
        time_to_accuracy=total,
        accuracy_after_time=None,
        best=best,
        train_time=total,
        epochs=validations[-1]["epoch"] if validations else 0.0,
        updates=0,
        samples=0,
        unit="samples",
        samples_per_s=None,
        samples_per_s_per_worker=None,
        phases={phase: Spread.of([phases[phase]]) for phase in PHASES if phase in phases},
        overlapped_communication=None,
        exposed_communication_share=(steps["agg"] or 0.0) / total if total and measured else None,
        outside={step: Spread.of([steps[step] or 0.0]) for step in layout.BETWEEN} if total else {},
        batch_s={},
        flops_per_sample=None,
        model_flops_per_s=None,
        mfu=None,
        cost=vars(bill) if bill else None,
        validations=validations,
        segments=[],
        restarts=[],
        nodes=[],
        software={"packages": {"torch": place.torch}, "archive_sha256": archive.sha256},
        data_manifest=None,
        ray={},
        table=table,
    )


def _experiment(place: Origin, workers: int) -> Experiment:
    words = [f"task={place.task}", f"hardware={place.hardware}", f"workers={workers}", "scale=official"]
    return config.compose([*words, "goal=official"])


def _plain(experiment: Experiment, place: Origin, goal: Goal | None) -> dict[str, Any]:
    """Return the recipe's experiment with what is known of the published run in the place of ours."""
    plain = experiment.plain()
    plain["backend"] = {"name": place.backend, "device": place.device, "timeout_s": None}
    plain["sync"] = {"name": place.sync, "bucket_cap_mb": None}
    plain["cluster"] = {"name": "published", "oversubscribe": False}
    plain["division"] = {"name": "published", "free": [], "fixed": []}
    if goal is not None:
        goals = experiment.task.goals
        known = {getattr(goals, name): name for name in ("light", "official")} if goals else {}
        plain["goal"] = known.get(goal.target, goal.target)
    if place.task == "allreduce":
        plain["task"] |= {"repeats": REPEATS, "warmups": 0, "collectives": ["all_reduce"]}
    return plain


def _key(plain: dict[str, Any], place: Origin) -> str:
    """Return a key that no run of ours has: another suite measured."""
    return hashed(identity(plain) | {"source": SOURCE, "torch": place.torch})


def _single(series: Series, name: str) -> float | None:
    points = series.get((name, 0))
    return points[-1].value if points else None


def _validations(series: Series, task: str, *, goal: Goal | None, begun: float) -> list[dict[str, Any]]:
    """Return the validations that could end the run; `update` counts them, archives know no updates."""
    if goal is None:
        return []
    values = series.get((f"val_global_{layout.METRICS[goal.metric]}", 0), [])
    losses = series.get(("val_global_loss", 0), [])
    translation = task in ("gnmt", "transformer")
    if translation and len(values) > 1 and values[-1].value == values[-2].value:
        values = values[:-1]  # logged again on the way out, when the goal had been reached
    found = []
    before = -math.inf
    for index, point in enumerate(values):
        metrics = {goal.metric: point.value}
        if index < len(losses):
            metrics["loss"] = losses[index].value
        found.append(
            {
                "epoch": _epoch(task, index),
                "update": index + 1,
                "elapsed": point.wall - begun,
                "wall": point.wall,
                "train_loss": _mean(series.get(("train_loss", 0), []), since=before, until=point.wall),
                "metrics": metrics,
                "goal_reached": goal.reached(point.value),
            }
        )
        before = point.wall
    return found


def _epoch(task: str, index: int) -> float:
    """Return the epoch at which the validation with this index took place."""
    parts = {"gnmt": THIRDS, "transformer": QUARTERS}.get(task, (1.0,))
    return index // len(parts) + parts[index % len(parts)]


def _mean(points: Sequence[Point], *, since: float, until: float) -> float | None:
    values = [point.value for point in points if since < point.wall <= until]
    return math.fsum(values) / len(values) if values else None


def _table(archive: Archive, series: Series, place: Origin) -> list[dict[str, Any]]:
    """Return the rows of allreduce's table; a time is the mean over ranks and over a size's occurrences."""
    from mlbench.tasks.allreduce import rates

    columns = ("val_tensor_size", "val_dtype", "val_avg_time")
    seconds: dict[tuple[int, int], list[float]] = {}
    ranks = sorted({rank for name, rank in series if name == "val_avg_time"})
    for rank in ranks:
        lists = [series.get((column, rank), []) for column in columns]
        if len({len(points) for points in lists}) != 1:
            raise archive.refusal(f"its lists of sizes, types and times of rank {rank} differ in length")
        for size, dtype, time in zip(*lists, strict=True):
            seconds.setdefault((int(dtype.value), int(size.value)), []).append(time.value)
    if any(dtype not in (16, 32) for dtype, _ in seconds):
        raise archive.refusal("it has data types other than 16 and 32 bits")
    common = {"collective": "all_reduce", "backend": place.backend, "device": place.device}
    return [
        rates.row(
            "times",
            **common,
            workers=len(ranks),
            dtype=f"float{dtype}",
            size=size,
            elements=size,
            bytes=size * dtype // 8,
            repeats=REPEATS * len(times) // len(ranks),
            mean_s=math.fsum(times) / len(times),
        )
        for (dtype, size), times in sorted(seconds.items())
    ]
