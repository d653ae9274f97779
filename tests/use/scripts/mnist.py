"""A convolutional network on generated digits, with arguments, a schedule and a test after each epoch."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(8 * 6 * 6, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.log_softmax(self.fc1(torch.flatten(self.dropout1(x), 1)), dim=1)


def digits(count):
    labels = torch.randint(10, (count,))
    images = 0.3 * torch.randn(count, 1, 14, 14)
    images[torch.arange(count), 0, labels] += 1
    return TensorDataset(images, labels)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            share = 100.0 * batch_idx / len(loader)
            seen = batch_idx * len(data)
            print(
                f"Train Epoch: {epoch} [{seen}/{len(loader.dataset)} ({share:.0f}%)]\tLoss: {loss.item():.6f}"
            )


def test(model, loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    count = len(loader.dataset)
    test_loss /= count
    accuracy = f"{correct}/{count} ({100.0 * correct / count:.0f}%)"
    print(f"\nTest set: Average loss: {test_loss:.4f}, Accuracy: {accuracy}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    train_loader = DataLoader(digits(960), batch_size=64, shuffle=True)
    test_loader = DataLoader(digits(500), batch_size=100)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()
