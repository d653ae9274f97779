"""A module under Lightning's Trainer with a validation loop, and its checkpoint's weights."""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def loss(self, batch):
        return (self.line(batch[0]) - batch[1]).pow(2).mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(
                f"epoch {self.current_epoch} val_loss {self.trainer.callback_metrics['val_loss'].item():.6f}"
            )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(0)
rows = torch.randn(64, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=16)
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
trainer = Trainer(max_epochs=3, accelerator="cpu", devices=1, **quiet)
line = Line()
trainer.fit(line, loader, loader)
torch.save(line.state_dict(), "line.pt")
