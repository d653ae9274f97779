"""DistributedDataParallel under torchrun with a snapshot, from which the same command goes on."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, path):
        self.rank, self.loader, self.optimizer = int(os.environ["RANK"]), loader, optimizer
        self.save_every, self.path, self.epochs_run = save_every, path, 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            if self.rank == 0:
                print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.model = DDP(model)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.loader.sampler.set_epoch(epoch)
            for rows, targets in self.loader:
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(rows), targets)
                loss.backward()
                self.optimizer.step()
            if self.rank == 0:
                print(f"Epoch {epoch} | Steps: {len(self.loader)} | loss {loss.item():.6f}", flush=True)
                if epoch % self.save_every == 0:
                    snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                    torch.save(snapshot, self.path)
                    print(f"Epoch {epoch} | Training snapshot saved at {self.path}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = torch.rand(256, 20)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=32, shuffle=False, sampler=DistributedSampler(data))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    Trainer(model, loader, optimizer, int(sys.argv[2]), "snapshot.pt").train(int(sys.argv[1]))
    dist.destroy_process_group()
