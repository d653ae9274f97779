"""Which way to combine gradients reaches gpt's loss soonest over a slow network, and at which bandwidth?

    python benchmarks/league.py --rounds 5 --minutes 7      goes on where it stopped; prints table and lines
    python benchmarks/league.py --mbit-s 200 1000 --picture docs/images/league.svg

Two workers of one thread on emulated hosts, which needs what `network=` needs
(docs/measurements/communication.md), train the mini scale's model to LOSS through the timed loop: seconds
from the first access to training data to the end of the validation that met it, as rule R5 says. A round
runs all strategies at all bandwidths with a seed of its own; their order turns from round to round. Every
run is a line of --output, and what stands there is not run again. Break-evens are those of
mlbench/plugins/emulation/networks.py.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from origin import origin

from mlbench import clock
from mlbench.analysis.bootstrap import FEWEST_SHOWN, interval, median, ratio
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.plugins.emulation import links, networks
from mlbench.plugins.emulation.networks import SettingRuns
from mlbench.tasks import registry

LOSS = 5.6  # nats a token; the mini goal is 4.0, and an untrained model has 7.6
STEPS = 336  # of a run at most
VALIDATIONS = 8  # of so many steps, one every 42
WORKERS = 2
DELAY_MS = 0.5  # one way
TASK = ("task=gpt", f"goal={LOSS}", "division=open", f"workers={WORKERS}")
STRATEGIES = {
    "DDP": ("sync=ddp",),
    "FSDP2": ("sync=fsdp",),
    "PowerSGD, rank 4": ("sync=compression", "sync.method=powersgd", "sync.rank=4"),
    "top-k, 5 %": ("sync=compression", "sync.method=topk", "sync.density=0.05"),
    "local SGD, 8 steps": ("sync=local_sgd", "sync.every=8"),
    # The outer step of Douillard et al. 2023 (arXiv 2311.08105), who took 500 steps between two of them.
    "DiLoCo, 64 steps": (
        "sync=local_sgd",
        "sync.every=64",
        "sync.outer_lr=0.7",
        "sync.outer_momentum=0.9",
        "sync.nesterov=true",
    ),
}
PORT = 29_500  # of the process group's store, in the hosts' own network
Run = dict[str, Any]  # strategy, mbit_s, seed, status, seconds, steps, bytes, step_s, exposed


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing, and print table and break-evens; exit code 1 while runs are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit-s", type=int, nargs="+", default=[200, 1000, 2500])
    parser.add_argument("--minutes", type=float, default=math.inf, help="no group begins after so many")
    parser.add_argument("--output", type=Path, default=Path("runs/league.jsonl"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="data_root of prepared data")
    parser.add_argument("--picture", type=Path, help="where to draw; .svg or .png")
    parser.add_argument("--rank", nargs=3, metavar=("RANK", "ADDRESS", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        rank(*options.rank, root=options.data)
        return 0
    begin = clock.monotonic()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    registry.load("gpt").prepare(compose(TASK).task, options.data)
    for seed in range(1, options.rounds + 1):
        for mbit_s in options.mbit_s:
            present = {run["strategy"] for run in read(options.output) if cell_of(run, seed) == mbit_s}
            names = [name for name in turned(list(STRATEGIES), seed) if name not in present]
            if not names:
                continue
            if clock.monotonic() - begin < 60 * options.minutes:
                try:
                    measure(mbit_s, seed, names, options)
                except UserError as error:  # links that were off their profile
                    print(error, file=sys.stderr)
    runs = [run for run in read(options.output) if run["mbit_s"] in options.mbit_s]
    if runs:
        print(origin(__file__, arguments, f"{DELAY_MS:g} ms one way", f"to {LOSS:g} nats a token") + "\n")
        print("\n".join([*table(runs), "", *(f"- {line}" for line in verdicts(cells(runs)))]))
    if options.picture:
        draw(cells(runs), options.picture)
    return 0 if len(runs) >= options.rounds * len(options.mbit_s) * len(STRATEGIES) else 1


def read(path: Path) -> list[Run]:
    """Return the runs so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cell_of(run: Run, seed: int) -> float | None:
    """Return the bandwidth of a run with this seed; None of another seed's."""
    return run["mbit_s"] if run["seed"] == seed else None


def turned(names: list[str], number: int) -> list[str]:
    """Return the names in another order for every round."""
    first = number % len(names)
    return names[first:] + names[:first]


def measure(mbit_s: float, seed: int, names: Sequence[str], options: argparse.Namespace) -> None:
    """Run strategies one after the other over links of one bandwidth, and append a line for each."""
    overrides = ["network=1gbit_1ms", f"network.bandwidth_mbit_s={mbit_s}", f"network.delay_ms={DELAY_MS}"]
    with (
        links.emulated(compose(overrides).network, WORKERS) as emulated,
        tempfile.TemporaryFile("w+") as errors,
    ):
        (link,) = emulated.measure()
        work = json.dumps({"seed": seed, "names": list(names)})
        command = [sys.executable, __file__, "--data", str(options.data.absolute()), "--rank"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": links.INTERFACE, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                host.command([*command, str(number), emulated.addresses[0], work]),
                env=environment,
                stdout=subprocess.PIPE if number == 0 else errors,
                stderr=errors,
                text=True,
            )
            for number, host in enumerate(emulated.hosts)
        ]
        stdout = processes[0].stdout
        assert stdout is not None
        for line in stdout:
            run = {"mbit_s": mbit_s, "seed": seed, "measured_mbit_s": link.bandwidth_mbit_s}
            run |= {"round_trip_ms": link.round_trip_ms} | json.loads(line)
            with options.output.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(
                f"{mbit_s:g} Mbit/s, seed {seed}, {run['strategy']}: {run['status']} ",
                end="",
                file=sys.stderr,
            )
            print(f"after {run['seconds']:.1f} s, {run['steps']} steps", file=sys.stderr, flush=True)
        if any(process.wait() for process in processes):
            errors.seek(0)
            raise SystemExit(f"a rank failed:\n{errors.read()}")


def rank(number: str, address: str, work: str, *, root: Path) -> None:
    """Train with every strategy in turn; rank 0 prints a line for each."""
    from dataclasses import replace

    import torch
    import torch.distributed as dist

    from mlbench.contract.by_hand import beginning
    from mlbench.training import loop
    from mlbench.training.worker import Worker, control_group

    torch.set_num_threads(1)
    meeting = {"init_method": f"tcp://{address}:{PORT}", "rank": int(number), "world_size": WORKERS}
    dist.init_process_group("gloo", **meeting)
    arguments = {"rank": int(number), "world_size": WORKERS, "control": control_group(timeout_s=300)}
    chosen = json.loads(work)
    for name in chosen["names"]:
        experiment = compose([*TASK, *STRATEGIES[name]])
        worker = Worker(
            **arguments, seed=chosen["seed"], data_root=root, sync=experiment.sync, goal=experiment.target
        )
        setup = registry.build(experiment.task, worker)
        short = replace(
            setup,
            epochs=1,
            validate_at=tuple(number / VALIDATIONS for number in range(1, VALIDATIONS + 1)),
            steps=lambda data, epoch, whole=setup.steps: beginning(whole(data, epoch), STEPS),
            flops_per_sample=lambda _: None,
        )
        result = loop.train(short, worker, report_s=math.inf)
        phases = [times.phases for times in result.phase_times]
        run: Run = {
            "strategy": name,
            "status": result.status,
            "seconds": result.elapsed,
            "steps": result.steps,
            "bytes": sum(times.bytes_sent or 0 for times in result.phase_times),
            "step_s": sum(sum(each.values()) for each in phases) / result.steps,
            "exposed_s": sum(each["wait"] + each["transfer"] for each in phases) / result.steps,
        }
        if worker.rank == 0:
            print(json.dumps(run), flush=True)
        worker.barrier()
    dist.destroy_process_group()


def cells(runs: Iterable[Run]) -> list[SettingRuns]:
    """Return the runs by strategy and bandwidth; a missed loss is infinite time."""
    grouped: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run["strategy"], run["mbit_s"]), []).append(run)
    return [
        SettingRuns(
            task="gpt",
            workers=WORKERS,
            sync=name,
            bandwidth_mbit_s=mbit_s,
            delay_ms=DELAY_MS,
            step_s=tuple(run["step_s"] for run in group),
            time_to_accuracy=tuple(map(seconds, group)),
            exposed=tuple(run["exposed_s"] / run["step_s"] for run in group),
            predicted_s=(),
        )
        for (name, mbit_s), group in sorted(grouped.items())
    ]


def seconds(run: Run) -> float:
    """Return the time to the loss."""
    return run["seconds"] if run["status"] == "goal_reached" else math.inf


def table(runs: Sequence[Run]) -> list[str]:
    """Return a row a strategy: steps and bytes, then the times to the loss by bandwidth."""
    bandwidths = sorted({run["mbit_s"] for run in runs})
    columns = [f"{mbit_s:,} Mbit/s: s" for mbit_s in bandwidths]
    lines = [f"| strategy | reached | steps | MB a step | {' | '.join(columns)} |"]
    lines.append(f"|---|--:|--:|--:|{'--:|' * len(columns)}")
    for name in STRATEGIES:
        own = [run for run in runs if run["strategy"] == name]
        if not own:
            continue
        reached = sum(run["status"] == "goal_reached" for run in own)
        sent = median([run["bytes"] / run["steps"] for run in own]) / 1e6
        steps = median([run["steps"] for run in own])
        times = [span([seconds(run) for run in own if run["mbit_s"] == mbit_s]) for mbit_s in bandwidths]
        head = (name, f"{reached} of {len(own)}", f"{steps:g}", f"{sent:.3g}")
        lines.append(f"| {' | '.join([*head, *times])} |")
    return lines


def span(values: Sequence[float]) -> str:
    """Return the median with its interval."""
    if not values:
        return ""
    if math.isinf(median(values)):
        return "not reached"
    ends = interval(values)
    return f"{median(values):.1f}" + ("" if ends is None else f" ({ends.low:.1f} to {ends.high:.1f})")


def verdicts(measured: Sequence[SettingRuns]) -> list[str]:
    """Return a line for every pair of strategies: where one begins to beat the other, or that none does."""
    crossings = networks.break_evens(measured, "time_to_accuracy")
    lines = [str(crossing).partition(": ")[2] for crossing in crossings]
    crossed = {frozenset((crossing.winner, crossing.loser)) for crossing in crossings}
    for pair in combinations(STRATEGIES, 2):
        if frozenset(pair) not in crossed:
            lines += never(*([cell for cell in measured if cell.sync == name] for name in pair))
    return lines


def never(first: Sequence[SettingRuns], second: Sequence[SettingRuns]) -> list[str]:
    """Return which strategy is the faster one wherever both were measured; nothing if neither was."""
    theirs = {cell.bandwidth_mbit_s: cell for cell in second}
    shared = [cell for cell in first if cell.bandwidth_mbit_s in theirs]
    times = [(cell.time_to_accuracy, theirs[cell.bandwidth_mbit_s].time_to_accuracy) for cell in shared]
    middles = [(median(ours), median(others)) for ours, others in times]
    if not any(math.isfinite(min(pair)) for pair in middles):
        return []
    faster, slower = first[0].sync, second[0].sync
    wins = sum(ours < others for ours, others in middles)
    losses = sum(others < ours for ours, others in middles)
    if wins and losses:
        return [f"{faster} and {slower}: one missed the loss at some bandwidth, so no break-even is known"]
    if losses:
        faster, slower = slower, faster
        times = [(others, ours) for ours, others in times]
    ratios = [ratio(long, short) for short, long in times]
    many = [min(map(len, pair)) >= FEWEST_SHOWN for pair in times]
    sure = sum(
        each.low is not None and each.low > 1 and enough for each, enough in zip(ratios, many, strict=True)
    )
    factors = ", ".join("-" if each.value is None else f"{each.value:.2f}" for each in ratios)
    return [
        f"no break-even: {slower} takes as long as {faster} or longer throughout ({factors} times; "
        f"shown at {sure} of {len(shared)} bandwidths)"
    ]


def draw(measured: Sequence[SettingRuns], path: Path) -> None:
    """Draw time to the loss over bandwidth, a line a strategy with the runs' intervals."""
    import altair as alt
    import vl_convert

    rows = []
    for cell in measured:
        ends = interval(cell.time_to_accuracy)
        if math.isfinite(middle := median(cell.time_to_accuracy)):
            low, high = (middle, middle) if ends is None else (ends.low, ends.high)
            row = {"strategy": cell.sync, "mbit_s": cell.bandwidth_mbit_s, "s": middle}
            rows.append(row | {"low": low, "high": high if math.isfinite(high) else middle})
    rates = sorted({cell.bandwidth_mbit_s for cell in measured})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            "mbit_s:Q",
            scale=alt.Scale(type="log", nice=False, padding=20),
            axis=alt.Axis(values=rates),
            title="bandwidth, Mbit/s",
        ),
        color=alt.Color("strategy:N", sort=list(STRATEGIES), title=None),
    )
    time = alt.Y("s:Q", scale=alt.Scale(type="log", nice=False), title=f"s to {LOSS:g} nats a token")
    bars = base.mark_rule(opacity=0.5).encode(y="low:Q", y2="high:Q")
    lines = base.mark_line(point=True).encode(y=time)
    chart = alt.layer(bars, lines).properties(width=520, height=320)
    if path.suffix == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2))
    else:
        path.write_text(vl_convert.vegalite_to_svg(chart.to_json()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
