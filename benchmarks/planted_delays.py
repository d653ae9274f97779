"""Whether the card names the right late rank: delays that are planted in a script's backward pass.

    python benchmarks/planted_delays.py --runs 20                      on this host, by mlbench.measure
    python benchmarks/planted_delays.py --runs 20 --hosts              on two emulated hosts, by task=script
    python benchmarks/planted_delays.py --runs 20 --without-ddp fsdp2  likewise zero, own

Runs tests/script/scripts/ddp.py for one epoch of 32 steps with two ranks. In half of the runs one rank,
each in turn, sleeps 200 ms in every backward pass; the others are healthy. The two kinds alternate. Prints
how many runs named which rank, and by how much. Without DDP it runs 40 steps of sharded.py beside that
script, in which the late rank sleeps 60 ms in every forward pass.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from origin import origin

from mlbench.analysis.stragglers import Straggler, of_run
from mlbench.record.reader import load

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "script" / "scripts" / "ddp.py"
SHARDED = SCRIPT.with_name("sharded.py")
DELAY_S = 0.2
FORWARD_S = 0.06
WORKERS = 2
HEALTHY = -1  # the script's word for no late rank


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table; exit code 1 where a rank was missed or named wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--hosts", action="store_true", help="two emulated hosts, under Ray")
    parser.add_argument("--without-ddp", choices=("fsdp2", "zero", "own"))
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments) + "\n", flush=True)
    runs: list[tuple[int, Straggler | None]] = []
    for number in range(options.runs):
        for late in (number % WORKERS, HEALTHY):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(
                    (late, measured(script(late, options.without_ddp), Path(folder), hosts=options.hosts))
                )
            print(*runs[-1], file=sys.stderr, flush=True)
    print(table(runs))
    return int(any(rank != named(late) for rank, late in runs))


def script(late: int, without_ddp: str | None) -> list[str]:
    """Return the script and its arguments for a late rank."""
    if without_ddp:
        return [str(SHARDED), without_ddp, "40", str(late), str(FORWARD_S)]
    return [str(SCRIPT), "1", str(late), str(DELAY_S)]


def measured(script: list[str], folder: Path, *, hosts: bool) -> Straggler | None:
    """Run the script with a late rank; return the rank that its record names."""
    overrides = [f"output_root={folder}", "cluster.exclusive=false"]
    if hosts:
        module = ["mlbench.run", *overrides, "task=script", f"task.path={script[0]}", f"workers={WORKERS}"]
        module += ["network.bandwidth_mbit_s=1000", "network.delay_ms=1", f"task.args={' '.join(script[1:])}"]
    else:
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={WORKERS}",
        ]
        module = ["mlbench.measure", *overrides, "--", *launcher, *script]
    done = subprocess.run([sys.executable, "-m", *module], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    (path,) = folder.glob("*/record.json")
    record = load(path)
    return of_run(record)


def named(late: Straggler | None) -> int:
    """Return the rank that is named; HEALTHY for none."""
    return HEALTHY if late is None else late.rank


def table(runs: Sequence[tuple[int, Straggler | None]]) -> str:
    """Return the table of a run's late rank and the rank that was named."""
    lines = [
        "| late rank | runs | named right | named wrong | lateness of the named, ms |",
        "|" + "---|" * 5,
    ]
    for rank in sorted({rank for rank, _ in runs}):
        results = [late for each, late in runs if each == rank]
        right = sum(named(late) == rank for late in results)
        wrong = sum(late is not None and late.rank != rank for late in results)
        spread = sorted(1e3 * late.median_s for late in results if late is not None)
        shown = f"{spread[0]:.1f} to {spread[-1]:.1f}" if spread else ""
        name = "none" if rank == HEALTHY else str(rank)
        lines.append(f"| {name} | {len(results)} | {right} | {wrong} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
