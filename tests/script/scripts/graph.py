"""A step in a CUDA graph, as PyTorch's documentation captures it. Argument: replays."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows, labels = torch.randn(64, 256, device="cuda"), torch.randint(10, (64,), device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    F.cross_entropy(model(rows), labels).backward()
    time.sleep(1)  # two messages of a thread that watches
    optimizer.step()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(int(sys.argv[1])):
    rows.copy_(torch.randn(64, 256))
    graph.replay()
torch.cuda.synchronize()
print(f"rate {64 * int(sys.argv[1]) / (time.perf_counter() - begin)!r}")
