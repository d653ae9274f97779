"""Waves fitted by LBFGS, whose closure is called several times a step."""

import torch
from torch import nn, optim

torch.manual_seed(0)
data = torch.sin(torch.arange(60.0)[None] / 5 + torch.arange(8.0)[:, None]).double()
inputs, target, test_inputs, test_target = data[2:, :-1], data[2:, 1:], data[:2, :-1], data[:2, 1:]


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTMCell(1, 12), nn.Linear(12, 1)

    def forward(self, rows):
        h = c = torch.zeros(rows.size(0), 12, dtype=torch.double)
        outputs = []
        for column in rows.split(1, dim=1):
            h, c = self.lstm(column, (h, c))
            outputs.append(self.linear(h))
        return torch.cat(outputs, dim=1)


seq, criterion = Sequence().double(), nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = criterion(seq(inputs), target)
    print("loss:", round(loss.item(), 9))
    loss.backward()
    return loss


for step in range(3):
    print("STEP: ", step)
    optimizer.step(closure)
    with torch.no_grad():
        print("test loss:", round(criterion(seq(test_inputs), test_target).item(), 9))
