"""Five linear layers by Lightning's Trainer; random rows."""

import os
import time

import torch
import torchvision_ops
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torchvision_ops.load()  # Lightning imports torchvision

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402  # pyright: ignore[reportMissingImports]


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = (layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU()))
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), *hidden, nn.Linear(512, 10))

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Rate(Callback):
    samples = 0

    def on_train_start(self, trainer, module):
        self.begin = time.perf_counter()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.samples += len(batch[1]) * trainer.world_size

    def on_train_end(self, trainer, module):
        if trainer.global_rank == 0:
            print(f"rate {self.samples / (time.perf_counter() - self.begin)}", flush=True)


torch.manual_seed(0)
rows = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
workers = int(os.environ["WORLD_SIZE"])
trainer = Trainer(
    max_epochs=8, accelerator="cpu", devices=workers, strategy="ddp" if workers > 1 else "auto",
    callbacks=[Rate()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(rows, batch_size=64, shuffle=True))
