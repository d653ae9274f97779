"""One epoch of a small model."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> float:
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4)) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()
