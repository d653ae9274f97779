"""Whether a record names the rank that failed first, and how: failures planted in a script of two gloo ranks.

    python benchmarks/planted_failures.py --runs 10

Trains a small model by torchrun under mlbench.measure. In one rank, each in turn, and in step STEP something
goes wrong, after which the other rank waits or loses its connection. Kinds alternate. Prints how many records
name the rank and what happened to it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from origin import origin

from mlbench.record.reader import load

WORKERS, STEP, STALL_S = 2, 20, 30
SCRIPT = f"""
import os, signal, sys, time, torch, torch.distributed as dist
kind, wrong = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == {STEP} and dist.get_rank() == wrong:
        if kind == "exception":
            raise ValueError("no rows left")
        if kind == "exit":
            sys.exit(7)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "segmentation fault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang":
            time.sleep(3600)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
KINDS = {  # what the record's error says of rank RANK
    "exception": r"rank RANK: ValueError: no rows left \(train\.py:\d+\)",
    "exit": r"rank RANK ended with exit code 7",
    "kill": r"rank RANK was killed by SIGKILL",
    "segmentation fault": r"rank RANK was killed by SIGSEGV",
    "hang": rf"the script hung.*rank RANK has made {STEP} steps",
}


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments) + "\n", flush=True)
    right: Counter[str] = Counter()
    for number in range(options.runs):
        for kind, expected in KINDS.items():
            rank = number % WORKERS
            error = failed(kind, rank)
            named = re.search(expected.replace("RANK", str(rank)), error) is not None
            right[kind] += named
            print(number, kind, rank, "right" if named else "wrong", error, file=sys.stderr, flush=True)
    print("| planted in one of two ranks | runs | named right |\n|---|--:|--:|")
    for kind in KINDS:
        print(f"| {kind} | {options.runs} | {right[kind]} |")
    return int(right.total() < options.runs * len(KINDS))


def failed(kind: str, rank: int) -> str:
    """Return the error of a run's record in which a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "mlbench.measure", f"output_root={folder}/runs"]
        command += ["cluster.exclusive=false", f"task.stall_s={STALL_S}", "--", sys.executable, "-m"]
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}", "train.py"]
        done = subprocess.run([*command, kind, str(rank)], cwd=folder, capture_output=True, text=True)
        if not done.returncode:
            raise SystemExit(f"{kind} failed nothing\n{done.stdout}{done.stderr}")
        (path,) = Path(folder, "runs").glob("*/record.json")
        return load(path).error or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
