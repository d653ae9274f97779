"""Run the script once a worker, next to this process, and report what its probe has seen."""

import gzip
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.probe import sender
from mlbench.script import child, memory_kills, summary
from mlbench.script.collector import Collector
from mlbench.script.printed_metric import PrintedMetric
from mlbench.tasks.script import OUTPUTS, Config
from mlbench.training.setup import TaskResult
from mlbench.training.worker import Worker

OUTPUT_BYTES = 2**19  # bytes of a rank's outputs, packed, that travel with its report
STALL_S = 1800.0  # s of task.stall_s by default: a run holds its workers, which may be paid for
POLL_S = 0.5  # s between two exchanges of the ranks' states


def measure(config: Config, worker: Worker) -> TaskResult:
    """Start the script as torchrun does, with this worker's place in its environment, and follow it.

    The ranks of mlbench agree twice a second whether one of them has failed, or the goal is reached. Raises
    UserError if the script cannot be started.
    """
    collector = None
    if worker.rank == 0:
        host = os.environ["MASTER_ADDR"] if worker.world_size > 1 else "127.0.0.1"
        collector = Collector(host, metric=config.metric, goal=worker.goal)
        collector.settled, collector.describe_hosts = True, False
    meeting = [collector.address, collector.token, _free_port()] if collector else None
    address, token, port = worker.gather(meeting)[0]
    outputs = _outputs(worker)
    metric = None
    if collector and config.pattern is not None:
        metric = PrintedMetric(
            config.pattern,
            config.metric,
            worker.goal,
            on_value=collector.printed,
            on_doubt=collector.doubts.append,
        )
    output = child.ScriptOutput(metric)
    command = child.Child(
        config.command_line(sys.executable, worker.seed),
        cwd=config.cwd or os.getcwd(),
        variables=child.variables(address, token)
        | {sender.OUTER: ""}
        | _environment(worker, port)
        | _places(outputs),
        output=output,
    )
    kills, where, stall_s = memory_kills.count(), "", config.stall_s or STALL_S
    try:
        codes = _follow(worker, collector, command, stop_at_goal=config.stop_at_goal, stall_s=stall_s)
        where = summary.standstill(collector) if collector and None in codes else ""
    finally:
        command.end()
    reached = worker.gather(bool(collector and collector.reached))[0]
    _report(worker, collector, final=True)
    covered = summary.coverage(collector) if collector else None
    covered = worker.gather(covered)[0]
    flops = summary.FlopCount(*worker.gather(summary.flop_count(collector) if collector else None)[0])
    nothing = worker.gather(summary.nothing(collector) if collector else "")[0]
    where = worker.gather(where)[0]
    failure = summary.failure(codes, worker.gather(output.cause()), stall_s, where)
    failure = summary.killed(failure, kills)
    files, left = _packed(outputs)
    left = [sentence for each in worker.gather(left) for sentence in each]
    error = None if reached else failure or (nothing if not covered["steps"] else None)
    status = "failed" if error else "goal_reached" if reached else "completed"
    return TaskResult(
        status="goal_not_reached" if status == "completed" and worker.goal else status,
        error=error,
        steps=covered["steps"],
        unit=summary.UNIT,
        flops_per_sample=flops.flops_per_sample,
        flops_lacking=flops.lacking,
        precision=flops.precision,
        devices=flops.devices,
        peak_memory_bytes=collector.peak_bytes if collector else None,
        warnings=[*covered["warnings"], *left] if worker.rank == 0 else [],
        files={f"rank_{worker.rank}.log": gzip.compress(output.log())} | files,
    )


def _outputs(worker: Worker) -> Path | None:
    """Make this rank's folder for outputs, if its node has a place for them. Return it."""
    (name, *_) = worker.gather(f"outputs-{secrets.token_hex(4)}")  # of this run alone
    if (root := os.environ.get(OUTPUTS)) is None:
        return None
    folder = Path(root) / name / f"rank_{worker.rank}"
    folder.mkdir(parents=True)
    return folder


def _places(outputs: Path | None) -> dict[str, str]:
    return {} if outputs is None else dict.fromkeys((OUTPUTS, "WANDB_DIR"), str(outputs))


def _packed(outputs: Path | None) -> tuple[dict[str, bytes], list[str]]:
    """Return the small outputs that travel to the run's folder, and a sentence about the others."""
    if outputs is None:
        return {}, []
    paths = [path for path in outputs.rglob("*") if path.is_file()]
    packed: dict[str, bytes] = {}
    left = 0
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        data = gzip.compress(path.read_bytes()) if path.stat().st_size < 10 * OUTPUT_BYTES else b""
        if data and len(data) + sum(map(len, packed.values())) <= OUTPUT_BYTES:
            packed[f"outputs/{path.relative_to(outputs.parent).as_posix()}"] = data
        else:
            left += 1
    sentence = f"{left} of {len(paths)} outputs were too large to copy and are in {outputs}"
    return packed, [sentence] if left else []


def _follow(
    worker: Worker, collector: Collector | None, command: child.Child, *, stop_at_goal: bool, stall_s: float
) -> list[Any]:
    """Return every rank's exit code once all have ended. None for those that were ended here."""
    while True:
        code = command.wait(POLL_S)
        quiet = clock.monotonic() - command.output.changed_at > stall_s
        states = worker.gather([code, quiet])
        _report(worker, collector, final=False)
        if collector is not None:
            worker.heartbeat({"doing": f"training, {collector.steps} steps"})
        done = worker.gather(bool(collector and collector.reached and stop_at_goal))[0]
        codes = [each for each, _ in states]
        if all(each is not None for each in codes) or any(codes) or done:
            return codes
        moved = worker.gather(collector is not None and collector.active(stall_s))[0]
        if all(each for _, each in states) and not moved:
            return codes


def _report(worker: Worker, collector: Collector | None, *, final: bool) -> None:
    """Report the intervals that have ended. Every rank calls this at the same point."""
    if collector is not None and final:
        collector.drain(POLL_S)
    news = collector.take(final=final) if collector else []
    started_at = collector.started_at if collector and news else None
    plain = [[validation, [each.plain() for each in times]] for validation, times in news]
    plain, started_at = worker.gather([plain, started_at])[0]
    if not plain:
        return
    worker.timer.started_at = started_at
    parts: Any = [
        {"validation": validation, "phase_times": times[worker.rank]} for validation, times in plain
    ]
    worker.report_validation(
        {
            "started_at": started_at,
            "rank": worker.rank,
            "parts": parts,
            "system": worker.drain_node_metrics(),
            "unit": summary.UNIT,
        },
        None,
    )


def _environment(worker: Worker, port: int) -> dict[str, str]:
    """Return a rank's environment as torchrun makes it."""
    variables = {
        "RANK": worker.rank,
        "LOCAL_RANK": worker.local_rank,
        "WORLD_SIZE": worker.world_size,
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1") if worker.world_size > 1 else "127.0.0.1",
        "MASTER_PORT": port,
        "LOCAL_WORLD_SIZE": os.environ.get("LOCAL_WORLD_SIZE", "1"),
        "GROUP_RANK": os.environ.get("NODE_RANK", "0"),
        "TORCHELASTIC_USE_AGENT_STORE": False,  # of launcher=torchrun, which holds mlbench's group
    }
    return {name: str(value) for name, value in variables.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
