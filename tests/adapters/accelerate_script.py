"""A loop with accelerate, which needs no adapter."""

import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, TensorDataset

import mlbench

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
rows = torch.randn(64, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=16)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with mlbench.measure("loss", 0.05, direction="min") as run:
    for _ in range(1000):
        losses = []
        for inputs, targets in loader:
            loss = (model(inputs) - targets).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(torch.as_tensor(accelerator.gather(loss.detach())).mean().item())
        if run.validation(loss=sum(losses) / len(losses)):
            break
