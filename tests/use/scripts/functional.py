"""Weights as a dictionary, updated by torch.func: there is no optimizer of torch.optim."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
weights = {name: value.detach() for name, value in model.named_parameters()}


def loss_of(weights, rows):
    return (functional_call(model, weights, (rows,)) - rows.prod(1, keepdim=True)).pow(2).mean()


for step in range(50):
    gradients, loss = grad_and_value(loss_of)(weights, torch.randn(32, 4))
    weights = {name: value - 0.05 * gradients[name] for name, value in weights.items()}
    if step % 10 == 9:
        print(f"step {step} loss {loss.item():.6f}")
torch.save(weights, "weights.pt")
