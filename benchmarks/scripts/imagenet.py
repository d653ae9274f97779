"""ResNet-18 under DDP, as PyTorch's ImageNet example trains it; random images of 64 x 64 pixels."""

import time

import torch
import torch.distributed as dist
import torchvision_ops
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torchvision_ops.load()

from torchvision.models import resnet18  # noqa: E402  # pyright: ignore[reportMissingImports]

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(resnet18(num_classes=10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
images = TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(10, (512,)))
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=16, sampler=sampler)
samples, seconds = 0, 0.0
for epoch in range(3):
    sampler.set_epoch(epoch)
    begin = time.perf_counter()
    for batch, target in loader:
        loss = criterion(model(batch), target)
        loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(target) * dist.get_world_size()
    seconds += time.perf_counter() - begin
if dist.get_rank() == 0:
    print(f"rate {samples / seconds}", flush=True)
dist.destroy_process_group()
