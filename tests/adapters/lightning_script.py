"""A small module under Lightning's Trainer; with the argument `fail` it fails in its fourth step."""

import os
import sys
from typing import Any

import torch
import torchvision_ops

torchvision_ops.load()  # Lightning imports torchvision, whose wheel asks for a torch with CUDA

from lightning.pytorch import LightningModule, Trainer  # noqa: E402  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from mlbench.adapters.lightning import MeasureCallback  # noqa: E402


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return (self.line(batch[0]) - batch[1]).pow(2).mean()

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        if "fail" in sys.argv and self.global_step == 3:
            raise ValueError("no more rows")
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
rows = torch.randn(64, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=16)
quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
measure = MeasureCallback("val_loss", 0.05, direction="min")
trainer = Trainer(
    max_epochs=50,
    accelerator="cpu",
    devices=int(os.environ.get("WORLD_SIZE", "1")),
    callbacks=[measure],
    **quiet,
)
line = Line()
trainer.fit(line, loader, loader)
