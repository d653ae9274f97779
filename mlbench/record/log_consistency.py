"""Check that the event log of a run is consistent with itself, by relations of every honest log.

Most are identities of one clock or one counter, so they hold to rounding on a busy machine, too. Those of two
clocks or two processes have a bound. A log that breaks one was damaged or edited, or a clock was wrong, so
its times are no measurement. TEXTS has the sentence of each.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mlbench.config.errors import is_comparable
from mlbench.config.experiment import Experiment, bounds
from mlbench.config.identity import key
from mlbench.record import events, official
from mlbench.record.format import duration
from mlbench.record.noise import MIN_SECONDS
from mlbench.record.phases import PhaseTimes
from mlbench.record.record import FINISHED, Node, RunEnd, RunStart, Startup, Validation, WorkerResult

Log = Sequence[dict[str, Any]]  # the events of one run, in their order
Measured = tuple[Validation, list[PhaseTimes]]

CAVEAT = "the log contradicts itself: "  # begins the caveat of each contradiction
ROUNDING_S = 1e-5  # s, as wall clocks near 2e9 s are doubles 2.4e-7 s apart, and some are added
STAMP_S = 0.002  # s, as events are stamped in whole ms
SHARE = 0.01  # by which the clocks of two ranks may differ (0.23 % was the most in 18 runs, 2026-11-23)
SKEW_S = 1.0  # s, in short runs: a rank leaves a collective late (25 ms at a load of 8 on 2 CPUs)
CPUS_FACTOR = 1.5  # over what a machine has, as the kernel counts CPU time in steps of 10 ms
# Model FLOP/s over the calibrated float32 FLOP/s of all nodes; matrix units compute 16-bit numbers up to 16
# times as fast as float32 (H100: 989 to 67 TFLOP/s, data sheet of 2023), and a calibration may be disturbed.
RATE_FACTOR = {"fp32": 2.0, "tf32": 16.0}
RATE_FACTOR_16_BIT = 64.0
ROWS = ("images", "rows")  # units of which a step takes a global batch, and an epoch whole steps
SPREAD = 0.25  # by which steps per epoch of texts, whose chunks are drawn, differ between two validations
LATE = {"worker_failure", "submission", "run_stop"}  # what the controller and others add after the run's end
TEXTS = {
    "key": "its key {left} is not that of its configuration",
    "seed": "its configuration has the seed {right}, and the run {left}",
    "version": "it names two versions of mlbench, {right} and {left}",
    "checksum": "its lines are not those that the run wrote: their checksum differs",
    "added": "lines were added to it",
    "submission": "its submission event does not fit the run",
    "failures": "its workers failed {left} times, and max_failures is {right}",
    "order": "the validation at step {step} ends before the one before it, or before the start",
    "ranks": "the validation at step {step} has {left} ranks of {right}",
    "goal": "the validation at step {step} and the goal contradict each other",
    "negative": "rank {rank} at step {step} has a negative time or count",
    "phases": "the phases of rank {rank} at step {step} add up to {inside_s} of {steps_s} in steps",
    "clocks": "the clocks of rank {rank} and of the run differ by {apart_s}",
    "account": "rank {rank} at step {step} accounts for {passed_s} of {whole_s}",
    "rank steps": "the validation at step {step} follows other numbers of steps on other ranks",
    "steps": "the validation at step {step} follows {steps} steps, which contradicts its position",
    "epoch": "the validation at step {step} is at epoch {epoch:g}, which contradicts its steps",
    "texts": "its epochs and samples do not follow from its steps",
    "samples": "its samples are not its steps times a global batch of {batch}",
    "batch": "its steps take {left} samples, its configuration gives {right}",
    "rows": "its epochs do not follow from its steps and the rows of its data",
    "began": "its events do not agree when training began",
    "wall": "the wall clock at step {step} is not the start's plus what elapsed",
    "stamp": "the event {event} has a time stamp before what it reports",
    "stamps": "the event {event} is stamped before the event above it",
    "start-up": "the part {part} of its start-up is negative",
    "lasted": "it lasted {lasted_s}, and its parts {inside_s}",
    "result": "its workers' result is repeated and differs",
    "nodes": "it describes no node",
    "first node": "rank 0 began on {hosts}, which is not its first node",
    "watch": "{host} was watched for {watched_s} of {elapsed_s}",
    "local": "cluster=local is one machine, and it names {hosts}",
    "cpus": "{who} cannot have used {left:.2g} of the {right:g} CPUs of {host}",
    "rate": "it computed {left:.2g} FLOP/s, and its nodes can do {right:.2g}: "
    "the clock of one of them was wrong",
    "metric": "its {metric} at step {step} is {value:g}, which it cannot be",
    "amount": "its {amount} is negative",
    "units": "its samples are {units}",
}


def _check(code: str, left: Any, right: Any = True, tolerance: float | None = None, **words: Any) -> str:
    """Return the text of a broken relation, or "" if it holds.

    It holds if left equals right or, with a tolerance, exceeds it by no more than that. Words of the text
    that end in _s are durations.
    """
    if left == right if tolerance is None else left - right <= tolerance:
        return ""
    words |= {"left": left, "right": right}
    shown = {name: duration(value) if name.endswith("_s") else value for name, value in words.items()}
    return TEXTS[code].format(**shown)


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
    """Return a log's contradictions, one sentence each. The list is empty for an honest log.

    `stretches` are those of the log. `flops_per_s` are model FLOP/s of all ranks.
    """
    every = [each for stretch in stretches for each in stretch]
    # Each validation with the one before. None for a run's first, and after a restart.
    neighbours = [pair for stretch in stretches for pair in zip([None, *stretch], stretch, strict=False)]
    parts = {**startup.parts(), "whole": startup_time or 0.0}
    sentences = [
        *_of_identity(log, start),
        *_of_order(every, start.experiment),
        *(sentence for before, now in neighbours for sentence in _of_interval(before, now, start)),
        *_of_progress(stretches, start, result),
        *_of_clocks(log, every, start.begun, end, result, startup),
        *(_check("start-up", -s, 0.0, STAMP_S, part=part) for part, s in parts.items()),
        *_of_nodes(log, end, result, every),
        *_of_machine(log, start.experiment, end, result.nodes, flops_per_s),
        *_of_values(log, every, start.experiment, end.result),
    ]
    return list(filter(None, dict.fromkeys(sentences)))


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


def _of_identity(log: Log, start: RunStart) -> Iterator[str]:
    """Check that the key is that of the configuration, and that the lines are those that the run wrote."""
    experiment, software = start.experiment, start.software
    framework = software.packages.get(experiment.framework)
    if framework and is_comparable(start.mlbench):  # a released version's may have been made otherwise
        yield _check("key", start.key, key(experiment, framework))
    yield _check("seed", start.seed, start.seed if experiment.seed is None else experiment.seed)
    yield _check("version", start.mlbench, software.mlbench or start.mlbench)
    for index, event in enumerate(log):
        written = event["metadata"]
        if event["key"] == "run_result" and "sha256" in written:
            yield _check("checksum", events.checksum(log[: written["events"]], event["value"]), written)
            added = {line["key"] for line in (*log[written["events"] : index], *log[index + 1 :])}
            yield _check("added", added - LATE, set())
    keys = [event["key"] for event in log]
    if "submission" in keys:  # follows the end of the run itself
        on_time = experiment.cluster.name != "local" and not sealed(log[keys.index("submission") :])
        yield _check("submission", on_time)
    trained = max((index for index, name in enumerate(keys) if name == "validation"), default=0)
    yield _check("failures", keys[:trained].count("worker_failure"), experiment.max_failures, 0)


def _of_order(every: Sequence[Measured], experiment: Experiment) -> Iterator[str]:
    """Check that the clock never pauses, all ranks take part, and a run ends when it reaches its goal."""
    goal, last = experiment.target, 0.0
    for now, ranks in every:
        at = {"step": now.step}
        yield _check("order", now.elapsed > last, **at)
        last = now.elapsed
        yield _check("ranks", len(ranks), experiment.workers, **at)
        value = now.metrics.get(goal.metric) if goal else None
        reached = goal is not None and value is not None and goal.reached(value)
        if None not in now.metrics.values():  # else the run has diverged, whatever the goal
            yield _check("goal", now.goal_reached, reached, **at)
        yield _check("goal", reached and now is not every[-1][0], False, **at)


def _of_interval(before: Measured | None, now: Measured, start: RunStart) -> Iterator[str]:
    """Check that all time of a rank is inside or outside its steps, and that phases add up to the inside."""
    validation, ranks = now
    last = before[0].elapsed if before else 0.0
    apart_s = SKEW_S + SHARE * validation.elapsed  # of the clocks of two ranks
    for rank, times in enumerate(ranks):
        at = {"rank": rank, "step": validation.step}
        amounts = (*times.phases.values(), *times.outside.values(), times.seconds)
        amounts += (times.steps, times.samples, times.bytes_sent or 0, times.overlapped_communication)
        valid = all(math.isfinite(value) and value > -ROUNDING_S for value in amounts)
        yield _check("negative", valid, **at)
        inside, passed = math.fsum(times.phases.values()), times.seconds + math.fsum(times.outside.values())
        if inside or times.stamped_steps > 0 or (start.experiment.phase_timing and times.steps > 0):
            at |= {"inside_s": inside, "steps_s": times.seconds}
            yield _check("phases", abs(inside - times.seconds), 0.0, ROUNDING_S + 1e-6 * times.seconds, **at)
        own = before[1][rank].elapsed if before and rank < len(before[1]) else 0.0
        if times.elapsed is None:  # a log of before 2026-11-23
            whole, slack = validation.elapsed - last, apart_s
        else:
            whole, slack = times.elapsed - (last if own is None else own), ROUNDING_S
            bound = apart_s if rank else ROUNDING_S
            apart = abs(times.elapsed - validation.elapsed)
            yield _check("clocks", apart, 0.0, bound, **at, apart_s=apart)
        after_restart = before is None and start.experiment.max_failures > 0
        missing = passed - whole if after_restart else abs(passed - whole)
        yield _check("account", missing, 0.0, slack, **at, passed_s=passed, whole_s=whole)


def _of_progress(
    stretches: Sequence[Sequence[Measured]], start: RunStart, result: WorkerResult
) -> Iterator[str]:
    """Check that steps, epochs and samples follow from each other."""
    experiment = start.experiment
    seen = {0: 0.0}  # epochs by step
    shares: list[float] = []  # steps per epoch
    batches: list[float] = []  # samples a step, of all ranks
    most = getattr(experiment.task, "epochs", None) or math.inf
    for stretch in stretches:
        for index, (now, ranks) in enumerate(stretch):
            steps = ranks[0].steps if ranks else 0
            begin = now.step - steps
            if not now.metrics and begin not in seen:  # it diverged within a step, which is not counted
                begin -= 1
            at = {"step": now.step, "steps": steps, "epoch": now.epoch}
            yield _check("rank steps", {times.steps for times in ranks} - {steps}, set(), **at)
            follows = begin in seen and (not index or begin == stretch[index - 1][0].step)
            yield _check("steps", follows, **at)
            epochs = now.epoch - seen.get(begin, 0.0)
            seen[now.step] = now.epoch
            if not any(each.epoch for each, _ in stretch) and not hasattr(experiment.task, "epochs"):
                continue  # a script from elsewhere, which does not report its epochs
            led = (epochs > 0) == (steps > 0) and now.epoch <= most
            yield _check("epoch", led, **at)
            if led and steps:
                shares.append((now.step - begin) / epochs)
                batches.append(sum(times.samples for times in ranks) / steps)
    if not shares:
        return
    if result.sample_unit not in ROWS:
        steady = max(shares) <= (1 + SPREAD) * min(shares) and min(batches) > 0
        yield _check("texts", steady)
        return
    if f"{experiment.task.name}/{experiment.task.recipe}" not in official.reference(start.mlbench).recipes:
        return  # a task of somebody else's may count otherwise
    batch, count, rows = round(batches[0]), round(shares[0]), result.data_rows.get("train")
    whole = batch >= 1 and all(each == batch for each in batches)
    yield _check("samples", whole, batch=batch)
    size = getattr(experiment.task, "batch_size", None)  # of a worker (None: not in the configuration)
    limit = getattr(experiment.task, "max_global_batch", None)
    if size is not None and limit is not None:
        size = min(size, limit // experiment.workers)
    yield _check("batch", batch, batch if size is None else size * experiment.workers)
    # An epoch has all steps that the training rows fill, or fewer if some rows are for validation.
    full = getattr(experiment.task, "validation", "test") == "test"
    row_steps = count if rows is None or batch < 1 else rows // batch
    fits = count == row_steps if full else 0 < count <= row_steps
    yield _check("rows", fits and all(abs(share - count) <= 1e-6 * count for share in shares))


def _of_clocks(
    log: Log, every: Sequence[Measured], begun: float, end: RunEnd, result: WorkerResult, startup: Startup
) -> Iterator[str]:
    """Check that wall clocks are start plus elapsed, and that no event is stamped before its content."""
    inside, wall = math.fsum(startup.parts().values()), end.ended - begun
    inside += every[-1][0].elapsed if every else 0.0
    yield _check("lasted", inside, wall, STAMP_S, lasted_s=max(wall, 0.0), inside_s=inside)
    group = next((event for event in log if event["key"] == "startup"), None)
    first = next((event for event in log if event["key"] == "run_start"), None)
    touched = first["value"] if first else result.started_at
    begins = {event["metadata"].get("started_at") for event in log if event["key"] == "validation"}
    begins |= {result.started_at} if result.started_at else set()
    if touched is not None:
        yield _check("began", begins - {touched}, set())
        for each, _ in every:
            yield _check("wall", abs(each.wall - touched - each.elapsed), 0.0, ROUNDING_S, step=each.step)
    hosts = {event["metadata"].get("hostname") for event in (group, first) if event is not None}
    if len(hosts | {end.hostname}) != 1:
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
        if event["key"] == "submission":  # what follows was stamped by another machine
            break
        stamp, name = event["time_ms"] / 1000, event["key"]
        if name in reported:
            yield _check("stamp", reported[name](event["value"]), stamp, STAMP_S, event=name)
        yield _check("stamps", last, stamp, STAMP_S, event=name)
        last = max(last, stamp)


def _of_nodes(log: Log, end: RunEnd, result: WorkerResult, every: Sequence[Measured]) -> Iterator[str]:
    """Check that repeated fields are equal, and that nodes were watched while they trained."""
    reported = [WorkerResult.model_validate(e["value"]) for e in log if e["key"] == "worker_result"][:1]
    if end.result is not None:
        yield _check("result", reported or [end.result], [end.result])
        yield _check("nodes", end.result.status in FINISHED and not end.result.nodes, False)
    began = {event["metadata"].get("hostname") for event in log if event["key"] == "run_start"} - {None}
    if any(event["key"] == "worker_failure" for event in log):  # then the nodes are those since then
        return
    elapsed = every[-1][0].elapsed if every else 0.0
    if result.nodes:
        hosts = ", ".join(sorted(began))
        yield _check("first node", began - {result.nodes[0].hostname}, set(), hosts=hosts)
    for node in result.nodes:
        if node.interference is not None:
            watched, slack = node.interference.seconds, SKEW_S + SHARE * elapsed
            words = {"host": node.hostname, "watched_s": watched, "elapsed_s": elapsed}
            yield _check("watch", elapsed - watched, 0.0, slack, **words)


def _of_machine(
    log: Log, experiment: Experiment, end: RunEnd, nodes: Sequence[Node], flops_per_s: float | None
) -> Iterator[str]:
    """Check CPUs and speed against machine limits and calibration. A local Ray is one machine."""
    used = [(node.interference, node.hostname, node.logical_cpus) for node in nodes]
    for what, host, logical in (*used, (end.interference, end.hostname or "the driver's machine", None)):
        if what is not None and what.seconds >= MIN_SECONDS:
            most = logical or what.cpus
            for cpus, who in ((what.others + what.steal, "other processes"), (what.cpus, "the run")):
                yield _check("cpus", cpus, most, (CPUS_FACTOR - 1) * most, who=who, host=host)
    if experiment.cluster.name == "local" and not experiment.network.emulated:  # emulated hosts have names
        stamped = (e["metadata"].get("hostname") for e in log if e["key"] in ("startup", "run_start"))
        hosts = {end.hostname, *stamped} - {None}
        yield _check("local", len(hosts), 1, 0, hosts=", ".join(sorted(map(str, hosts))))
    cuda = experiment.backend.device == "cuda"
    rates = [node.calibration.get(f"{'cuda' if cuda else 'cpu'}_gemm_flops_per_s") for node in nodes]
    if flops_per_s is not None and rates and None not in rates:
        devices = experiment.workers / len(rates) if cuda else 1  # of a node, on which one GPU is calibrated
        most = math.fsum(filter(None, rates)) * devices
        precision = getattr(experiment.task, "precision", None) or ("fp16" if cuda else "fp32")
        factor = RATE_FACTOR.get(precision, RATE_FACTOR_16_BIT)
        yield _check("rate", flops_per_s, most, (factor - 1) * most)


def _of_values(
    log: Log, every: Sequence[Measured], experiment: Experiment, result: WorkerResult | None
) -> Iterator[str]:
    """Check that metrics are in bounds, amounts are not negative, and samples have one unit."""
    task = experiment.task
    low, high = bounds(task.metric, task.metric_unit)
    for validation, _ in every:
        if (value := validation.metrics.get(task.metric)) is not None:
            words = {"metric": task.metric, "step": validation.step, "value": value}
            yield _check("metric", low <= value <= high, **words)
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
    for name, amount in amounts.items():
        yield _check("amount", 0, amount or 0, 0, amount=name)
    units = {event["metadata"].get("unit") for event in log if event["key"] == "validation"} - {None}
    several = " and ".join(sorted(units | {result.sample_unit}))
    yield _check("units", units - {result.sample_unit}, set(), units=several)
