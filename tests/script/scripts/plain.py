"""One process without DDP. Arguments: how many steps, and what to do then."""

import os
import signal
import sys
import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
print("loss: 0.25", flush=True)
if sys.argv[2] == "fail":
    sys.exit(3)
if sys.argv[2] == "save":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(f"saved after {signal.Signals(number).name}"))
    with open(sys.argv[3], "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(1)
