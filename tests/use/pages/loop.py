"""What docs/your-own-script.md leaves out around its loop."""

import torch

rows = torch.randn(256, 8)
labels = (rows.sum(1) > 0).long()
loader = [(rows[i : i + 32], labels[i : i + 32]) for i in range(0, 256, 32)]
model, epochs, accuracy = torch.nn.Linear(8, 2), 3, 0.5
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# the block
assert run.steps  # noqa: F821
