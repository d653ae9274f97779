"""Whether the event log of a run agrees with itself: relations that hold in every honest log.

Most are identities of one clock or one counter, so they hold to rounding however busy the machine is. Where
two clocks or two processes are compared, a bound stands below. A log that breaks one was damaged or edited,
or a clock was wrong; its times are no measurement.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mlbench.config.errors import is_comparable
from mlbench.config.experiment import Experiment, bounds
from mlbench.config.identity import key
from mlbench.record import events, official
from mlbench.record.format import duration
from mlbench.record.noise import MIN_SECONDS, Interference
from mlbench.record.phases import PhaseTimes
from mlbench.record.record import FINISHED, Node, RunEnd, RunStart, Startup, Validation, WorkerResult

Log = Sequence[dict[str, Any]]  # the events of one run, in their order
Measured = tuple[Validation, list[PhaseTimes]]

CAVEAT = "the log contradicts itself: "  # begins the caveat of each contradiction
ROUNDING_S = 1e-5  # s; wall clocks near 2e9 s are doubles 2.4e-7 s apart, and some are added
STAMP_S = 0.002  # s; events are stamped in whole ms
SHARE = 0.01  # by which the clocks of two ranks may differ; 0.23 % was the most in 18 runs, 2026-11-23
SKEW_S = 1.0  # s, likewise in short runs: a rank leaves a collective late; 25 ms at a load of 8 on 2 CPUs
CPUS_FACTOR = 1.5  # over what a machine has; the kernel counts CPU time in steps of 10 ms
# Model FLOP/s over the calibrated float32 FLOP/s of all nodes; matrix units compute 16-bit numbers up to 16
# times as fast as float32 (H100: 989 to 67 TFLOP/s, data sheet of 2023), and a calibration may be disturbed.
RATE_FACTOR = {"fp32": 2.0, "tf32": 16.0}
RATE_FACTOR_16_BIT = 64.0
ROWS = ("images", "rows")  # units of which a step takes a global batch, and an epoch whole steps
SPREAD = 0.25  # by which steps per epoch of texts, whose chunks are drawn, differ between two validations


def contradictions(
    log: Log,
    stretches: Sequence[Sequence[Measured]],
    start: RunStart,
    end: RunEnd,
    result: WorkerResult,
    *,
    startup: Startup,
    startup_time: float | None,
    flops_per_s: float | None,
) -> list[str]:
    """Return where a log contradicts itself, one sentence each; empty for an honest one.

    `stretches` are those of the log; `flops_per_s` are model FLOP/s of all ranks.
    """
    every = [each for stretch in stretches for each in stretch]
    # Each validation with the one before; None for a run's first, and after a restart.
    neighbours = [pair for stretch in stretches for pair in zip([None, *stretch], stretch, strict=False)]
    sentences = [
        *_of_identity(start),
        *_of_checksum(log),
        *_of_additions(log, start.experiment),
        *_of_order(every, start.experiment),
        *(sentence for before, now in neighbours for sentence in _of_interval(before, now, start)),
        *_of_progress(stretches, start, result),
        *_of_stamps(log, every, end, result),
        *_of_durations(startup, startup_time, every, start, end),
        *_of_nodes(log, end, result, every),
        *_of_hosts(log, end, start.experiment),
        *_of_rates(start.experiment, result.nodes, flops_per_s),
        *_of_values(log, every, start.experiment, end.result),
    ]
    return list(dict.fromkeys(sentences))


def sealed(log: Log) -> bool:
    """Return whether the log has the checksum that its driver wrote."""
    return any(event["key"] == "run_result" and "sha256" in event["metadata"] for event in log)


def stretches(log: Log) -> list[list[Measured]]:
    """Return the validations between two starts of the workers, each with every rank's times up to it.

    A failure after the goal, or after the workers' result, has them train again, which is no part of the run.
    """
    stretches: list[list[Measured]] = [[]]
    is_over = False
    for event in log:
        if event["key"] == "worker_failure":
            if is_over:
                break
            stretches.append([])
        if event["key"] == "validation":
            ranks = [PhaseTimes.from_plain(rank) for rank in event["metadata"]["phase_times"]]
            stretches[-1].append((Validation.model_validate(event["value"]), ranks))
            is_over = stretches[-1][-1][0].goal_reached
        is_over |= event["key"] == "worker_result"
    return stretches


def _of_identity(start: RunStart) -> Iterator[str]:
    """The key is that of the configuration; a released version's may have been made otherwise."""
    experiment, software = start.experiment, start.software
    framework = software.packages.get(experiment.framework)
    if framework and is_comparable(start.mlbench) and key(experiment, framework) != start.key:
        yield f"its key {start.key} is not that of its configuration"
    if experiment.seed not in (None, start.seed):
        yield f"its configuration has the seed {experiment.seed}, and the run {start.seed}"
    if software.mlbench not in (None, start.mlbench):
        yield f"it names two versions of mlbench, {software.mlbench} and {start.mlbench}"


def _of_checksum(log: Log) -> Iterator[str]:
    for index, event in enumerate(log):
        written = event["metadata"]
        if event["key"] != "run_result" or "sha256" not in written:
            continue
        if events.checksum(log[: written["events"]], event["value"]) != written:
            yield "its lines are not those that the run wrote: their checksum differs"
        added = {line["key"] for line in (*log[written["events"] : index], *log[index + 1 :])}
        if added - {"worker_failure", "submission", "run_stop"}:  # what the controller and others add late
            yield "lines were added to it"


def _of_additions(log: Log, experiment: Experiment) -> Iterator[str]:
    """What a cluster says of a run follows the run's own end; workers restart as often as is allowed."""
    keys = [event["key"] for event in log]
    submitted = "submission" in keys
    if submitted and (experiment.cluster.name == "local" or sealed(log[keys.index("submission") :])):
        yield "it tells of a submission that its run cannot have had"
    trained = max((index for index, name in enumerate(keys) if name == "validation"), default=0)
    failures = keys[:trained].count("worker_failure")
    if failures > experiment.max_failures:
        yield f"its workers failed {failures} times, and max_failures is {experiment.max_failures}"


def _of_order(every: Sequence[Measured], experiment: Experiment) -> Iterator[str]:
    """The clock never pauses, all ranks take part, and a run ends where it reaches its goal."""
    goal = experiment.target
    for before, (now, ranks) in zip([None, *every], every, strict=False):
        if now.elapsed <= (before[0].elapsed if before else 0.0):
            yield f"the validation at step {now.step} ends before the one before it, or before the start"
        if len(ranks) != experiment.workers:
            yield f"the validation at step {now.step} has {len(ranks)} ranks of {experiment.workers}"
        value = now.metrics.get(goal.metric) if goal else None
        reached = goal is not None and value is not None and goal.reached(value)
        finite = None not in now.metrics.values()  # else the run has diverged, whatever the goal
        if (finite and reached != now.goal_reached) or (reached and now is not every[-1][0]):
            yield f"the validation at step {now.step} and the goal contradict each other"


def _of_interval(before: Measured | None, now: Measured, start: RunStart) -> Iterator[str]:
    """All time of a rank is inside or outside its steps, and the phases add up to what is inside."""
    validation, ranks = now
    last = before[0].elapsed if before else 0.0
    for rank, times in enumerate(ranks):
        at = f"rank {rank} at step {validation.step}"
        lengths = (*times.phases.values(), *times.outside.values(), times.seconds)
        counts = (times.steps, times.samples, times.bytes_sent or 0, times.overlapped_communication)
        if not all(math.isfinite(value) and value > -ROUNDING_S for value in (*lengths, *counts)):
            yield f"{at} has a negative time or count"
        inside, passed = math.fsum(times.phases.values()), times.seconds + math.fsum(times.outside.values())
        stamped = times.stamped_steps > 0 or (start.experiment.phase_timing and times.steps > 0)
        if (stamped or inside) and abs(inside - times.seconds) > ROUNDING_S + 1e-6 * times.seconds:
            yield f"the phases of {at} add up to {duration(inside)} of {duration(times.seconds)} in steps"
        own = before[1][rank].elapsed if before and rank < len(before[1]) else 0.0
        if times.elapsed is None:  # a log of before 2026-11-23
            whole, slack = validation.elapsed - last, SKEW_S + SHARE * validation.elapsed
        else:
            whole, slack = times.elapsed - (last if own is None else own), ROUNDING_S
            apart = abs(times.elapsed - validation.elapsed)
            if apart > (SKEW_S + SHARE * validation.elapsed if rank else ROUNDING_S):
                yield f"the clocks of rank {rank} and of the run differ by {duration(apart)}"
        after_restart = before is None and start.experiment.max_failures > 0
        if passed > whole + slack or (passed < whole - slack and not after_restart):
            yield f"{at} accounts for {duration(passed)} of {duration(whole)}"


def _of_progress(
    stretches: Sequence[Sequence[Measured]], start: RunStart, result: WorkerResult
) -> Iterator[str]:
    """Steps, epochs and samples follow from each other."""
    experiment = start.experiment
    seen = {0: 0.0}  # epochs by step
    shares: list[float] = []  # steps per epoch
    batches: list[float] = []  # samples a step, of all ranks
    most = getattr(experiment.task, "epochs", None) or math.inf
    for stretch in stretches:
        for index, (now, ranks) in enumerate(stretch):
            steps = ranks[0].steps if ranks else 0
            at, begin = f"the validation at step {now.step}", now.step - steps
            if not now.metrics and begin not in seen:  # it diverged within a step, which is not counted
                begin -= 1
            if any(times.steps != steps for times in ranks):
                yield f"{at} follows other numbers of steps on other ranks"
            if begin not in seen or (index and begin != stretch[index - 1][0].step):
                yield f"{at} follows {steps} steps, which do not lead there"
            epochs = now.epoch - seen.get(begin, 0.0)
            seen[now.step] = now.epoch
            if not any(each.epoch for each, _ in stretch) and not hasattr(experiment.task, "epochs"):
                continue  # a script of somebody else's, which does not tell its epochs
            if (epochs > 0) != (steps > 0) or now.epoch > most:
                yield f"{at} stands at epoch {now.epoch:g}, which its steps do not lead to"
            elif steps:
                shares.append((now.step - begin) / epochs)
                batches.append(sum(times.samples for times in ranks) / steps)
    if not shares:
        return
    if result.sample_unit not in ROWS:
        if max(shares) > (1 + SPREAD) * min(shares) or min(batches) <= 0:
            yield "its epochs and samples do not follow from its steps"
        return
    if f"{experiment.task.name}/{experiment.task.recipe}" not in official.reference(start.mlbench).recipes:
        return  # a task of somebody else's may count otherwise
    batch, count, rows = round(batches[0]), round(shares[0]), result.data_rows.get("train")
    if batch < 1 or any(each != batch for each in batches):
        yield f"its samples are not its steps times a global batch of {batch}"
    size = getattr(experiment.task, "batch_size", None)  # of a worker; None: the configuration does not say
    limit = getattr(experiment.task, "max_global_batch", None)
    if size is not None and limit is not None:
        size = min(size, limit // experiment.workers)
    if size is not None and batch != size * experiment.workers:
        yield f"its steps take {batch} samples, and its configuration says {size * experiment.workers}"
    # An epoch has all steps that the training rows fill, or fewer where some rows are for validation.
    full = getattr(experiment.task, "validation", "test") == "test"
    row_steps = count if rows is None or batch < 1 else rows // batch
    fits = count == row_steps if full else 0 < count <= row_steps
    if not fits or any(abs(share - count) > 1e-6 * count for share in shares):
        yield "its epochs do not follow from its steps and the rows of its data"


def _of_stamps(log: Log, every: Sequence[Measured], end: RunEnd, result: WorkerResult) -> Iterator[str]:
    """Wall clocks are those of the start plus what elapsed, and no event is stamped before what it tells."""
    group = next((event for event in log if event["key"] == "startup"), None)
    first = next((event for event in log if event["key"] == "run_start"), None)
    touched = first["value"] if first else result.started_at
    hosts = {event["metadata"].get("hostname") for event in (group, first) if event is not None}
    one_host = len(hosts | {end.hostname}) == 1
    begins = {event["metadata"].get("started_at") for event in log if event["key"] == "validation"}
    begins |= {result.started_at} if result.started_at else set()
    if touched is not None and begins - {touched}:
        yield "its events do not agree when training began"
    for validation, _ in every:
        if touched is not None and abs(validation.wall - touched - validation.elapsed) > ROUNDING_S:
            yield f"the wall clock at step {validation.step} is not the start's plus what elapsed"
    if not one_host:
        return
    reported = {
        "run_configuration": lambda value: value["begun"],
        "startup": lambda value: value["group_end"],
        "run_start": lambda value: value,
        "validation": lambda value: value["wall"],
        "run_result": lambda value: value["ended"],
    }
    last = -math.inf
    for event in log:
        stamp = event["time_ms"] / 1000
        if event["key"] == "submission":  # what follows was stamped by another machine
            break
        if event["key"] in reported and stamp < reported[event["key"]](event["value"]) - STAMP_S:
            yield f"the event {event['key']} is stamped before what it tells"
        if stamp < last - STAMP_S:
            yield f"the event {event['key']} is stamped before the event above it"
        last = max(last, stamp)


def _of_durations(
    startup: Startup,
    startup_time: float | None,
    every: Sequence[Measured],
    start: RunStart,
    end: RunEnd,
) -> Iterator[str]:
    """No duration is negative, and the whole holds its parts."""
    wall = end.ended - start.begun
    parts = {**startup.parts(), "whole": startup_time or 0.0}
    yield from (f"the part {name} of its start-up is negative" for name, s in parts.items() if s < -STAMP_S)
    inside = math.fsum(startup.parts().values()) + (every[-1][0].elapsed if every else 0.0)
    if wall < inside - STAMP_S:
        yield f"it lasted {duration(max(wall, 0.0))}, and its parts {duration(inside)}"


def _of_nodes(log: Log, end: RunEnd, result: WorkerResult, every: Sequence[Measured]) -> Iterator[str]:
    """What is told twice is told alike, and no machine gave more than it has."""
    reported = [WorkerResult.model_validate(e["value"]) for e in log if e["key"] == "worker_result"][:1]
    if any(report != end.result for report in reported) and end.result is not None:
        yield "its workers' result stands in it twice, and differs"
    if end.result is not None and end.result.status in FINISHED and not end.result.nodes:
        yield "it describes no node"
    began = {event["metadata"].get("hostname") for event in log if event["key"] == "run_start"} - {None}
    restarted = any(event["key"] == "worker_failure" for event in log)  # then the nodes are those since then
    if result.nodes and not restarted and began - {result.nodes[0].hostname}:
        yield f"rank 0 began on {', '.join(sorted(began))}, which is not its first node"
    elapsed = every[-1][0].elapsed if every and not restarted else 0.0
    for node in result.nodes:
        during = node.interference
        if during is not None and during.seconds < elapsed - SKEW_S - SHARE * elapsed:
            yield f"{node.hostname} was watched for {duration(during.seconds)} of {duration(elapsed)}"
        yield from _of_interference(during, node.hostname, node.logical_cpus)
    yield from _of_interference(end.interference, end.hostname or "the driver's machine", None)


def _of_hosts(log: Log, end: RunEnd, experiment: Experiment) -> Iterator[str]:
    """A local Ray's driver and rank 0 are on one machine; emulated hosts have names of their own."""
    if experiment.cluster.name != "local" or experiment.network.emulated:
        return
    stamped = (event["metadata"].get("hostname") for event in log if event["key"] in ("startup", "run_start"))
    hosts = {end.hostname, *stamped} - {None}
    if len(hosts) > 1:
        yield f"cluster=local is one machine, and it names {', '.join(sorted(map(str, hosts)))}"


def _of_interference(what: Interference | None, hostname: str, logical_cpus: int | None) -> Iterator[str]:
    if what is None or what.seconds < MIN_SECONDS:
        return
    used, most = what.others + what.steal, logical_cpus or what.cpus
    for cpus, who in ((used, "other processes"), (what.cpus, "the run")):
        if cpus > CPUS_FACTOR * most:
            yield f"{who} cannot have used {cpus:.2g} of the {most:g} CPUs of {hostname}"


def _of_rates(experiment: Experiment, nodes: Sequence[Node], flops_per_s: float | None) -> Iterator[str]:
    """No run computes faster than its nodes did when they were calibrated."""
    cuda = experiment.backend.device == "cuda"
    rates = [node.calibration.get(f"{'cuda' if cuda else 'cpu'}_gemm_flops_per_s") for node in nodes]
    if flops_per_s is None or not rates or None in rates:
        return
    devices = experiment.workers / len(rates) if cuda else 1  # of a node; one GPU is calibrated
    most = math.fsum(filter(None, rates)) * devices
    precision = getattr(experiment.task, "precision", None) or ("fp16" if cuda else "fp32")
    if flops_per_s > RATE_FACTOR.get(precision, RATE_FACTOR_16_BIT) * most:
        yield (
            f"it computed {flops_per_s:.2g} FLOP/s, and its nodes can do {most:.2g}: "
            "the clock of one of them was wrong"
        )


def _of_values(
    log: Log, every: Sequence[Measured], experiment: Experiment, result: WorkerResult | None
) -> Iterator[str]:
    """Metrics lie in the bounds of their unit, amounts are not negative, and samples have one unit."""
    task = experiment.task
    low, high = bounds(task.metric, task.metric_unit)
    for validation, _ in every:
        value = validation.metrics.get(task.metric)
        if value is not None and not low <= value <= high:
            yield f"its {task.metric} at step {validation.step} is {value:g}, which it cannot be"
    if result is None:  # its workers died and described nothing
        return
    amounts = {
        "FLOP a sample": result.flops_per_sample,
        "bytes of gradients": result.gradient_bytes,
        "peak memory": result.peak_memory_bytes,
        **{f"energy of {node.hostname}": min(node.energy_j.values(), default=None) for node in result.nodes},
        **{f"share in memory on {node.hostname}": node.data_cached for node in result.nodes},
        **{f"load on {n.hostname}": n.interference and min(n.interference.others, n.interference.steal)
           for n in result.nodes},
    }  # fmt: skip
    yield from (f"its {name} is negative" for name, amount in amounts.items() if (amount or 0) < 0)
    units = {event["metadata"].get("unit") for event in log if event["key"] == "validation"} - {None}
    if units and units != {result.sample_unit}:
        yield f"its samples are {' and '.join(sorted(units | {result.sample_unit}))}"
