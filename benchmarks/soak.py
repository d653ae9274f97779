"""Whether the Ray that `python -m mlbench.cluster start` keeps grows with the runs that use it.

    python benchmarks/soak.py --runs 40

Starts a Ray, runs logistic regression with two workers on it again and again, and ends it. A row has what is
there after so many runs: processes of that Ray, their private memory (unique set size), their open files, the
files of its session folder, and what lies in /dev/shm; and the seconds of the last command.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from origin import origin

from mlbench.clusters import persistent, reaper
from mlbench.record import temporary_folder

RUN = ["mlbench.run", "task=logreg", "workers=2", "hardware.threads_per_worker=1", "force=true"]
SHOWN = (1, 2, 5, 10, 20, 30, 40, 60, 80, 100)  # runs


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args(arguments)
    if persistent.address():
        raise SystemExit("a Ray is kept already: end it with `python -m mlbench.cluster stop`")
    print(origin(__file__, arguments) + "\n")
    columns = ["runs", "processes", "private MB", "open files", "session files", "/dev/shm, MB", "s"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        before = folders()
        persistent.start()
        try:
            (folder,) = folders() - before
            print(row(0, folder, 0.0), flush=True)
            for number in range(1, options.runs + 1):
                begin = time.perf_counter()
                _run(Path(root))
                if number in SHOWN or number == options.runs:
                    print(row(number, folder, time.perf_counter() - begin), flush=True)
        finally:
            persistent.stop()
    return 0


def folders() -> set[Path]:
    """Return the temporary folders of mlbench's commands, and of a Ray that is kept."""
    return {*temporary_folder.root().glob(f"{temporary_folder.PREFIX}*")}


def _run(root: Path) -> None:
    command = [sys.executable, "-m", *RUN, f"output_root={root}/runs", f"data_root={root}/data"]
    command.append(f"tracking_uri=sqlite:///{root}/mlflow.db")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def row(number: int, folder: Path, seconds: float) -> str:
    """Return what a Ray with this folder has after so many runs."""
    processes, memory, files = 0, 0, 0
    for process in reaper.of_folder(folder):
        try:
            memory += process.memory_full_info().uss
            files += process.num_fds()
            processes += 1
        except psutil.NoSuchProcess:
            continue
    session = sum(len(names) for _, _, names in os.walk(folder))
    shared = sum(path.stat().st_size for path in Path("/dev/shm").iterdir() if path.is_file())
    parts = [
        number,
        processes,
        f"{memory / 1e6:.0f}",
        files,
        session,
        f"{shared / 1e6:.0f}",
        f"{seconds:.1f}",
    ]
    return f"| {' | '.join(map(str, parts))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
