"""torch.compile of the model, and of a whole step; the weights are saved from the original."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.compile(backend="eager")
def penalty(outputs):
    return 0.01 * outputs.pow(2).mean()


for step in range(20):
    rows = torch.randn(32, 16)
    outputs = compiled(rows)
    loss = (outputs - rows.sum(1, keepdim=True)).pow(2).mean() + penalty(outputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        print(f"step {step} loss {loss.item():.6f}")
torch.save(compiled.state_dict(), "compiled.pt")
