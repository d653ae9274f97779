"""Build the record of a run from its event log, the only route for runs that ended in any way or place."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import mlbench
from mlbench import clock
from mlbench.config.errors import ResultError, is_comparable, unreadable
from mlbench.config.experiment import Experiment, TaskConfig
from mlbench.config.goal import Goal
from mlbench.record import cost, energy, log_consistency, node_types, noise, official
from mlbench.record.log_consistency import Log, Measured
from mlbench.record.phases import (
    EXPOSED,
    TRAIN_STEP,
    UNDIVIDED,
    PhaseTimes,
    merged,
    percentiles,
    phase_names,
    taken_away,
)
from mlbench.record.record import (
    FINISHED,
    ArithmeticPeak,
    JobSubmission,
    Node,
    RankStats,
    RankTimes,
    Record,
    Restart,
    RunEnd,
    RunStart,
    Startup,
    Validation,
    ValidationInterval,
    WarmUp,
    WorkerResult,
)

Measurements = list[list[PhaseTimes]]  # of each rank one entry a validation
FABRIC_GPUS = 8  # of a node from which on clouds and vendors sell it with a fabric between nodes, 2026-11-24


def build_record(log: Log, frozen: official.FrozenReference | None = None) -> Record:
    """Return the record of the run that left this event log.

    If the driver was killed, the log has no `run_result`, and the run ended with the log's last event. It is
    then interrupted, unless its workers had finished or reached the goal. `frozen` is the reference for
    official results, by default the one of the mlbench that measured. Raises UserError if the log has no
    readable `run_configuration`.
    """
    start = run_start(log)
    end = run_end(log)
    experiment = start.experiment
    result = end.result or WorkerResult(status="failed")  # what is known of workers that returned nothing
    stretches = log_consistency.stretches(log)
    measured = _measured(stretches)
    validations = [validation for validation, _ in measured]
    per_rank = [list(rank) for rank in zip(*(ranks for _, ranks in measured), strict=True)]
    status, error = _status(end, result, validations, experiment.target)
    jobs = [JobSubmission.model_validate(event["value"]) for event in log if event["key"] == "submission"]
    submission = jobs[-1] if jobs else None
    if submission and submission.preempted and status not in FINISHED:
        status, error = "preempted", submission.preempted
    reached = validations[-1].elapsed if status == "goal_reached" else None
    wall = end.ended - start.begun
    provisioning_s = None  # not measured, or the first of two hosts' clocks is ahead of the second
    if start.submitted is not None and start.submitted <= start.begun:
        provisioning_s = start.begun - start.submitted
    failures = [Restart(failures=event["value"]) for event in log if event["key"] == "worker_failure"]
    restarts = failures[:-1] if status == "failed" else failures  # the last of a failed run ended it
    flops = result.flops_per_sample
    totals = _totals(per_rank, elapsed=validations[-1].elapsed if validations else 0.0)
    rate = totals["samples_per_s"]
    flops_per_s = flops * rate if flops and rate else None
    disturbed = list(_disturbances(end, result.nodes))
    if disturbed:  # measured while it ran, so the load before it is irrelevant
        quiet = [warning for warning in start.warnings if "load average" not in warning]
        start = start.model_copy(update={"warnings": quiet})
    other_hardware = node_types.other_hardware(experiment, result.nodes)
    oversubscribed = end.oversubscribed or _oversubscribed(experiment, result.nodes)
    caveats = [*other_hardware, *_caveats(experiment, result.nodes, oversubscribed=oversubscribed)]
    caveats += disturbed
    if status in FINISHED and error:
        what = "its workers had finished" if end.result else "it reached its goal"
        missing = "its cluster is" if end.result else "its nodes are"
        caveats.insert(0, f"{what}, and then it ended ({error}), so {missing} not described")
        error = None
    startup, startup_time = _startup(log, start, end, result, restarted=bool(restarts))
    contradictions = log_consistency.contradictions(
        log,
        stretches,
        start,
        end,
        result,
        startup=startup,
        startup_time=startup_time,
        flops_per_s=flops_per_s,
    )
    caveats += [f"{log_consistency.CAVEAT}{sentence}" for sentence in contradictions]
    warnings = {sentence for node in result.nodes for sentence in node.warnings}
    units = [event["metadata"].get("unit") for event in log if event["key"] == "validation"]  # None: old logs
    why_not = official.reasons(
        start,
        result,
        status=status,
        caveats=caveats,
        sealed=log_consistency.sealed(log),
        frozen=frozen or official.reference(start.mlbench),
    )
    task = experiment.task
    return Record(
        source=start.source,
        imported=start.imported is not None,
        run_id=start.run_id,
        key=start.key,
        command=submission.command if submission else start.command,
        mlbench=start.mlbench,
        experiment=experiment,
        deviations=start.deviations,
        eligible=not why_not,
        official_reasons=why_not,
        status=status,
        goal=experiment.target,
        error=error,
        seed=start.seed,
        workers=experiment.workers,
        oversubscribed=oversubscribed,
        caveats=caveats,
        disturbances=disturbed,
        contradictions=contradictions,
        warnings=sorted(warnings | set(start.warnings)),
        started_at=clock.iso(start.begun),
        ended_at=clock.iso(end.ended),
        wall=wall,
        startup=startup,
        startup_time=startup_time,
        time_to_accuracy=reached,
        accuracy_after_time=accuracy_after(validations, task, status),
        best=best(validations, task),
        epochs=validations[-1].epoch if validations else 0.0,
        steps=validations[-1].step if validations else 0,
        sample_unit=next(reversed(units), None) or result.sample_unit,
        flops_per_sample=flops,
        flops_lacking=result.flops_lacking,
        peak=result.peak,
        gradient_bytes=result.gradient_bytes,
        peak_memory_bytes=result.peak_memory_bytes,
        model_flops_per_s=flops_per_s,
        mfu=_mfu(experiment, flops_per_s, result.peak) if flops_per_s and not other_hardware else None,
        cost=None
        if other_hardware
        else cost.cost(
            experiment.hardware,
            experiment.workers,
            wall_s=wall,
            time_to_accuracy_s=reached,
            clustered=experiment.cluster.name != "local",
            provisioning_s=provisioning_s,
        ),
        energy=energy.energy(
            experiment.hardware,
            # Meters restart with the workers. Emulated hosts would all count their one machine.
            [] if restarts or experiment.network.emulated else [node.energy_j for node in result.nodes],
            on_gpu=experiment.backend.device == "cuda",
            reached=reached is not None,
            samples=totals["samples"],
        ),
        validations=validations,
        intervals=intervals(per_rank),
        restarts=restarts,
        nodes=result.nodes,
        software=start.software,
        data_hash=result.data_hash,
        data_rows=result.data_rows,
        table=result.table,
        profile=result.profile,
        ray=end.ray,
        submission=submission,
        extras=end.extras,
        **totals,
    )


def verify_against_log(record: Record, log: Log) -> None:
    """Raise UserError if a record differs from the event log that it comes with.

    Used for a run that was measured elsewhere, because every field of its record follows from its log.
    Another version may have derived fields by other rules, and words its reasons against official otherwise.
    """
    version = run_start(log).mlbench
    hint = "" if is_comparable(version) else f"check it with mlbench {version}, which measured it"
    try:
        rebuilt = build_record(log).model_dump(mode="json")
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ResultError("its event log is damaged or was changed", hint=hint) from error
    claimed = record.model_dump(mode="json")
    if version != mlbench.__version__:  # other wording, and neither may count if the other may not
        for values in (rebuilt, claimed):
            values["official_reasons"] = official.eligible(values["official_reasons"])
    differing = [name for name, value in rebuilt.items() if claimed[name] != value]
    if differing:
        differences = f"{', '.join(differing[:3])} of the record and of the event log differ"
        raise ResultError(f"its record was changed: {differences}", hint=hint)


def run_start(log: Log) -> RunStart:
    """Return the run's start from the log. Raises UserError if this version cannot read it."""
    value = next((event.get("value") for event in log if event["key"] == "run_configuration"), None)
    try:
        return RunStart.model_validate(value)
    except ValueError as error:
        raise unreadable("the event log", value, hint="restore it from a backup") from error


def run_end(log: Log) -> RunEnd:
    """Return the run's end from the log. Raises UserError if this version cannot read it."""
    value = next((event["value"] for event in log if event["key"] == "run_result"), None)
    if value is None:
        return lost_end(log, "the command that ran this was killed")
    try:
        return RunEnd.model_validate(value)
    except ValueError as error:
        raise ResultError("the event log is damaged: it has no readable run_result") from error


def lost_end(log: Log, error: str, *, status: str = "interrupted") -> RunEnd:
    """Return the end of a run whose driver could not write it, because of `error`: the log's last event."""
    result = worker_result(log)
    ended = max(event["time_ms"] for event in log) / 1000
    return RunEnd(status=None if result else status, error=error, ended=ended, result=result)


def worker_result(log: Log) -> WorkerResult | None:
    """Return what the workers reported at their end, or None if they did not get there."""
    values = [event["value"] for event in log if event["key"] == "worker_result"]
    return WorkerResult.model_validate(values[0]) if values else None


def _measured(stretches: Sequence[Sequence[Measured]]) -> list[Measured]:
    """Return each validation with every rank's times up to it.

    After a failure the run repeats everything since its last checkpoint. What was measured of that part
    before the failure is in the clock's time. It is not part of the run that reached the goal.
    """
    entries: list[Measured] = []
    for stretch in stretches:
        while stretch and entries and entries[-1][0].step >= stretch[0][0].step:
            entries.pop()
        entries += stretch
    return entries


def _status(
    end: RunEnd, result: WorkerResult, validations: list[Validation], goal: Goal | None
) -> tuple[str, str | None]:
    """Return how the run ended and why. A goal is reached if the log's last validation reaches it.

    A worker that dies after that, while its node is described, changes nothing in the measurement. Neither
    does the end of the driver or of a node, or what workers make of a restart after it.
    """
    status, error = end.status or result.status, end.error or result.error
    value = validations[-1].metrics.get(goal.metric) if validations and goal else None
    reached = goal is not None and value is not None and goal.reached(value)
    if status == "goal_reached" and not reached:
        return "failed", "the event log has no validation that reached the goal"
    # If another metric was not finite, the run has diverged, whatever this one is.
    return ("goal_reached" if reached and validations[-1].goal_reached else status), error


def _startup(
    log: Log, start: RunStart, end: RunEnd, result: WorkerResult, *, restarted: bool
) -> tuple[Startup, float | None]:
    """Return the parts of the start-up that were reached, in order, and their total.

    Every part lies between two readings of one host's clock. The driver's clock is used up to the process
    group (the controller is on its machine), and rank 0's from there on. If these are two hosts, the remote
    call from one to the other is left out, and the total is the sum of the parts. `restarted` workers report
    only their last start, which is not the run's, so it is left out.
    """
    group = next((event for event in log if event["key"] == "startup"), {"value": {}, "metadata": {}})
    first = next((event for event in log if event["key"] == "run_start"), None)
    one_host = first is None or first["metadata"].get("hostname") == group["metadata"].get("hostname")
    touched = first["value"] if first else result.started_at
    driver: list[tuple[str, float | None]] = [
        ("begin", start.begun),
        ("command", end.stamps.get("connect_begin")),
        ("cluster", end.stamps.get("connect_end")),
        ("scheduling", group["value"].get("backend_begin")),
        ("imports", group["value"].get("imports_end")),
        ("process_group", group["value"].get("group_end")),
    ]
    worker = [
        ("entering", None if restarted else result.entered),
        ("calibration", result.calibrated),
        ("data_opening", touched),
    ]
    parts: dict[str, float] = {}
    for chain in [driver + worker] if one_host else [driver, worker]:
        for (_, before), (part, after) in itertools.pairwise(chain):
            if before is None or after is None:
                break
            parts[part] = after - before
    if one_host:
        return Startup(**parts), touched - start.begun if touched else None
    return Startup(**parts), math.fsum(parts.values()) if "data_opening" in parts else None


def _oversubscribed(experiment: Experiment, nodes: list[Node]) -> bool:
    """Return whether the nodes have fewer CPUs than threads, whatever CPU count Ray was given."""
    if experiment.backend.device == "cuda" or experiment.network.emulated or experiment.launcher == "command":
        return False  # the ranks of a script have their threads, which its recorder has counted
    threads = max((node.threads_per_worker or 0 for node in nodes), default=0)
    return experiment.workers * threads > sum(node.usable_cpus for node in nodes)


def _caveats(experiment: Experiment, nodes: list[Node], *, oversubscribed: bool) -> Iterator[str]:
    """Yield the caveats of the number, one sentence each, the most important first."""
    hardware = experiment.hardware
    if experiment.profile:
        yield "profile: torch.profiler slowed the steps, so the times of this run count nowhere"
    if oversubscribed:
        yield (
            f"{experiment.workers} worker(s) computed with more threads than there were CPUs: "
            "no speed-up may be taken from this"
        )
    on_gpu = experiment.backend.device == "cuda"
    if hardware.gpus and not on_gpu:
        yield (
            f"hardware={hardware.name} has GPUs that backend={experiment.backend.name} left idle: "
            "the cost is that of a node which could have done more"
        )
    if on_gpu and len(nodes) > 1:
        yield from _of_transport(nodes)
    types = None if experiment.network.emulated else node_types.mixture(nodes)
    if types:
        yield f"{types}: the slowest decides the time of all"


def _of_transport(nodes: list[Node]) -> Iterator[str]:
    """Yield which nodes' messages went past their fabric (InfiniBand, EFA), or may have."""
    tcp, untold = "the GPUs' messages between nodes went", "NCCL's log does not show that none went"
    names: dict[str, list[str]] = {tcp: [], untold: []}
    for node in nodes:
        fabric, adapters = len(node.gpus) >= FABRIC_GPUS, node.rdma_devices
        if node.over_tcp and (fabric or adapters) or (fabric and adapters == []):
            names[tcp].append(node.hostname)
        elif fabric and adapters and node.over_tcp is None:  # a pod sees its host's, which it may not use
            names[untold].append(node.hostname)
    for what, hosts in names.items():
        if hosts:
            yield f"{', '.join(hosts)}: {what} through TCP sockets, past such machines' InfiniBand or EFA"


def _disturbances(end: RunEnd, nodes: list[Node]) -> Iterator[str]:
    """Yield the other load on the machines while the run was measured, one sentence each."""
    here = end.hostname or "the driver's machine"
    yield from noise.disturbances(here, during=None, before=end.interference, shared=end.machine_shared)
    for node in nodes:
        yield from noise.disturbances(
            node.hostname, during=node.interference, shared=node.machine_shared, gpus=node.gpu_use
        )


def best(validations: Sequence[Validation], task: TaskConfig) -> float | None:
    """Return the best finite value of the task's metric, or None if there is none."""
    values = [value for v in validations if (value := v.metrics.get(task.metric)) is not None]
    return (max if task.direction == "max" else min)(values, default=None)


def _mfu(experiment: Experiment, flops_per_s: float, known: ArithmeticPeak | None) -> float | None:
    """Return model FLOP/s over the workers' shares of the peak in the run's precision (None if unknown)."""
    if known is not None or experiment.task.name == "script":
        return flops_per_s / (known.flops_per_s * known.devices) if known else None
    hardware = experiment.hardware
    on_gpu = experiment.backend.device == "cuda"
    precision = getattr(experiment.task, "precision", None) or "fp32"
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None or on_gpu != bool(hardware.gpus):  # the peak is a GPU's if the node has one
        return None
    shares = experiment.workers if hardware.gpus else cost.nodes(hardware, experiment.workers)
    return flops_per_s / (peak * shares)


def _totals(per_rank: Measurements, *, elapsed: float) -> dict[str, Any]:
    """Return the Record's fields that follow from the times of every rank.

    `per_rank` is empty if the run ended before its first validation.
    """
    if not per_rank:
        unknown = ("train_time", "samples_per_s", "tokens_per_s", "samples_per_s_per_worker")
        unknown += ("overlapped_communication", "exposed_communication_share")
        return dict.fromkeys(unknown) | {"phases": {}, "outside": {}, "step_s": {}, "samples": 0}
    workers, warm_up = len(per_rank), [rank[-1].warm_up for rank in per_rank]
    samples = sum(times.samples for rank in per_rank for times in rank)
    per_rank = [
        [*rank, *([taken_away(warm)] if warm else [])] for rank, warm in zip(per_rank, warm_up, strict=True)
    ]
    phases = {
        phase: RankStats.of([math.fsum(times.phases.get(phase, 0.0) for times in rank) for rank in per_rank])
        for phase in phase_names(times for rank in per_rank for times in rank)
    }
    overlapped = [math.fsum(times.overlapped_communication for times in rank) for rank in per_rank]
    names = sorted({name for rank in per_rank for times in rank for name in times.outside})
    outside = {
        name: RankStats.of([math.fsum(times.outside.get(name, 0.0) for times in rank) for rank in per_rank])
        for name in names
    }
    batch_totals = [math.fsum(v for times in rank for v in times.phases.values()) for rank in per_rank]
    train_times = [
        total - math.fsum(times.phases["data_wait"] for times in rank)
        for total, rank in zip(batch_totals, per_rank, strict=True)
    ]
    steady = sum(times.samples for rank in per_rank for times in rank)
    timed = max(batch_totals) > 0
    divided = timed and TRAIN_STEP not in phases
    # The same with and without stamps: what the clock shows less what lies outside the steps.
    busy = elapsed - max(math.fsum(math.fsum(times.outside.values()) for times in rank) for rank in per_rank)
    rate = steady / busy if busy > 0 and steady else None
    tokens = sum(times.tokens for rank in per_rank for times in rank)
    return {
        "phases": phases if timed else {},
        "overlapped_communication": RankStats.of(overlapped) if divided else None,
        "exposed_communication_share": (
            math.fsum(phases[name].mean for name in EXPOSED) * workers / math.fsum(batch_totals)
            if divided
            else None
        ),
        "outside": outside,
        # MLBench's clock: from the batch's data at hand to its end, so without data_wait.
        "train_time": max(train_times) if timed else None,
        "samples": samples,
        "samples_per_s": rate,
        "samples_per_s_per_worker": rate / workers if rate else None,
        "tokens_per_s": tokens / busy if busy > 0 and tokens else None,
        "step_s": percentiles(times.step_s for rank in per_rank for times in rank),
        "stamp_every": max(times.stamp_every for rank in per_rank for times in rank),
        "lateness": [merged([b for times in rank for b in times.lateness]) for rank in per_rank],
        "bytes_sent_per_step": _bytes_sent(per_rank, steps=sum(times.steps for times in per_rank[0])),
        "clock_error_s": max(times.clock_error_s for rank in per_rank for times in rank),
        "warm_up": _warm_up([warm for warm in warm_up if warm]),
        "unsteady": any(rank[-1].unsteady for rank in per_rank),
        "ranks": [_rank_times(rank) for rank in per_rank if rank[0].late is not None],
    }


def _warm_up(ranks: Sequence[PhaseTimes]) -> WarmUp | None:
    if not ranks:
        return None
    return WarmUp(
        steps=ranks[0].steps,
        samples=sum(times.samples for times in ranks),
        seconds=max(times.seconds for times in ranks),
        observation_s=max(times.within.get("observation", 0.0) for times in ranks),
        compilation_s=max(times.within.get("compilation", 0.0) for times in ranks),
        phases={name: RankStats.of([t.phases[name] for t in ranks]).mean for name in ranks[0].phases},
    )


def _rank_times(rank: Sequence[PhaseTimes]) -> RankTimes:
    """Return the sums of a rank over its intervals, of which the last takes away the warm-up."""
    late = [times.late for times in rank if times.late is not None]
    waited = [times.cpu_wait_s for times in rank if times.cpu_wait_s is not None]
    return RankTimes(
        phases=_sums([times.phases for times in rank]),
        samples=sum(times.samples for times in rank),
        within=_sums([times.within for times in rank]),
        late_steps=sum(each.steps for each in late),
        late_s=math.fsum(each.seconds for each in late),
        late_parts=_sums([each.parts for each in late]),
        cpu_wait_s=math.fsum(waited) if waited else None,
        peak_memory_bytes=max((t.peak_memory_bytes for t in rank if t.peak_memory_bytes), default=None),
    )


def _sums(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: math.fsum(each.get(name, 0.0) for each in parts) for name in names}


def _bytes_sent(per_rank: Measurements, *, steps: int = 1) -> RankStats | None:
    """Return bytes sent by a rank over `steps`. None for a single worker, no step, or logs without them."""
    sent = [[times.bytes_sent for times in rank if times.bytes_sent is not None] for rank in per_rank]
    if len(per_rank) == 1 or not steps or not all(sent):
        return None
    return RankStats.of([sum(rank) / steps for rank in sent])


def intervals(per_rank: Measurements) -> list[ValidationInterval]:
    """Return the measurements between validations, with min, mean and max over the ranks."""
    return [
        ValidationInterval(
            steps=ranks[0].steps,
            samples=sum(times.samples for times in ranks),
            phases={
                phase: RankStats.of([times.phases.get(phase, 0.0) for times in ranks])
                for phase in phase_names(ranks)
            },
            overlapped_communication=None
            if phase_names(ranks) is UNDIVIDED
            else RankStats.of([times.overlapped_communication for times in ranks]),
            bytes_sent=_bytes_sent([[times] for times in ranks]),
        )
        for ranks in zip(*per_rank, strict=True)
    ]


def accuracy_after(validations: Sequence[Validation], task: TaskConfig, status: str) -> float | None:
    """Return the best validation value within the task's time budget, or None if the run stopped earlier.

    A run that trained all its epochs counts with its best value, even if it stopped earlier.
    """
    ended, budget = status in ("goal_not_reached", "completed"), task.time_budget_s
    if not validations or (validations[-1].elapsed < budget and not ended):
        return None
    return best([validation for validation in validations if validation.elapsed <= budget], task)
