"""A script that prints `loss after epoch N is X`, as docs/your-own-script.md measures one."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
arguments = parser.parse_args()
torch.manual_seed(0)
rows = torch.randn(256, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
for epoch in range(200):
    for batch in rows.split(32):
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss after epoch {epoch} is {loss.item():.6f}", flush=True)
