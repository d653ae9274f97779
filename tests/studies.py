"""Records of made-up studies, for the tests of what is computed and shown from many runs."""

import math
import random
from typing import Any

from records import record

from mlbench.record.cost import Cost
from mlbench.record.record import RankStats, Record

GOAL = 95.0  # % top-1, what records.record asks for


def run(workers: int, seed: int, *overrides: str, time: float, epochs: Any = 4, **changes: Any) -> Record:
    """Return a run that reached its goal after `time` seconds; more workers communicate more.

    `changes` are fields of the record, and `experiment` a change to its experiment.
    """
    share = 0.4 * (1 - 1 / workers)
    batches = 0.9 * time
    phases = {
        "data_wait": 0.02,
        "forward": 0.35 * (0.93 - share),
        "loss": 0.05 * (0.93 - share),
        "backward": 0.5 * (0.93 - share),
        "wait": 0.0,
        "transfer": share,
        "optimizer": 0.1 * (0.93 - share),
        "metrics": 0.05,
    }
    phases["data_wait"] += 1 - math.fsum(phases.values())
    whole = record(f"workers={workers}", *overrides)
    missed = changes.get("status", "goal_reached") != "goal_reached"
    values: dict[str, Any] = {
        "run_id": f"{whole.experiment.task.name}-w{workers}-{seed}-{'-'.join(overrides)}",
        "key": f"{workers} {' '.join(overrides)}",
        "command": f"python -m mlbench.run workers={workers} seed={seed} {' '.join(overrides)}".strip(),
        "seed": seed,
        "time_to_accuracy": None if missed else time,
        "epochs": float(epochs),
        "phases": {name: RankStats.of([part * batches]) for name, part in phases.items()},
        "overlapped_communication": RankStats.of([0.1 * batches]),
        "exposed_communication_share": share,
        "outside": {"validation": RankStats.of([0.08 * time])},
        "validations": [
            {
                "epoch": epoch,
                "step": 23 * epoch,
                "elapsed": time * epoch / epochs,
                "wall": 1.7e9 + time,
                "train_loss": 0.5,
                "metrics": {"top1_accuracy": GOAL - (missed or epoch < epochs) - 5.0 / epoch, "loss": 0.6},
                "goal_reached": not missed and epoch == epochs,
            }
            for epoch in range(1, epochs + 1)
        ],
        "cost": _cost(whole, workers, time, missed),
        "data_hash": "d" * 64,
    }
    experiment = whole.experiment.plain() | changes.pop("experiment", {})
    return Record.model_validate(dict(whole) | values | {"experiment": experiment} | changes)


def study(
    *overrides: str, workers: tuple[int, ...] = (1, 2, 4), repeats: int = 5, **changes: Any
) -> list[Record]:
    """Return a study that scales, with noise from a fixed seed."""
    noise = random.Random(7)
    return [
        run(k, seed, *overrides, time=100 * (0.2 + 0.8 / k) * noise.uniform(0.97, 1.03), **changes)
        for k in workers
        for seed in range(repeats)
    ]


def _cost(whole: Record, workers: int, time: float, missed: bool) -> Cost | None:
    hardware = whole.experiment.hardware
    price = hardware.price
    if price is None:
        return None
    nodes = math.ceil(workers / (hardware.workers_per_node or workers))
    hour, spot = price.usd_per_hour, price.usd_per_hour_spot
    return Cost(
        nodes=nodes,
        wall_usd=nodes * hour * (time + 30) / 3600,
        wall_usd_spot=None,
        goal_usd=None if missed else nodes * hour * time / 3600,
        goal_usd_spot=None if missed or spot is None else nodes * spot * time / 3600,
        date=price.date,
        source=price.source,
    )
