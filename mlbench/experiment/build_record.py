"""From what the workers returned and what the event log holds to the record of the run."""

import math
import re
from typing import Any

import mlbench
from mlbench.experiment import clock, cost
from mlbench.experiment.config import Experiment
from mlbench.experiment.goal import better
from mlbench.experiment.phases import EXPOSED, PHASES, percentiles
from mlbench.experiment.record import Record, Spread

Segments = list[dict[str, Any]]  # timer.PhaseTimes's fields, one entry between two validations


def conclude(
    experiment: Experiment,
    *,
    start: dict[str, Any],
    measured: dict[str, Any],
    log: list[dict[str, Any]],
) -> Record:
    """Return the record of a run that ended in any way.

    - start: the value of the log's run_configuration.
    - measured: how the driver saw it end; `returned` is what rank 0 gave back, None if it did not.
    - log: the event log; where the workers returned nothing, its validations are what there is.
    """
    returned = measured["returned"] or {}
    logged = [event for event in log if event["key"] == "validation"]
    validations = returned.get("validations") or [event["value"] for event in logged]
    per_rank = returned.get("segments") or _by_rank(logged)
    started_at = returned.get("started_at") or _first_touch(log)
    elapsed = validations[-1]["elapsed"] if validations else returned.get("elapsed", 0.0)
    status = measured["status"] or returned["status"]
    numbers = _from_segments(per_rank, elapsed=elapsed, workers=experiment.workers)
    wall = measured["ended"] - start["begun"]
    reached = returned.get("time_to_accuracy")
    restarts = _restarts(log, status)
    startup = _startup(start, measured, returned, restarted=bool(restarts))
    flops = returned.get("flops_per_sample")
    rate = numbers["samples_per_s"]
    nodes = returned.get("nodes", [])
    caveats = _caveats(experiment, measured, nodes)
    noise = {sentence for node in nodes for sentence in node.get("warnings", [])}
    task = experiment.task
    found = cost.cost(
        experiment.hardware,
        experiment.workers,
        wall_s=wall,
        time_to_accuracy_s=reached,
    )
    return Record(
        run_id=start["run_id"],
        key=start["key"],
        command=start["command"],
        mlbench=mlbench.__version__,
        experiment=experiment.plain(),
        deviations=start["deviations"],
        official=(
            experiment.official
            and status == ("goal_reached" if task.goals else "completed")
            and experiment.goal == "official"
            and not caveats
        ),
        status=status,
        goal=str(experiment.target) if experiment.target else None,
        error=measured["error"] or returned.get("error"),
        seed=start["seed"],
        workers=experiment.workers,
        oversubscribed=measured.get("oversubscribed", False),
        caveats=caveats,
        warnings=sorted(noise | set(start["warnings"])),
        started_at=clock.iso(start["begun"]),
        ended_at=clock.iso(measured["ended"]),
        wall=wall,
        startup=startup,
        startup_time=started_at - start["begun"] if started_at else None,
        time_to_accuracy=reached,
        accuracy_after_time=accuracy_after(
            validations,
            metric=task.metric,
            budget=task.time_budget_s,
            direction=task.direction,
            ended=status in ("goal_not_reached", "completed"),
        ),
        best=_best(validations, task.metric, task.direction),
        epochs=validations[-1]["epoch"] if validations else 0.0,
        steps=validations[-1]["step"] if validations else 0,
        unit=returned.get("unit", "samples"),
        flops_per_sample=flops,
        gradient_bytes=returned.get("gradient_bytes"),
        model_flops_per_s=flops * rate if flops and rate else None,
        mfu=_mfu(experiment, flops * rate) if flops and rate else None,
        cost=vars(found) if found else None,
        validations=validations,
        segments=spread_segments(per_rank),
        restarts=restarts,
        nodes=nodes,
        software=start.get("software", {}),
        data_manifest=returned.get("data_manifest"),
        table=returned.get("table", []),
        ray=measured.get("ray", {}),
        **numbers,
    )


def _by_rank(logged: list[dict[str, Any]]) -> list[Segments]:
    """Return the segments in the log's validations, transposed to one list a rank."""
    return [list(rank) for rank in zip(*(e["metadata"]["segments"] for e in logged), strict=True)]


def _first_touch(log: list[dict[str, Any]]) -> float | None:
    for event in log:
        if event["key"] == "run_start":
            return event["value"]
        if event["key"] == "validation":
            return event["metadata"]["started_at"]
    return None


def _startup(
    start: dict[str, Any], measured: dict[str, Any], returned: dict[str, Any], *, restarted: bool
) -> dict[str, float]:
    """Return the parts of the start-up that were reached; contiguous, so they add up.

    Workers that were `restarted` have the stamps of their last start, which is not the run's: left out.
    """
    stamps = dict(measured["stamps"])
    if not restarted:
        stamps |= returned.get("stamps", {})
        stamps |= {name: returned[name] for name in ("entered", "started_at") if name in returned}
    order = (
        ("command", "connect_begin"),
        ("cluster", "connect_end"),
        ("scheduling", "backend_begin"),
        ("imports", "imports_end"),
        ("process_group", "group_end"),
        ("entering", "entered"),
        ("data_opening", "started_at"),
    )
    parts: dict[str, float] = {}
    before = start["begun"]
    for part, stamp in order:
        if stamp not in stamps:
            break
        parts[part] = stamps[stamp] - before
        before = stamps[stamp]
    return parts


def _restarts(log: list[dict[str, Any]], status: str) -> list[dict[str, Any]]:
    """Return the failures that the run went on after; the last of a failed run ended it."""
    failures = [event["value"] for event in log if event["key"] == "worker_failure"]
    return failures[:-1] if status == "failed" else failures


def _caveats(experiment: Experiment, measured: dict[str, Any], nodes: list[dict[str, Any]]) -> list[str]:
    """Return why the number may not be what its name says, one sentence each."""
    hardware = experiment.hardware
    caveats = []
    if measured.get("oversubscribed"):
        caveats.append(
            f"{experiment.workers} worker(s) computed with more threads than there were CPUs: "
            "no speed-up may be taken from this"
        )
    on_gpu = experiment.backend.device == "cuda"
    if hardware.gpus and not on_gpu:
        caveats.append(
            f"hardware={hardware.name} has GPUs that backend={experiment.backend.name} left idle: "
            "the cost is that of a node which could have done more"
        )
    if on_gpu and not hardware.gpus and hardware.cpus is not None:
        caveats.append(f"hardware={hardware.name} states no GPU: the cost is not that of the GPUs used")
    for node in nodes:
        if hardware.cpus is not None and node["usable_cpus"] < hardware.cpus:
            caveats.append(
                f"hardware={hardware.name} states {hardware.cpus} CPUs a node, "
                f"{node['hostname']} has {node['usable_cpus']}: the cost is not this hardware's"
            )
        model = hardware.gpu_model
        if on_gpu and model:
            names = [gpu["name"] for gpu in node.get("gpus", [])] or ["none that the driver names"]
            other = [name for name in names if not re.search(rf"\b{re.escape(model)}\b", name)]
            caveats += [
                f"hardware={hardware.name} states {model} GPUs, {node['hostname']} has {name}: "
                "neither cost nor peak are this hardware's"
                for name in other[:1]
            ]
    stated = cost.nodes(hardware, experiment.workers)
    if nodes and len(nodes) != stated and hardware.workers_per_node is not None:
        caveats.append(
            f"hardware={hardware.name} puts {experiment.workers} worker(s) on {stated} node(s), they ran on "
            f"{len(nodes)}: neither time nor cost are this hardware's"
        )
    return sorted(set(caveats))


def _best(validations: Segments, metric: str, direction: Any) -> float | None:
    best = None
    for validation in validations:
        value = validation["metrics"].get(metric)
        if value is not None and better(value, best, direction):
            best = value
    return best


def _mfu(experiment: Experiment, flops_per_s: float) -> float | None:
    """Return model FLOP/s over the workers' shares of the peak in the run's precision; None if unknown."""
    hardware = experiment.hardware
    on_gpu = experiment.backend.device == "cuda"
    precision = getattr(experiment.task, "precision", "fp32") if on_gpu else "fp32"
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None or on_gpu != bool(hardware.gpus):  # the peak is a GPU's where the node has one
        return None
    shares = experiment.workers if hardware.gpus else cost.nodes(hardware, experiment.workers)
    return flops_per_s / (peak * shares)


def _from_segments(per_rank: list[Segments], *, elapsed: float, workers: int) -> dict[str, Any]:
    """Return the Record's fields that follow from the segments of every rank.

    `per_rank[r]` is the list of segments of rank r as plain values (timer.PhaseTimes's fields). It is empty
    where the run ended before its first validation.
    """
    if not per_rank:
        unknown = ("train_time", "samples_per_s", "samples_per_s_per_worker")
        unknown += ("overlapped_communication", "exposed_communication_share")
        return dict.fromkeys(unknown) | {"phases": {}, "outside": {}, "step_s": {}, "samples": 0}
    phases = {
        phase: Spread.of([math.fsum(s["phases"][phase] for s in rank) for rank in per_rank])
        for phase in PHASES
    }
    overlapped = [math.fsum(s["overlapped_communication"] for s in rank) for rank in per_rank]
    names = sorted({name for rank in per_rank for segment in rank for name in segment["outside"]})
    outside = {
        name: Spread.of([math.fsum(s["outside"].get(name, 0.0) for s in rank) for rank in per_rank])
        for name in names
    }
    batch_totals = [math.fsum(v for s in rank for v in s["phases"].values()) for rank in per_rank]
    train_times = [
        total - math.fsum(s["phases"]["data_wait"] for s in rank)
        for total, rank in zip(batch_totals, per_rank, strict=True)
    ]
    samples = sum(segment["samples"] for rank in per_rank for segment in rank)
    instrumented = max(batch_totals) > 0
    # The same with and without stamps: what the clock shows less what lies outside the steps.
    busy = elapsed - max(math.fsum(math.fsum(s["outside"].values()) for s in rank) for rank in per_rank)
    rate = samples / busy if busy > 0 and samples else None
    return {
        "phases": phases if instrumented else {},
        "overlapped_communication": Spread.of(overlapped) if instrumented else None,
        "exposed_communication_share": (
            math.fsum(phases[name].mean for name in EXPOSED) * workers / math.fsum(batch_totals)
            if instrumented
            else None
        ),
        "outside": outside,
        # MLBench's clock: from the batch's data at hand to its end, so without data_wait.
        "train_time": max(train_times) if instrumented else None,
        "samples": samples,
        "samples_per_s": rate,
        "samples_per_s_per_worker": rate / workers if rate else None,
        "step_s": percentiles(
            {int(n): count for n, count in s.get("step_s", {}).items()} for rank in per_rank for s in rank
        ),
    }


def spread_segments(per_rank: list[Segments]) -> Segments:
    """Return the segments between validations with min, mean and max over the ranks."""
    result = []
    for segments in zip(*per_rank, strict=True):
        result.append(
            {
                "steps": segments[0]["steps"],
                "samples": sum(s["samples"] for s in segments),
                "phases": {p: Spread.of([s["phases"][p] for s in segments]).model_dump() for p in PHASES},
                "overlapped_communication": Spread.of(
                    [s["overlapped_communication"] for s in segments]
                ).model_dump(),
            }
        )
    return result


def accuracy_after(
    validations: list[dict[str, Any]], *, metric: str, budget: float, direction: str, ended: bool
) -> float | None:
    """Return the best validation value within `budget` seconds; None if the run stopped earlier.

    A run that trained all its epochs (`ended`) has nothing more to show, so its best counts then.
    """
    if not validations or (validations[-1]["elapsed"] < budget and not ended):
        return None
    values = [
        v["metrics"][metric]
        for v in validations
        if v["elapsed"] <= budget and v["metrics"].get(metric) is not None
    ]
    return (max if direction == "max" else min)(values, default=None)
