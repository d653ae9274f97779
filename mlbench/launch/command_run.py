"""Run a command whose processes a launcher of the user starts: torchrun, accelerate, mpirun, srun or python.

The command is started under the probe, and its streams are those of this process. The run begins, with its
folder, when all ranks have made a step: a command that never trains leaves nothing behind.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mlbench import clock
from mlbench.clusters import processes, reaper
from mlbench.config import compose
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import execute, signals
from mlbench.launch.output import Output
from mlbench.launch.recorder import Recorder
from mlbench.record.record import Record
from mlbench.script import child, memory_kills, summary
from mlbench.script.collector import Collector
from mlbench.script.printed_metric import PrintedMetric
from mlbench.tasks import registry

POLL_S = 0.2  # s between two looks at the command
DRAIN_S = 2.0  # s that the ranks of a command that has ended have to report the rest
SAID = {"task", "cluster", "launcher", "workers", "task.path", "task.module", "task.command"}


class CommandRun(NamedTuple):
    """How a measured command ended.

    - code: its exit code. 1 if it hung, 0 if it was ended at its goal. error: why there is no record.
    - ranks: what each rank reported about itself: its threads, the CPUs that it may use. step_s: of rank 0's
      steps.
    - printed: by the command. left: the processes that outlived it, by name and number.
    - interrupted: whether a signal to mlbench ended it.
    """

    code: int
    error: str | None
    record: Record | None
    folder: Path | None
    ranks: Sequence[Mapping[str, Any]] = ()
    step_s: Sequence[float] = ()
    printed: bytes = b""
    left: Sequence[str] = ()
    interrupted: bool = False


def experiment_of(overrides: Sequence[str], command: Sequence[str]) -> Experiment:
    """Return the experiment of a command line. Raises UserError for one that cannot be started."""
    if not command:
        raise UserError("missing command to measure", hint="... -- torchrun --nproc-per-node 2 train.py")
    names = {word.partition("=")[0] for word in overrides}
    for name in sorted(names & SAID):
        raise UserError(f"{name}= is set by the command", hint="remove it")
    beside = [] if "cluster.exclusive" in names else ["cluster.exclusive=false"]  # as without mlbench
    experiment = compose.compose(["task=script", "launcher=command", "workers=1", *beside, *overrides])
    if shutil.which(command[0]) is None:
        raise UserError(f"command not found: {command[0]}", hint="is it installed, and on PATH?")
    values = experiment.task.model_dump() | {"command": tuple(without_credentials([*command]))}
    task = registry.load("script").Config.model_validate(values)
    if isinstance(experiment.goal, float) and task.pattern is None:
        raise UserError("goal= needs a metric", hint="task.metric='val_acc ([0-9.]+)' finds a printed value")
    experiment = experiment.model_copy(update={"task": task})
    execute.check(experiment)
    execute.check_folder("output_root", experiment.output_root)
    return experiment


def run(
    command: Sequence[str],
    overrides: Sequence[str],
    *,
    begun: float,
    listen: str,
    output: Output,
    contained: bool = False,
    environment: Mapping[str, str] | None = None,
) -> CommandRun:
    """Run a command and measure what its processes train.

    - overrides: as of `mlbench.run`. begun: when the mlbench command started, s since 1970.
    - listen: the address on which ranks reach this process, those on other hosts, too.
    - contained: keep what it prints instead of showing it, and end processes that outlive it.
    - environment: added to the command's.
    """
    experiment = experiment_of(overrides, command)
    task: Any = experiment.task  # with the fields of its Config
    execute.tell_store(experiment, output)
    reaper.reap_if_any()
    with signals.interruptible(), ExitStack() as stack:
        lock = stack.enter_context(execute.machine(experiment, output))
        begun += lock.waited_s if lock else 0.0
        asked = any(word.startswith("cluster.exclusive=") for word in overrides)
        if lock is not None and lock.shared and not asked:
            output.sentence(
                "mlbench: another run measures on this machine, and both are marked (cluster.exclusive=true "
                "waits for it)"
            )
        collector = Collector(listen, metric=task.metric, goal=experiment.target)
        line = ["python", "-m", "mlbench.measure", *overrides, "--", *command]
        recorder = Recorder(line, overrides, experiment, collector, begun=begun, lock=lock, output=output)
        stack.callback(recorder.stop)
        printed = child.ScriptOutput(_metric(experiment, collector, output, command))
        process = child.Child(
            command,
            cwd=os.getcwd(),
            variables={**(environment or {}), **child.variables(collector.address, collector.token)},
            output=printed,
            mirrors=not contained,
            stdin=subprocess.DEVNULL if contained else None,
        )
        code: int | None = None
        unwritten: list[Exception] = []  # why the run cannot be written, as on a full disk
        where, kills = "", memory_kills.count()
        interrupted = False
        with process.attached():
            try:
                code = _follow(process, recorder, unwritten)
                where = summary.standstill(collector) if code is None else ""
            except KeyboardInterrupt:
                interrupted = True
            finally:
                if code is not None:
                    process.finish()
                else:
                    with signals.repeatable() if interrupted else nullcontext() as number:
                        ended = process.end(number)
        left = [f"{_name(each)} (pid {each.pid})" for each in process.left]
        if left and contained:
            processes.kill(process.left)
        elif left:
            output.sentence(f"mlbench: {', '.join(left)}: outlives the command, and was left running")
        _write(unwritten, lambda: recorder.drain(DRAIN_S))
        failed = summary.failure([code], [printed.cause()], task.stall_s or 0.0, where)
        failed = summary.killed(failed, kills)
        error = execute.STOPPED if interrupted else None if collector.reached else failed
        status = "interrupted" if interrupted else "failed" if error else None
        record = _write(unwritten, lambda: recorder.finish(status, error, log=printed.log()))
        if code is None:
            code = ended if interrupted else int(not collector.reached)
        if unwritten:
            error = f"{error}. {unwritten[0]}" if error else str(unwritten[0])
        elif record is None and error is None:
            error = f"{summary.nothing(collector)}. No record was written"
        ranks = [rank.about for _, rank in sorted(collector.ranks.items())]
        why = error if record is None else None
        steps = collector.step_s
        log = printed.log()
        return CommandRun(code, why, record, recorder.folder, ranks, steps, log, left, interrupted)


def _metric(
    experiment: Experiment, collector: Collector, output: Output, command: Sequence[str]
) -> PrintedMetric | None:
    """Return what reads the metric of a command's lines, if it has one."""
    task: Any = experiment.task

    def doubt(sentence: str) -> None:
        collector.doubts.append(sentence)
        output.sentence(f"mlbench: {sentence}")

    if task.pattern is None:
        return None
    labelled = "srun" in command and bool({"-l", "--label"} & set(command))
    return PrintedMetric(
        task.pattern,
        task.metric,
        experiment.target,
        on_value=collector.printed,
        on_doubt=doubt,
        srun=labelled,
        world=lambda: collector.world or inf,
    )


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return "a process"


def _write(unwritten: list[Exception], write: Callable[[], Any]) -> Any:
    """Write a part of the run, unless one could not be written: the command goes on without a record."""
    if not unwritten:
        try:
            return write()
        except (UserError, OSError) as error:
            unwritten.append(error)
    return None


def _follow(process: child.Child, recorder: Recorder, unwritten: list[Exception]) -> int | None:
    """Return the exit code, or None for a command that is to be ended: hung, or at its goal."""
    task: Any = recorder.experiment.task
    # A script that learns from mlbench.measure() that its goal is reached ends itself.
    stops = task.stop_at_goal and task.pattern is not None
    while (code := process.wait(POLL_S)) is None:
        _write(unwritten, lambda: recorder.take(final=False))
        if unwritten:
            recorder.collector.take()  # its goal counts without a record, too
        if recorder.collector.reached and stops:
            return None
        if task.stall_s is None:
            continue
        quiet = clock.monotonic() - process.output.changed_at > task.stall_s
        if quiet and not recorder.collector.active(task.stall_s):
            return None
    return code
