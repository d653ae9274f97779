"""After training: averaged weights, TorchScript, torch.export, a copy, a pickle for another process."""

import copy
import os
import pickle
import subprocess
import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(64, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=16)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
averaged = AveragedModel(model)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
    print(f"epoch {epoch} loss {loss.item():.6f}")
model.eval()
torch.save(model, "whole.pt")
torch.save(averaged.state_dict(), "averaged.pt")
torch.save(optimizer.state_dict(), "optimizer.pt")
with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
    again = torch.load("whole.pt", weights_only=True)
print(
    "again",
    torch.equal(again(rows), model(rows)),
    "copy",
    torch.equal(copy.deepcopy(model)(rows), model(rows)),
)
with open("model.pickle", "wb") as file:
    pickle.dump(model, file)
reads = "import pickle, sys; print('elsewhere', type(pickle.load(open('model.pickle', 'rb'))).__name__)"
print(
    subprocess.run([sys.executable, "-c", reads], capture_output=True, text=True, check=True).stdout.strip()
)
os.remove("model.pickle")  # it has addresses of memory
traced, program = torch.jit.trace(model, rows), torch.export.export(model, (rows,))
print(
    "traced",
    torch.equal(traced(rows), model(rows)),
    "exported",
    torch.equal(program.module()(rows), model(rows)),
)
