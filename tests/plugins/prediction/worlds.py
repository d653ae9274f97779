"""Worlds in which the truth about scaling is known, and the runs that one would measure there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from records import record

from mlbench.config.experiment import Hardware, Peak, Price
from mlbench.plugins.prediction.model import Measurements, RunTimings
from mlbench.record.record import RankStats, Record

NODE = Hardware(
    name="node",
    description="one worker",
    cpus=1,
    gpus=1,
    gpu_model=None,
    workers_per_node=1,
    threads_per_worker=None,
    network_gbit_per_s=8.0,
    price=Price(usd_per_hour=1.8, usd_per_hour_spot=None, date="2026-11-21", source="made up"),
    peak=Peak(fp32=1e12, fp16=8e12, bf16=None, source="made up"),
)


@dataclass(frozen=True)
class World:
    """The truth; seconds a step unless said otherwise."""

    batch: int = 1024  # samples a step; a worker's where it grows
    grows: bool = False
    epoch_samples: int = 65_536
    fixed: float = 2e-3
    a_sample: float = 4e-4
    optimizer: float = 5e-3
    data_wait: float = 1e-6  # a sample
    alpha: float = 2e-2  # s a hop
    volume: float = 0.06  # s to send all gradients once
    tree: bool = False
    hidden: float = 0.0  # share of communication overlapped
    scatter: float = 0.0  # relative noise of communication alone
    outside: tuple[float, float] = (0.2, 1.5)  # s an epoch: fixed, shared out
    epochs: tuple[float, float] = (6.0, 0.0)  # to the goal: fixed, a sample of global batch

    def all_reduce(self, k: int) -> float:
        if k == 1:
            return 0.0
        hops = 2 * np.log2(k) if self.tree else 2 * (k - 1)
        return float(hops * self.alpha + 2 * (k - 1) / k * self.volume)

    def run(self, k: int, *, noise: float = 0.0, luck: float = 0.0, rng: Any = None) -> RunTimings:
        """Return one run at k workers with relative noise of its seconds and of its epochs."""
        slow, long = np.exp(np.array([noise, luck]) * (rng.standard_normal(2) if rng else 0.0))
        batch = self.batch * (k if self.grows else 1)
        epochs = float(long) * (self.epochs[0] + self.epochs[1] * batch)
        steps = epochs * self.epoch_samples / batch
        share = batch / k
        seconds = float(slow) * steps
        sent = seconds * self.all_reduce(k)
        if rng and self.scatter:
            sent *= float(np.exp(self.scatter * rng.standard_normal()))
        return RunTimings(
            workers=k,
            reached=True,
            epochs=epochs,
            steps=steps,
            samples=steps * batch,
            validations=max(1, round(epochs)) * 50,
            compute_s=seconds * (self.fixed + self.a_sample * share),
            optimizer_s=seconds * self.optimizer,
            data_wait_s=seconds * self.data_wait * share,
            communication_s=sent * (1 - self.hidden),
            overlapped_s=sent * self.hidden,
            outside_s=float(slow) * epochs * (self.outside[0] + self.outside[1] / k),
            startup_s=12.0,
        )

    def measure(
        self,
        counts: tuple[int, ...],
        *,
        repeats: int = 1,
        noise: float = 0.0,
        luck: float = 0.0,
        seed: int = 0,
    ) -> Measurements:
        """Return runs at these worker counts."""
        rng = np.random.default_rng(seed)
        return Measurements(
            title="a world",
            task="resnet20",
            runs=tuple(self.run(k, noise=noise, luck=luck, rng=rng) for k in counts for _ in range(repeats)),
            hardware=NODE,
            precision="fp32",
            gradient_bytes=4e6,
        )


def as_record(run: RunTimings, *overrides: str, seed: int = 7, **changes: Any) -> Record:
    """Return the record that such a run leaves, of a resnet20 mini experiment."""
    phases = {
        "data_wait": run.data_wait_s,
        "forward": 0.4 * run.compute_s,
        "loss": 0.0,
        "backward": 0.6 * run.compute_s,
        "wait": 0.0,
        "transfer": run.communication_s,
        "optimizer": run.optimizer_s,
        "metrics": 0.0,
    }
    last = {"epoch": run.epochs, "step": int(run.steps), "elapsed": run.total_s, "wall": 1.7e9}
    last |= {"train_loss": 0.5, "metrics": {"top1_accuracy": 96.0}, "goal_reached": run.reached}
    values = {
        "run_id": f"2026-11-21T034501-123-resnet20-w{run.workers}-{seed:x}",
        "seed": seed,
        "epochs": run.epochs,
        "steps": round(run.steps),
        "samples": round(run.samples),
        "phases": {name: RankStats.of([0.9 * seconds, 1.1 * seconds]) for name, seconds in phases.items()},
        "overlapped_communication": RankStats.of([run.overlapped_s]),
        "validations": [last],
        "status": "goal_reached" if run.reached else "goal_not_reached",
        "time_to_accuracy": run.total_s if run.reached else None,
        "startup_time": run.startup_s,
        "gradient_bytes": 4_000_000,
    }
    return record(f"workers={run.workers}", *overrides, **values | changes)
