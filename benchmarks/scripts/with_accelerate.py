"""Five linear layers by accelerate's loop; random rows."""

import time

import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
rows = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
hidden = (layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU()))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), *hidden, nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(rows, batch_size=64, shuffle=True)
)
samples, begin = 0, time.perf_counter()
for _ in range(8):
    for batch, target in loader:
        accelerator.backward(nn.functional.cross_entropy(model(batch), target))
        optimizer.step()
        optimizer.zero_grad()
        samples += len(target) * accelerator.num_processes
accelerator.print(f"rate {samples / (time.perf_counter() - begin)}", flush=True)
