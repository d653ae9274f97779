"""Runs the script once a worker, beside this process, and reports what its probe has seen."""

import gzip
import os
import socket
import sys
from typing import Any

from mlbench import clock
from mlbench.script import child, summary
from mlbench.script.collector import Collector
from mlbench.tasks.script import Config
from mlbench.training.setup import TaskResult
from mlbench.training.worker import Worker

POLL_S = 0.5  # s between two exchanges of the ranks' states


def measure(config: Config, worker: Worker) -> TaskResult:
    """Start the script as torchrun does, with this worker's place in its environment, and follow it.

    The ranks of mlbench agree twice a second whether one of them has failed, or the goal is reached. Raises
    UserError where the script cannot be started.
    """
    collector = None
    if worker.rank == 0:
        host = os.environ["MASTER_ADDR"] if worker.world_size > 1 else "127.0.0.1"
        collector = Collector(host, metric=config.metric, goal=worker.goal)
        collector.settled, collector.describe_hosts = True, False
    meeting = [collector.address, collector.token, _free_port()] if collector else None
    address, token, port = worker.gather(meeting)[0]
    output = child.ScriptOutput(config.pattern, collector.printed if collector else lambda _: None)
    command = child.Child(
        config.command_line(sys.executable),
        cwd=config.cwd or os.getcwd(),
        variables=child.variables(address, token) | _environment(worker, port),
        output=output,
    )
    try:
        codes = _follow(config, worker, collector, command)
    finally:
        command.end()
    reached = worker.gather(bool(collector and collector.reached))[0]
    _report(worker, collector, final=True)
    covered = summary.coverage(collector) if collector else None
    covered = worker.gather(covered)[0]
    failure = summary.failure(codes, worker.gather(output.last_line()), config.stall_s)
    error = None if reached else failure or (summary.NOTHING if not covered["steps"] else None)
    status = "failed" if error else "goal_reached" if reached else "completed"
    return TaskResult(
        status="goal_not_reached" if status == "completed" and worker.goal else status,
        error=error,
        steps=covered["steps"],
        unit=summary.UNIT,
        peak_memory_bytes=collector.peak_bytes if collector else None,
        warnings=covered["warnings"] if worker.rank == 0 else [],
        files={f"rank_{worker.rank}.log": gzip.compress(output.log())},
    )


def _follow(config: Config, worker: Worker, collector: Collector | None, command: child.Child) -> list[Any]:
    """Return every rank's exit code once all have ended; None for those that were ended here."""
    while True:
        code = command.wait(POLL_S)
        quiet = clock.monotonic() - command.output.changed_at > config.stall_s
        states = worker.gather([code, quiet])
        _report(worker, collector, final=False)
        if collector is not None:
            worker.heartbeat({"doing": f"training, {collector.steps} steps"})
        done = worker.gather(bool(collector and collector.reached and config.stop_at_goal))[0]
        codes = [each for each, _ in states]
        if all(each is not None for each in codes) or any(codes) or done:
            return codes
        moved = worker.gather(collector is not None and collector.active(config.stall_s))[0]
        if all(each for _, each in states) and not moved:
            return codes


def _report(worker: Worker, collector: Collector | None, *, final: bool) -> None:
    """Report the intervals that have ended; every rank calls this at the same point."""
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
        "TORCHELASTIC_USE_AGENT_STORE": False,  # of launcher=torchrun, which holds mlbench's own group
    }
    return {name: str(value) for name, value in variables.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
