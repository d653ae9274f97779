"""A loop with accelerate: gradients of two batches a step, gathered metrics, a saved state."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
rows = torch.randn(128, 8)
data = TensorDataset(rows, rows.sum(1, keepdim=True))
train, test = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=32)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
for epoch in range(3):
    model.train()
    for inputs, targets in train:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for inputs, targets in test:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics((model(inputs) - targets).pow(2).mean()))
    accelerator.print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.6f}")
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
