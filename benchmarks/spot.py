"""How long runs take whose workers are killed at random times, beside what `spot=` predicts of them.

    python benchmarks/spot.py

Every worker stands for a node and is killed at the times of a Poisson process, also while it starts again;
the run then goes on from its last checkpoint, one an epoch, with new processes. mlbench's own loop and
checkpoints in processes that are forks of one that has imported torch, as of launcher=torchrun, which itself
restarts nothing. The prediction is made before the first worker is killed: from undisturbed runs of 1 and 2
workers, and from the seconds of a restart, by which a run takes longer that is killed after a checkpoint.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it; workers are forks)
import torch.distributed as dist
from origin import origin

from mlbench.config.compose import compose
from mlbench.config.experiment import Experiment
from mlbench.plugins.prediction import forecast, model
from mlbench.plugins.prediction.model import Measurements, RunTimings, Spot, Target
from mlbench.record import format
from mlbench.record.phases import EXPOSED, PhaseTimes
from mlbench.tasks import registry
from mlbench.training.loop import train
from mlbench.training.worker import State, Worker, control_group

TASK, EPOCHS, WORKERS = "resnet20", 8, 2
LIFE_S = 30.0  # s from one interruption of a worker to the next, on average
SEED = 20260908  # any constant: when which worker is killed
STATE, RESULT = "state.pt", "result.json"
POLL_S = 0.005  # s between two looks for a checkpoint
RESTARTS = 3  # planned, of one run, to measure what a restart takes
FORK = multiprocessing.get_context("forkserver")  # which imports this file, so torch, once
LIMIT_S = 200.0  # s; a run that takes longer hangs


def main(arguments: Sequence[str]) -> int:
    """Measure and print the prediction, the runs and the row of docs/prediction-model.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--undisturbed", type=int, default=2, help="runs of 1 and of 2 workers to predict from"
    )
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments, "one thread a worker"), end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"task={TASK}", f"task.epochs={EPOCHS}", "goal=none", f"data_root={folder}/data"]
        experiment = compose([*overrides, "division=open"])
        registry.load(TASK).prepare(experiment.task, Path(folder) / "data")
        fitted = [timings(run(experiment, k)) for _ in range(options.undisturbed) for k in (1, WORKERS)]
        undisturbed = [each for each in fitted if each.workers == WORKERS]
        calm_s = median(each.total_s for each in undisturbed)
        planned = [run(experiment, WORKERS, after_checkpoints=RESTARTS) for _ in range(options.undisturbed)]
        restart_s = median((each["elapsed"] - calm_s) / RESTARTS for each in planned)
        spot = Spot(3600 / LIFE_S, restart_s, EPOCHS)
        predicted = predict(fitted, experiment, spot)
        checkpoint_s = median(each["report_s"] for each in planned)
        count = len(undisturbed)
        print(f"Undisturbed {calm_s:.2f} s (median of {count}), a checkpoint {checkpoint_s:.3f} s.")
        print(f"A restart {restart_s:.2f} s (median of {len(planned)} runs with {RESTARTS}); a worker is "
              f"killed every {LIFE_S:g} s on average.\n", flush=True)  # fmt: skip
        rng = np.random.default_rng(SEED)
        killed = []
        for _ in range(options.runs):
            killed.append(run(experiment, WORKERS, lives=lives(rng)))
            print(f"{killed[-1]['elapsed']:.2f} s, {killed[-1]['interruptions']} interruptions", flush=True)
    times = [each["elapsed"] for each in killed]
    low, high = predicted.low or 0.0, predicted.high or float("inf")
    inside = sum(low <= each <= high for each in times)
    print(f"\nPredicted mean {predicted.value:.2f} s, measured {mean(times):.2f} s "
          f"({predicted.value / mean(times) - 1:+.1%}); {inside} of {len(times)} inside.")  # fmt: skip
    ends = f"{format.duration(low)} to {format.duration(high)}"
    between = f"{format.duration(min(times))} to {format.duration(max(times))}"
    count = sum(each["interruptions"] for each in killed)
    case = f"{TASK}, {WORKERS} spot nodes, {len(times)} runs with {count} interruptions: mean"
    measured = f"{format.duration(mean(times))} ({between})"
    print(f"| {case} | {format.duration(predicted.value)} | {ends} | {measured} | {inside} of {len(times)} |")
    return 0


def predict(fitted: Sequence[RunTimings], experiment: Experiment, spot: Spot) -> forecast.PredictedInterval:
    """Return the time on spot nodes that `mlbench.predict` expects from undisturbed runs."""
    node = experiment.hardware.model_copy(update={"workers_per_node": 1})
    runs = Measurements(TASK, TASK, tuple(fitted), node, "fp32", None, backend="gloo")
    return forecast.forecast(model.fit(model.check(runs)), [WORKERS], Target(spot=spot))[0].time_s


def lives(rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """Yield how many seconds after the last interruption the next comes, and which worker's node it is."""
    while True:
        yield rng.exponential(LIFE_S / WORKERS), int(rng.integers(WORKERS))


def run(
    experiment: Experiment,
    workers: int,
    *,
    lives: Iterable[tuple[float, int]] = (),
    after_checkpoints: int = 0,
) -> dict[str, Any]:
    """Train to the last epoch; return what rank 0 measured, and how often a worker was killed.

    lives: when to kill which worker. after_checkpoints: kill rank 0 after each of so many instead.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, attempts, deadline = Path(name), 0, time.monotonic() + LIMIT_S
        processes = start(experiment, workers, folder, attempts)
        _await(folder, processes, lambda: (folder / STATE).exists(), deadline)
        moment, schedule = time.monotonic(), iter(lives)
        while True:
            if after_checkpoints > attempts:
                before = (folder / STATE).stat().st_mtime_ns
                _await(
                    folder, processes, lambda at=before: (folder / STATE).stat().st_mtime_ns > at, deadline
                )
                victim = 0
            elif life := next(schedule, None):
                moment, victim = moment + life[0], life[1]
                _await(folder, processes, lambda at=moment: time.monotonic() >= at, deadline)
            else:
                _await(folder, processes, lambda: False, deadline)
                victim = None
            if (folder / RESULT).exists():
                for process in processes:
                    process.join()
                return json.loads((folder / RESULT).read_text()) | {"interruptions": attempts}
            assert victim is not None
            processes[victim].kill()
            for process in processes:  # the others would wait for the lost one until gloo's timeout
                process.kill()
                process.join()
            attempts += 1
            processes = start(experiment, workers, folder, attempts)


def start(experiment: Experiment, workers: int, folder: Path, attempt: int) -> list[Process]:
    """Fork the workers."""
    processes = [
        FORK.Process(target=work, args=(experiment, rank, workers, folder, attempt))
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    return processes


def _await(folder: Path, processes: Sequence[Process], condition: Any, deadline: float) -> None:
    """Wait for a condition or for the result; raise where a worker fails."""
    while not condition() and not (folder / RESULT).exists():
        wait([process.sentinel for process in processes if process.is_alive()], POLL_S)
        if any(process.exitcode for process in processes) or time.monotonic() > deadline:
            raise SystemExit("a worker failed or hangs, without having been killed")


def work(experiment: Experiment, rank: int, workers: int, folder: Path, attempt: int) -> None:
    """Be a worker: train from the last checkpoint; rank 0 writes the result."""
    torch.set_num_threads(1)
    if workers > 1:
        store = f"file://{folder}/store_{attempt}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=workers)
    saved = folder / STATE
    worker = Worker(
        rank=rank,
        world_size=workers,
        local_rank=rank,
        seed=1,
        data_root=experiment.data_root,
        sync=experiment.sync,
        keep_checkpoints=True,
        resume=torch.load(saved, weights_only=True) if saved.exists() else None,
        report_validation=partial(save, rank, saved),
        control=control_group(experiment.backend.timeout_s) if workers > 1 else None,
    )
    result = train(registry.build(experiment.task, worker), worker, report_s=0.0)
    times = worker.gather([each.plain() for each in result.phase_times])
    if rank == 0:
        epochs = len(result.validations)
        outside = [each.outside.get("report", 0.0) for each in result.phase_times]
        text = json.dumps({"elapsed": result.elapsed, "steps": result.steps, "epochs": epochs,
                           "workers": workers, "report_s": median(outside), "ranks": times})  # fmt: skip
        (folder / "part.json").write_text(text)
        (folder / "part.json").rename(folder / RESULT)
    worker.barrier()
    os._exit(0)  # nothing is left to clean up, and gloo's threads would be waited for


def save(rank: int, path: Path, _: Any, state: State | None) -> None:
    """Write rank 0's checkpoint, whole or not at all."""
    if state is not None and rank == 0:
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.rename(path)


def timings(result: dict[str, Any]) -> RunTimings:
    """Return what a prediction takes from an undisturbed run."""
    ranks = [[PhaseTimes.from_plain(each) for each in times] for times in result["ranks"]]
    workers, steps = result["workers"], result["steps"]
    phases = {
        name: mean(sum(each.phases[name] for each in times) for times in ranks) for name in ranks[0][0].phases
    }
    overlapped = mean(sum(each.overlapped_communication for each in times) for times in ranks)
    compute = sum(phases[name] for name in ("forward", "loss", "backward"))
    communication = sum(phases[name] for name in EXPOSED)
    if workers == 1:
        compute, communication, overlapped = compute + communication, 0.0, 0.0
    return RunTimings(
        workers=workers,
        reached=True,
        epochs=result["epochs"],
        steps=steps,
        samples=sum(each.samples for times in ranks for each in times),
        validations=result["epochs"],
        compute_s=compute,
        optimizer_s=phases["optimizer"],
        data_wait_s=phases["data_wait"] + phases["metrics"],
        communication_s=communication,
        overlapped_s=overlapped,
        outside_s=result["elapsed"] - sum(phases.values()),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
