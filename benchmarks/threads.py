"""Which threads of a machine compute while a run trains: the kernel's account of each of them.

    python benchmarks/threads.py --seconds 15 task=resnet20 workers=2 task.epochs=30 division=open

Starts `python -m mlbench.run` with the overrides, waits for the first validation, and reads
/proc/PID/task/TID/schedstat twice: time on a CPU, time in the queue for one, and how often the thread gave
its CPU up to wait (status). Prints a table by the processes' names, the busiest first. Linux only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import psutil
from origin import origin

from mlbench.record import events

START_S = 300.0  # s until the first validation
SHARE = 0.001  # of a CPU: threads below it are one row
NOTHING = (0.0, 0.0, 0.0)


class Thread(NamedTuple):
    """What the kernel says of one thread so far: s on a CPU, s in the queue, and waits."""

    name: str
    computed_s: float
    queued_s: float
    waits: int


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("overrides", nargs="+", metavar="name=value")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*options.overrides, "force=true", f"output_root={folder}", "goal=none"]
        overrides.append(f"tracking_uri=sqlite:///{folder}/mlflow.db")
        command = [sys.executable, "-m", "mlbench.run", *overrides]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
            await_validation(run, Path(folder))
            before, begin = threads(), monotonic()
            sleep(options.seconds)
            after, seconds = threads(), monotonic() - begin
            if run.poll() is not None:
                raise SystemExit("the run ended first: more epochs, or fewer --seconds")
            run.wait()
    print(origin(__file__, arguments, f"{seconds:.0f} s") + "\n")
    print("| threads | computing | in the queue | waits a second |\n|---|--:|--:|--:|")
    for name, shares in rows(before, after, seconds):
        print(f"| {name} | {shares[0]:.2%} | {shares[1]:.2%} | {shares[2]:.0f} |")
    return 0


def await_validation(run: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the event log of a run below `folder` has a validation."""
    deadline = monotonic() + START_S
    while not any(b'"validation"' in log.read_bytes() for log in folder.glob(f"*/{events.NAME}")):
        if run.poll() is not None or monotonic() > deadline:
            raise SystemExit("the run did not get to its first validation")
        sleep(0.2)


def threads() -> dict[tuple[int, int], Thread]:
    """Return all threads of the machine by their process's and their own number."""
    every: dict[tuple[int, int], Thread] = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        title = process.info["name"] or ""
        if title.startswith("python"):  # the script says more
            programs = [Path(word).stem for word in process.info["cmdline"] or () if word.endswith(".py")]
            programs += [word for word in process.info["cmdline"] or () if word.startswith("mlbench.")]
            title = programs[0] if programs else title
        with suppress(OSError):
            for name in os.listdir(f"/proc/{process.pid}/task"):
                with suppress(OSError):
                    task = Path(f"/proc/{process.pid}/task/{name}")
                    computed, queued, _ = map(int, (task / "schedstat").read_text().split())
                    waits = (task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]
                    own = (task / "comm").read_text().strip()
                    label = f"{title}: {own}" if "gloo" in own else title
                    every[process.pid, int(name)] = Thread(label, computed / 1e9, queued / 1e9, int(waits))
    return every


def rows(
    before: dict[tuple[int, int], Thread], after: dict[tuple[int, int], Thread], seconds: float
) -> list[tuple[str, list[float]]]:
    """Return shares of a CPU, of the queue, and waits a second, by name; the busiest first.

    A thread that takes more than half a CPU has a row of its own.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: list(NOTHING))
    for key, now in after.items():
        then = before.get(key, Thread(now.name, 0.0, 0.0, 0))
        shares = [(new - old) / seconds for new, old in zip(now[1:], then[1:], strict=True)]
        name = f"{now.name}, training thread {key[1]}" if shares[0] > 0.5 else now.name
        sums[name] = [total + other for total, other in zip(sums[name], shares, strict=True)]
    small = {name for name, shares in sums.items() if shares[0] < SHARE}
    sums["others"] = [sum(places) for places in zip(NOTHING, *map(sums.pop, small), strict=True)]
    return sorted(sums.items(), key=lambda item: -item[1][0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
