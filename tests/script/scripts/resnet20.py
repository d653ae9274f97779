"""task=resnet20 at mini scale as a plain script: model, data and steps are the task's, the loop is its own.

Arguments: folder of the prepared data, epochs.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from mlbench.tasks.pixels import normaliser
from mlbench.tasks.resnet20 import data
from mlbench.tasks.resnet20.augment import crop, draw
from mlbench.tasks.resnet20.model import resnet

BATCH, WIDTH, DEPTH, LR = 32, 8, 20, 0.1

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
size = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
if size > 1:
    dist.init_process_group("gloo")
files = data.open_dataset(folder)
normalise = normaliser(
    data.SIDE,
    mean=files.mean.tolist(),
    std=files.std.tolist(),
    device=torch.device("cpu"),
    memory_format=torch.channels_last,
)
generator = torch.Generator().manual_seed(rank)


class Train(torch.utils.data.Dataset):
    def __len__(self):
        return len(files.train.labels)

    def __getitems__(self, rows):
        chosen = torch.tensor(rows)
        top, left, mirrored = draw(len(rows), flip=files.flip, generator=generator)
        cut = crop(files.train.images.index_select(0, chosen), top, left, mirrored)
        return normalise(cut), files.train.labels.index_select(0, chosen)


torch.manual_seed(0)
model = resnet(DEPTH, variant="v1", shortcut="projection", width=WIDTH)
model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
if size > 1:
    model = DDP(model, gradient_as_bucket_view=True, broadcast_buffers=False)
optimizer = torch.optim.SGD(
    model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
)
sampler = DistributedSampler(Train(), num_replicas=size, rank=rank)
loader = DataLoader(Train(), BATCH, sampler=sampler, collate_fn=lambda batch: batch, drop_last=True)
trained, seconds = 0, 0.0
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    model.train()
    begin = time.perf_counter()
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        trained += size * len(labels)
    seconds += time.perf_counter() - begin
if rank == 0:
    print(f"rate {trained / seconds!r}")
if size > 1:
    dist.destroy_process_group()
