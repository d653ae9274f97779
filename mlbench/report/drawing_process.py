"""Draw a run's figures as PNG, in a separate process: `python -m mlbench.report.drawing_process`.

Vega's engine (V8) ends its whole process if it gets too little memory, and the run's process must not end so.
The drawing process reads folders from its standard input and draws the run whose record is there. It answers
null, or why it could not. It draws all runs of a command, and ends with it.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from mlbench.clusters import reaper
from mlbench.config import libraries
from mlbench.record import reader
from mlbench.tasks import registry

LIMIT_S = 120  # s for one run, which takes 3 s on 2 CPUs (2026-11-23)
_processes: list["subprocess.Popen[str]"] = []
_lock = threading.Lock()


def draw(folder: Path) -> str | None:
    """Draw the run whose record is in the folder, into it. Return why there are no figures, or None.

    Raises RuntimeError if drawing fails in a way that another attempt may not, e.g. by a full disk.
    """
    missing = [module for module in libraries.DRAWING if not libraries.is_installed(module)]
    if missing:
        return libraries.command(*missing) + " installs what draws them"
    with _lock:
        if not _processes:
            _processes.append(_start())
            atexit.register(_end_all)
        process = _processes[0]
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            in_time = bool(select.select([process.stdout], [], [], LIMIT_S)[0])
            answer = process.stdout.readline() if in_time else ""
        except OSError:
            in_time, answer = True, ""
        if not answer:
            return _end(process) if in_time else f"{_end(process)} after {LIMIT_S} s"
    if (error := json.loads(answer)) is not None:
        raise RuntimeError(error)
    return None


def _start() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "mlbench.report.drawing_process"],
        env={**os.environ, **reaper.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the last words of the engine
        text=True,
        start_new_session=True,  # Ctrl-C is for the run
    )


def _end(process: "subprocess.Popen[str]") -> str:
    """End a process that no longer answers, and return how it ended."""
    assert process.stdout is not None
    _processes.remove(process)
    if not select.select([process.stdout], [], [], 0)[0]:
        process.kill()
    code = process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # what it had not read
            pipe.close()
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the drawing process was ended by {how} (possibly out of memory)"


def _end_all() -> None:
    for process in list(_processes):
        _end(process)


def _draw(folder: Path) -> None:
    """Draw the record's charts, and those of the task's table."""
    from mlbench.report import render, run_charts  # Altair is for this process alone

    result = reader.load(folder / "record.json")
    run_charts.draw(result, folder)
    report = registry.report(result.experiment.task.name) if result.table else None
    if report and result.source == "mlbench":  # others' tables have no percentiles to draw
        rate = result.experiment.hardware.network_gbit_per_s
        charts = report.charts({"": result.table}, about=result.run_id, network_gbit_per_s=rate)
        render.save(charts, folder / "table.png", columns=2)


def main() -> None:
    """Draw the requested folders."""
    for line in sys.stdin:
        error = None
        try:
            _draw(Path(line.rstrip("\n")))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        sys.stdout.write(json.dumps(error) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
