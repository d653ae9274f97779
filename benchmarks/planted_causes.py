"""Whether a run's cause is named right: causes of ten kinds, planted in a training of two gloo processes.

    python benchmarks/planted_causes.py --runs 20

Each run has 48 steps of some 20 ms with one planted cause, or none. Two processes stay for all runs; each run
has a collector, models and a DataLoader of its own. Kinds alternate. Prints how many runs named what.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from origin import origin

from mlbench.analysis import causes
from mlbench.clusters.monitor import CpuUse, own_processes
from mlbench.record import noise
from mlbench.record.build_record import _totals
from mlbench.script.collector import Collector

WORKERS, STEPS, BATCH = 2, 48, 8
BASE_S, DELAY_S, BURST_S = 0.01, 0.02, 0.25
DRAIN_S = 30.0
# Of each kind what is to be named: key of causes.TRY, ranks, pattern.
KINDS = {
    "healthy": None,
    "data of rank 1": ("data_wait", (1,), "always"),
    "forward of rank 0": ("forward", (0,), "always"),
    "backward of rank 1": ("backward", (1,), "always"),
    "log of rank 0": ("metrics", (0,), "always"),
    "pauses of rank 1": ("forward", (1,), "bursts"),
    "checkpoints of rank 0": ("saving", (0,), "bursts"),
    "long batches in turns": ("forward", (0, 1), "turns"),
    "more rows on rank 1": ("rows", (1,), "always"),
    "data of all": ("data_wait", (), ""),
    "validation of all": ("validation", (), ""),
}


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table; exit code 1 below 95 %, or where a healthy run has a cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        return train(options.rank, options.store)
    print(origin(__file__, arguments) + "\n", flush=True)
    named: dict[str, Counter[Any]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for number, kind, cause in measured(options.runs, folder):
            said = cause and (cause.kind, cause.ranks, cause.pattern)
            named[kind][said] += 1
            print(number, kind, cause and cause.sentence, file=sys.stderr, flush=True)
    print(table(named))
    right = sum(named[kind][KINDS[kind]] for kind in KINDS if KINDS[kind])
    planted = sum(named[kind].total() for kind in KINDS if KINDS[kind])
    return int(right < 0.95 * planted or named["healthy"].keys() != {None})


def measured(runs: int, folder: str) -> Iterator[tuple[int, str, causes.Cause | None]]:
    """Yield number, kind and named cause of each run."""
    line = [sys.executable, __file__, "--store", f"{folder}/store", "--rank"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(WORKERS)}
    ranks = [
        subprocess.Popen(
            [*line, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"RANK": str(rank)},
        )
        for rank in range(WORKERS)
    ]
    for number in range(runs):
        for kind in KINDS:
            collector = Collector("127.0.0.1", metric="none", goal=None)
            use = CpuUse(own=own_processes)
            task = json.dumps([collector.address, collector.token, kind, folder])
            for rank in ranks:
                assert rank.stdin is not None
                print(task, file=rank.stdin, flush=True)
            for rank in ranks:
                assert rank.stdout is not None and rank.stdout.readline() == "trained\n"
            collector.drain(DRAIN_S)
            disturbances = [*noise.disturbances("this host", during=use.interference())]
            yield number, kind, named_cause(collector.take(final=True), disturbances)
            collector.close()
    for rank in ranks:
        rank.communicate()


def named_cause(intervals: Sequence[Any], disturbances: list[str]) -> causes.Cause | None:
    """Return what a run's record would name."""
    per_rank = [list(rank) for rank in zip(*(times for _, times in intervals), strict=True)]
    elapsed = intervals[-1][0]["elapsed"]
    totals = _totals(per_rank, elapsed=elapsed)
    steps = sum(times.steps for times in per_rank[0])
    steps -= totals["warm_up"].steps if totals["warm_up"] else 0
    totals |= {"validations": [SimpleNamespace(elapsed=elapsed)], "timed_steps": steps}
    record: Any = SimpleNamespace(disturbances=disturbances, **totals)
    return causes.of_run(record)


def train(rank: int, store: str) -> int:
    """Train a run for each line of standard input."""
    import torch

    from mlbench.probe import install, sender

    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    probe = None
    for line in sys.stdin:
        address, token, kind, folder = json.loads(line)
        os.environ[sender.ADDRESS], os.environ[sender.TOKEN] = address, token
        if probe is not None:
            torch.distributed.barrier()
        probe = install.start(torch, anew=True)
        _run(torch, rank, kind, Path(folder))
        probe.finish()
        print("trained", flush=True)
    return 0


def _run(torch: Any, rank: int, kind: str, folder: Path) -> None:
    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return STEPS * BATCH

        def __getitem__(self, index: int) -> Any:
            if kind == "data of all" or kind == "data of rank 1" and rank == 1:
                time.sleep(DELAY_S / BATCH)
            return torch.ones(16)

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Any) -> Any:
            return values.view_as(values)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(DELAY_S)
            return gradient

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.step = torch.nn.Linear(16, 16), 0

        def forward(self, rows: Any) -> Any:
            time.sleep(BASE_S * len(rows) / BATCH)
            self.step += self.training
            late = kind == "forward of rank 0" and rank == 0
            late |= kind == "long batches in turns" and self.step % WORKERS == rank
            time.sleep(DELAY_S * late)
            time.sleep(BURST_S * (kind == "pauses of rank 1" and rank == 1 and self.step % 12 == 7))
            rows = self.layer(rows)
            return Late.apply(rows) if kind == "backward of rank 1" and rank == 1 else rows

    class Slow:
        def write(self, data: bytes) -> int:
            return len(data)

        def flush(self) -> None:
            time.sleep(BURST_S)

    torch.manual_seed(0)
    size = 3 * BATCH if kind == "more rows on rank 1" and rank == 1 else BATCH
    loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch.repeat(size // BATCH, 1)).pow(2).mean().backward()
        optimizer.step()
        if kind == "log of rank 0" and rank == 0:
            time.sleep(DELAY_S)
        if kind == "checkpoints of rank 0" and rank == 0 and step % 8 == 7:
            torch.save(model.state_dict(), Slow())
        if kind == "validation of all" and step % 12 == 7:
            model.eval()
            with torch.no_grad():
                for _ in range(20):
                    model(batch)
            model.train()


def table(named: dict[str, Counter[Any]]) -> str:
    """Return the table of what was planted and what was named."""
    lines = ["| planted | runs | named right | named otherwise |", "|" + "---|" * 4]
    for kind, counts in named.items():
        others = ", ".join(f"{each}: {count}" for each, count in counts.items() if each != KINDS[kind])
        lines.append(f"| {kind} | {counts.total()} | {counts[KINDS[kind]]} | {others} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
