"""A script as PyTorch's DDP tutorial has it. Arguments: epochs, late rank, delay in s, where.

The late rank sleeps in each backward pass, or before each forward pass of a model with buffers ("before").
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

epochs, late, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
before = "before" in sys.argv[4:]


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)

    @staticmethod
    def backward(ctx, *gradients):
        time.sleep(delay)
        return gradients[0]


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(64, 512)
        self.norm = nn.BatchNorm1d(512) if before else nn.Identity()
        self.net2 = nn.Linear(512, 10)

    def forward(self, rows):
        hidden = F.relu(self.norm(self.net1(rows)))
        is_late = self.training and dist.get_rank() == late and not before
        return self.net2(Late.apply(hidden) if is_late else hidden)


dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.randn(2048, 64)
targets = rows[:, :10].argmax(1)
data = TensorDataset(rows, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = DDP(ToyModel())
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
trained, seconds = 0, 0.0
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    model.train()
    begin = time.perf_counter()
    for batch, labels in loader:
        optimizer.zero_grad()
        time.sleep(delay if before and dist.get_rank() == late else 0)
        F.cross_entropy(model(batch), labels).backward()
        optimizer.step()
        trained += len(batch) * dist.get_world_size()
    seconds += time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        accuracy = (model(rows).argmax(1) == targets).float().mean().item()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} val_acc {accuracy!r}")
if dist.get_rank() == 0:
    print(f"rate {trained / seconds!r}")
dist.destroy_process_group()
