"""A small random model under transformers' Trainer; it has two sets for evaluation."""

import sys
from typing import Any

import torch
import torchvision_ops

import mlbench

torchvision_ops.load()  # transformers imports torchvision, whose wheel asks for a torch with CUDA

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402  # pyright: ignore[reportMissingImports]

from mlbench.adapters.huggingface import GoalCallback  # noqa: E402

torch.manual_seed(0)
rows: Any = [{"input_ids": torch.arange(8) % 4, "labels": torch.arange(8) % 4} for _ in range(32)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    num_train_epochs=50,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
evaluated = {"other": rows[8:16], "own": rows[:8]}
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=evaluated)
with mlbench.measure("eval_own_loss", 0.5, direction="min") as run:
    trainer.add_callback(GoalCallback(run))
    trainer.train()
    trainer.evaluate(rows[16:24], metric_key_prefix="test")  # type: ignore[arg-type]
