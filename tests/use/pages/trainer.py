"""What docs/your-own-script.md leaves out around its Trainer."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import mlbench

rows = [{"input_ids": torch.arange(8) % 4, "labels": torch.arange(8) % 4} for _ in range(16)]
train, test = rows, rows[:8]
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    "out", use_cpu=True, num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to=[]
)
# the block
assert Trainer and mlbench
