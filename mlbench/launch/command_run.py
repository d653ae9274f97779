"""A run whose processes a launcher of the user's own starts: torchrun, accelerate, mpirun, srun or python.

The command is started under the probe, and what it prints goes to standard output. The run begins, with its
folder, when all ranks have made a step: a command that never trains leaves nothing behind.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

from mlbench import clock
from mlbench.clusters import reaper
from mlbench.config import compose
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import execute, signals
from mlbench.launch.output import Output
from mlbench.launch.recorder import Recorder
from mlbench.record.record import Record
from mlbench.script import child, summary
from mlbench.script.collector import Collector
from mlbench.tasks import registry

POLL_S = 0.2  # s between two looks at the command
DRAIN_S = 2.0  # s that the ranks of a command that has ended have to tell the rest
SAID = {"task", "cluster", "launcher", "workers", "task.path", "task.module", "task.command"}
INTERRUPTED = 130  # exit code, as a shell has it


def experiment_of(overrides: Sequence[str], command: Sequence[str]) -> Experiment:
    """Return the experiment that a command line is; UserError for one that cannot be started."""
    if not command:
        raise UserError("there is no command to measure", hint="... -- torchrun --nproc-per-node 2 train.py")
    names = {word.partition("=")[0] for word in overrides}
    for name in sorted(names & SAID):
        raise UserError(f"{name}= is what the command says", hint="leave it out")
    experiment = compose.compose(["task=script", "launcher=command", "workers=1", *overrides])
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: there is no such command", hint="is it installed, and on PATH?")
    values = experiment.task.model_dump() | {"command": tuple(map(without_credentials, command))}
    task = registry.load("script").Config.model_validate(values)
    if isinstance(experiment.goal, float) and task.pattern is None:
        raise UserError("goal= needs a metric", hint="task.metric='val_acc ([0-9.]+)' says where it is")
    experiment = experiment.model_copy(update={"task": task})
    execute.check(experiment)
    execute.check_folder("output_root", experiment.output_root)
    return experiment


def run(
    command: Sequence[str], overrides: Sequence[str], *, begun: float, listen: str, output: Output
) -> tuple[Record | None, int, str | None]:
    """Run a command and measure what its processes train.

    Returns the record, None where nothing trained; the command's exit code; and why there is no record.

    - overrides: as of `mlbench.run`. begun: when mlbench's own command started, s since 1970.
    - listen: the address on which ranks reach this process, those on other hosts, too.
    """
    experiment = experiment_of(overrides, command)
    task: Any = experiment.task  # its own Config
    reaper.reap_if_any()
    with signals.interruptible(), ExitStack() as stack:
        lock = stack.enter_context(execute.machine(experiment, output))
        begun += lock.waited_s if lock else 0.0
        collector = Collector(listen, metric=task.metric, goal=experiment.target)
        line = ["python", "-m", "mlbench.measure", *overrides, "--", *command]
        recorder = Recorder(line, overrides, experiment, collector, begun=begun, lock=lock, output=output)
        stack.callback(recorder.stop)
        printed = child.ScriptOutput(task.pattern, collector.printed)
        process = child.Child(
            command,
            cwd=os.getcwd(),
            variables=child.variables(collector.address, collector.token),
            output=printed,
            show=_show,
            stdin=None,
        )
        code: int | None = None
        interrupted = False
        try:
            code = _follow(process, recorder)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with signals.repeatable() if interrupted else nullcontext() as number:
                ended = process.end(number) if code is None else process.finish()
        recorder.drain(DRAIN_S)
        failed = summary.failure([code], [printed.last_line()], task.stall_s)
        error = execute.STOPPED if interrupted else None if collector.reached else failed
        code = INTERRUPTED if interrupted else code if code is not None else int(not collector.reached)
        status = "interrupted" if interrupted else "failed" if error else None
        record = recorder.finish(status, error, log=printed.log())
        if record is None and error is None and ended is None:
            error = summary.NOTHING
        return record, code or 2 * (record is None), error


def _follow(process: child.Child, recorder: Recorder) -> int | None:
    """Return the exit code; None for a command that is to be ended: hung, or at its goal."""
    task: Any = recorder.experiment.task
    # A script that is told by mlbench.measure() that its goal is reached ends itself.
    stops = task.stop_at_goal and task.pattern is not None
    while (code := process.wait(POLL_S)) is None:
        recorder.take(final=False)
        if recorder.collector.reached and stops:
            return None
        quiet = clock.monotonic() - process.output.changed_at > task.stall_s
        if quiet and not recorder.collector.active(task.stall_s):
            return None
    return code


def _show(chunk: bytes) -> None:
    """Pass on what the command prints; nobody may read it any more."""
    with suppress(OSError, ValueError):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
