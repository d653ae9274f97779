"""Steps of a length to choose, timed by the script itself. Arguments: layers of the model, steps.

All layers are one, so that a long step needs no more of the caches than a short one.
"""

import statistics
import sys
import time

import torch

WIDTH = 256
layers, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.set_flush_denormal(True)  # gradients of the first of many layers are as good as 0
model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()] * layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(32 * steps, 1))
seconds = []
begin = None
for (batch,) in torch.utils.data.DataLoader(rows, batch_size=32):
    optimizer.zero_grad()
    model(batch.expand(-1, WIDTH)).pow(2).mean().backward()
    optimizer.step()
    now = time.perf_counter()
    if begin is not None:
        seconds.append(now - begin)
    begin = now
print(f"step {statistics.median(seconds)!r}")
