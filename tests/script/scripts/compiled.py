"""A compiled script that compiles again for a batch of another size. Arguments: steps, that step."""

import sys
import time

import torch

steps, odd = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
model = torch.compile(torch.nn.Sequential(*layers), dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    begin = time.perf_counter()
    model(torch.randn(24 if step == odd else 32, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    print(f"step {step} {time.perf_counter() - begin:.4f}", flush=True)
