"""How times and memory of the commands grow with the number of runs.

    python benchmarks/growth.py          the tables of docs/measurements/performance.md
    python benchmarks/growth.py --sizes 100,1000 list plan

Runs are stand-ins: copies of the real runs of notebooks/sample with other names, seeds, times and, for every
ten of them, another learning rate. They lie in a temporary folder, and their source says `stand-in`. Every
command is a process of its own; a row has the median over the rounds of wall clock and CPU time (user and
system), and the largest peak of memory. A command of more than a minute is measured once. The exponent is
that of CPU time over runs since the size before: 1 is linear.
"""

import argparse
import hashlib
import json
import math
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from origin import origin

from mlbench.analysis.run_index import NAME as INDEX
from mlbench.analysis.run_index import SETTLED_NS
from mlbench.clusters import node
from mlbench.record import reader

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "notebooks" / "sample"
SIZES = (100, 1_000, 10_000, 100_000)
RANKS = (1, 8, 128, 1_024)
RUNS_PER_POINT = 10
ENDS = "ends"  # the part that is of RANKS, not of runs
LONG_S = 60.0  # s; what takes longer is measured once
STAND_IN = "stand-in"
# A process counts as its peak what the process had that started it, so a small one starts the commands.
STARTER = """
import json, os, sys, time
begin = time.perf_counter()
to_stdout = [(os.POSIX_SPAWN_DUP2, 1, 2)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=to_stdout)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - begin
cost = seconds, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss
json.dump([os.waitstatus_to_exitcode(status), cost], sys.stderr)
"""


class Cost(NamedTuple):
    """What one process took: s, s, and bytes."""

    wall: float
    cpu: float
    peak: int


def main(arguments: Sequence[str]) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], default=SIZES)
    parser.add_argument("--folder", type=Path, help="keeps the stand-ins; default: a temporary one")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join([*PARTS, ENDS])}")
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments, f"{options.rounds} rounds") + "\n")
    parts = options.parts or [*PARTS, ENDS]
    if commands := [name for name in parts if name != ENDS]:
        for line in table(commands, options.sizes, options.rounds, options.folder):
            print(line, flush=True)
    if ENDS in parts:
        print(f"\n{end_table()}")
    return 0


def table(parts: Sequence[str], sizes: Sequence[int], rounds: int, root: Path | None) -> Iterator[str]:
    """Measure the parts at all sizes; yield the lines of their table."""
    yield "| command | runs | wall clock, s | CPU, s | exponent | peak memory, MiB | rounds |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    before: dict[str, tuple[int, float]] = {}  # size and CPU time of a command
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="growth-") as temporary:
            folder = root / str(size) if root else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            for name in parts:
                for what, costs in PARTS[name](folder, size, rounds):
                    yield row(what, size, costs, before=before.get(what))
                    before[what] = size, median(cost.cpu for cost in costs)


def runs(folder: Path, size: int) -> Path:
    """Return an output_root with so many stand-ins, old enough for an index."""
    root = folder / "runs"
    if root.is_dir():
        return root
    originals: dict[tuple[str, int], str] = {}
    for path in sorted(SAMPLE.glob("*/record.json")):
        record = reader.load(path)
        originals.setdefault((record.experiment.task.name, record.workers), path.read_text())
    root.mkdir()
    templates = [json.loads(text) for text in originals.values()]
    for number in range(size):
        point = number // RUNS_PER_POINT
        record = stand_in(templates[point % len(templates)], number, point // len(templates))
        (root / record["run_id"]).mkdir()
        (root / record["run_id"] / "record.json").write_text(json.dumps(record))
    time.sleep(2 * SETTLED_NS / 1e9)
    return root


def stand_in(template: dict, number: int, variant: int) -> dict:
    """Return the record of a run as another run of its task would have it, with another learning rate."""
    task = template["experiment"]["task"] | {"lr": template["experiment"]["task"]["lr"] * (1 + variant)}
    seed = 7 * number + 1
    slower = 1 + hashlib.sha256(str(number).encode()).digest()[0] / 1024
    times = {name: template[name] * slower for name in ("time_to_accuracy", "wall", "train_time")}
    seconds, milliseconds = divmod(number, 1000)
    began = f"2026-01-01T{seconds // 3600:02}{seconds // 60 % 60:02}{seconds % 60:02}-{milliseconds:03}"
    return template | times | {
        "run_id": f"{began}-{task['name']}-w{template['workers']}-{seed:x}",
        "key": hashlib.sha256(f"{task} {template['workers']}".encode()).hexdigest()[:16],
        "seed": seed,
        "experiment": template["experiment"] | {"task": task, "seed": seed, "study": STAND_IN},
        "source": STAND_IN,
        "eligible": False,
        "official_reasons": [f"{STAND_IN}: a copy made to measure how commands grow"],
        "data_hash": STAND_IN,
    }  # fmt: skip


def listing(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    root = runs(folder, size)
    (root / INDEX).unlink(missing_ok=True)
    yield "results list, no index", measured(results("list", root), 1)
    yield "results list", measured(results("list", root), rounds)
    yield "results list --json", measured(results("list", root, "--json"), rounds)
    yield (
        "results list workers=2 task.lr=16.0 last=20",
        measured(results("list", root, "workers=2", "task.lr=16.0", "last=20"), rounds),
    )
    yield "results show last", measured(results("show", root, "last"), rounds)


def comparing(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    root = runs(folder, size)
    selections = [f"{side} task=logreg task.lr=16.0" for side in ("workers=1", "workers=2")]
    every = ["workers=1", "workers=2", "task=logreg"]
    yield "results compare, one point a side", measured(results("compare", root, *selections), rounds)
    yield "results compare, half of all runs", measured(results("compare", root, *every), rounds)


def report(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    root = runs(folder, size)
    target = f"to={folder / 'report'}"
    yield (
        "results plot, one point",
        measured(results("plot", root, "workers=2", "task=logreg", "task.lr=16.0", target), rounds),
    )
    yield "results plot, all runs", measured(results("plot", root, target), rounds)


def planning(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    overrides = [
        "task=logreg",
        f"task.batch_size=range(1,{size + 1})",
        "division=open",
        "repeats=1",
        "--dry-run",
    ]
    root = runs(folder, size)
    sweep = [sys.executable, "-m", "mlbench.sweep", *overrides, f"data_root={folder / 'data'}"]
    yield "sweep --dry-run of as many points", measured([*sweep, f"output_root={root}"], rounds)


def mlflow(folder: Path, size: int, rounds: int) -> Iterator[tuple[str, list[Cost]]]:
    """Bring the sample's runs into a store that has so many runs, and ask it for those that it lacks."""
    sys.path.append(str(ROOT / "tests"))
    import sample

    shutil.rmtree(folder / "sample", ignore_errors=True)
    root = sample.copy(folder / "sample")
    shutil.rmtree(root / "studies")
    store = folder / "mlflow.db"
    store.unlink(missing_ok=True)
    sync = results("sync", root, f"tracking_uri=sqlite:///{store}")
    measured(sync, 1)
    fill(store, size)
    yield "results sync, nothing is missing", measured(sync, rounds)
    costs = []
    for _ in range(rounds):
        forget(store)
        costs += measured(sync, 1)
    yield "results sync, 12 runs are missing", costs


def fill(store: Path, size: int) -> None:
    """Copy the store's runs, all their rows with new ids, until there are so many."""
    with sqlite3.connect(store) as database:
        ids = database.execute("SELECT run_uuid FROM tags WHERE key = 'mlbench.run_id'")
        originals = [row[0] for row in ids]
        database.execute("CREATE TEMP TABLE copies (old TEXT, new TEXT, name TEXT)")
        database.executemany(
            "INSERT INTO copies VALUES (?, ?, ?)",
            (
                (originals[n % len(originals)], uuid.uuid4().hex, f"{STAND_IN}-{n}")
                for n in range(size - len(originals))
            ),
        )
        for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
            columns = [column[1] for column in database.execute(f"PRAGMA table_info({table})")]
            values = ["copies.new" if name == "run_uuid" else f"{table}.{name}" for name in columns]
            database.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
                f"FROM {table} JOIN copies ON {table}.run_uuid = copies.old"
            )
        database.execute(
            "UPDATE tags SET value = (SELECT name FROM copies WHERE new = tags.run_uuid) "
            "WHERE key = 'mlbench.run_id' AND run_uuid IN (SELECT new FROM copies)"
        )
    database.close()


def forget(store: Path) -> None:
    """Remove the sample's own runs from the store."""
    with sqlite3.connect(store) as database:
        ours = f"SELECT run_uuid FROM tags WHERE key = 'mlbench.run_id' AND value NOT LIKE '{STAND_IN}-%'"
        ids = [row[0] for row in database.execute(ours)]
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            database.executemany(f"DELETE FROM {table} WHERE run_uuid = ?", [(run_id,) for run_id in ids])
    database.close()


def end_table() -> str:
    """Return what the ranks send the controller at their end, pickled as by Ray, each on its own node."""
    from mlbench.launch.worker_process import end_message
    from mlbench.record.record import WorkerResult

    lines = [
        "| ranks | rank 0 sends, KiB | each other rank, bytes | all together, KiB | rank 0 needs, ms |",
        "|--:|--:|--:|--:|--:|",
    ]
    here = node.describe()
    for ranks in RANKS:
        outcome = WorkerResult(status="completed", nodes=[here] * ranks)
        begin = time.perf_counter()
        first = len(pickle.dumps(json.loads(json.dumps(end_message(0, outcome, {})))))
        seconds = time.perf_counter() - begin
        other = len(pickle.dumps(end_message(1, outcome, {})))
        total = first + (ranks - 1) * other
        first_kib, total_kib = (f"{size / 1024:,.1f}" for size in (first, total))
        lines.append(f"| {ranks:,} | {first_kib} | {other} | {total_kib} | {1000 * seconds:.1f} |")
    return "\n".join(lines)


def results(verb: str, root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "mlbench.results", verb, *arguments, f"output_root={root}"]


def measured(command: Sequence[str], rounds: int) -> list[Cost]:
    """Run a command so often; SystemExit with its output where it fails."""
    costs: list[Cost] = []
    while len(costs) < rounds and (not costs or costs[0].wall < LONG_S):
        with tempfile.TemporaryFile() as output:
            starter = [sys.executable, "-I", "-S", "-c", STARTER, *command]
            done = subprocess.run(starter, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, check=True)
            code, cost = json.loads(done.stderr)
            if code:
                output.seek(0)
                raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode()}")
        costs.append(Cost(*cost))
    return costs


def row(what: str, size: int, costs: Sequence[Cost], *, before: tuple[int, float] | None) -> str:
    """Return a row of the table; `before` is the size before and its CPU time, s."""
    wall, cpu = (median(values) for values in list(zip(*costs, strict=True))[:2])
    exponent = "-" if before is None else f"{math.log(cpu / before[1]) / math.log(size / before[0]):.2f}"
    peak = max(cost.peak for cost in costs) / 2**20
    return f"| {what} | {size:,} | {wall:.2f} | {cpu:.2f} | {exponent} | {peak:,.0f} | {len(costs)} |"


PARTS = {"list": listing, "compare": comparing, "report": report, "mlflow": mlflow, "plan": planning}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
