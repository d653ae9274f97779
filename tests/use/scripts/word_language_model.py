"""An LSTM whose weights are updated by hand, saved whole at its best and read again for the test."""

import math

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(ntoken, ninp), nn.LSTM(ninp, nhid, 1)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, rows, hidden):
        output, hidden = self.rnn(self.encoder(rows), hidden)
        return torch.log_softmax(self.decoder(output).flatten(0, 1), dim=1), hidden


def batches(source):
    for i in range(0, len(source) - 1, 10):
        length = min(10, len(source) - 1 - i)
        yield source[i : i + length], source[i + 1 : i + 1 + length].flatten()


def evaluate(source):
    model.eval()
    total, hidden = 0.0, None
    with torch.no_grad():
        for data, targets in batches(source):
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


torch.manual_seed(1111)
corpus = (torch.arange(3000) * 7 % 23).view(-1, 10)
train_data, val_data, test_data = corpus[:200], corpus[200:250], corpus[250:]
model, criterion = RNNModel(23, 16, 32), nn.NLLLoss()
lr, best_val_loss = 20.0, None
for epoch in range(1, 4):
    model.train()
    hidden = None
    for data, targets in batches(train_data):
        hidden = hidden and tuple(part.detach() for part in hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    val_loss = evaluate(val_data)
    print(f"| end of epoch {epoch} | valid loss {val_loss:5.2f} | valid ppl {math.exp(val_loss):8.2f}")
    if not best_val_loss or val_loss < best_val_loss:
        with open("model.pt", "wb") as file:
            torch.save(model, file)
        best_val_loss = val_loss
    else:
        lr /= 4.0
with open("model.pt", "rb") as file:
    model = torch.load(file, weights_only=False)
    model.rnn.flatten_parameters()
print(f"| End of training | test loss {evaluate(test_data):.6f}")
