"""Mixed precision with a scaler, gradients of four batches a step, unscaled and clipped."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(256, 16)
loader = DataLoader(TensorDataset(rows, rows[:, :4].argmax(1)), batch_size=16)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(3):
    for i, (inputs, targets) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), targets) / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    print(f"epoch {epoch} loss {4 * loss.item():.6f} scale {scaler.get_scale():.0f}")
torch.save(
    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()},
    "amp.pt",
)
