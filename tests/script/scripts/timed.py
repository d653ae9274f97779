"""Steps of a size to choose, timed by the script itself. Arguments: width of the model, steps."""

import statistics
import sys
import time

import torch

width, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(32 * steps, 1))
seconds = []
begin = None
for (batch,) in torch.utils.data.DataLoader(rows, batch_size=32):
    optimizer.zero_grad()
    model(batch.expand(-1, width)).pow(2).mean().backward()
    optimizer.step()
    now = time.perf_counter()
    if begin is not None:
        seconds.append(now - begin)
    begin = now
print(f"step {statistics.median(seconds)!r}")
