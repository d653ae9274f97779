"""One rank of DDP over gloo with 25 MB of gradients: prints bytes, then s of computing and of a step."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

address, rank, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=2, timeout=timedelta(seconds=120)
)
# One bucket, so that nothing of the all-reduce hides behind backward.
model = torch.nn.Linear(2500, 2500, bias=False)
ddp = DistributedDataParallel(model, bucket_cap_mb=100)
data = torch.randn(16, 2500)
print(sum(4 * parameter.numel() for parameter in model.parameters()))


def step() -> float:
    """Return the seconds of forward and backward."""
    dist.barrier()
    begin = time.perf_counter()
    ddp(data).square().mean().backward()
    return time.perf_counter() - begin


step()  # DDP builds its buckets in the first
for _ in range(steps):
    with ddp.no_sync():
        compute = step()
    print(compute, step(), flush=True)
dist.destroy_process_group()
