"""mlbench's own loop and tasks under torchrun, without Ray, heartbeats, reports and MLflow.

    cd benchmarks
    OMP_NUM_THREADS=1 torchrun --nproc-per-node=2 -m without_ray task=resnet20 workers=2 task.epochs=3 ...

Takes the overrides of `python -m mlbench.run` and prints one JSON line as the references do: samples/s of
all ranks over the epochs, data included, validations apart.
"""

import json
import os
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.training import precision
from mlbench.training.loop import train
from mlbench.training.worker import Worker, control_group


def main(overrides: Sequence[str]) -> None:
    """Train as one rank of torchrun; rank 0 prints the rate."""
    experiment = compose(overrides)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    precision.allow_tf32(False)
    if size > 1:
        dist.init_process_group("gloo")
    worker = Worker(
        rank=rank,
        world_size=size,
        local_rank=rank,
        seed=1,
        data_root=experiment.data_root,
        sync=experiment.sync,
        control=control_group(experiment.backend.timeout_s) if size > 1 else None,
    )
    times = train(registry.build(experiment.task, worker), worker).phase_times
    samples, seconds = worker.sum(
        [sum(each.samples for each in times), sum(each.seconds for each in times)]
    ).tolist()
    if rank == 0:
        print(json.dumps({"samples_per_s": samples / seconds * size}))
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
