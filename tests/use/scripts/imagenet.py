"""A residual network on generated images: DataLoader workers, meters, checkpoints and the best of them."""

import shutil
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        generator = torch.Generator().manual_seed(self.seed + row)
        label = row % 4
        return 0.5 * torch.randn(3, 16, 16, generator=generator) + label / 4, label


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


class AverageMeter:
    def __init__(self, name):
        self.name, self.val, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, val, n):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.val:.4f} ({self.sum / self.count:.4f})"


def epoch_of(loader, prefix, optimizer=None):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.train(optimizer is not None)
    with torch.set_grad_enabled(optimizer is not None):
        for i, (images, target) in enumerate(loader):
            output = model(images)
            loss = criterion(output, target)
            losses.update(loss.item(), len(images))
            top1.update(100 * (output.argmax(1) == target).float().mean().item(), len(images))
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if i % 4 == 0:
                print(f"{prefix}[{i + 1}/{len(loader)}]\t{losses}\t{top1}")
    return top1.sum / top1.count


if __name__ == "__main__":
    torch.manual_seed(0)
    model, criterion = Residual(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    train_loader = DataLoader(Images(128, 0), batch_size=16, shuffle=True, num_workers=2)
    val_loader = DataLoader(Images(64, 1000), batch_size=16, num_workers=2)
    best = 0.0
    for epoch in range(2):
        epoch_of(train_loader, f"Epoch: [{epoch}]", optimizer)
        acc1 = epoch_of(val_loader, "Test: ")
        print(f" *   Acc@1 {acc1:.3f}")
        scheduler.step()
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"scheduler": scheduler.state_dict()}, "checkpoint.pth.tar")
        if acc1 > best:
            best = acc1
            shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
    print("done", file=sys.stderr)
