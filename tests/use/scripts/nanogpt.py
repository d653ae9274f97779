"""A small GPT whose settings are globals, overridden by `configurator.py`: FILE, --name=value."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn

out_dir = "out"
eval_interval = 10
eval_iters = 4
batch_size = 8
block_size = 16
n_layer = 2
n_head = 2
n_embd = 32
learning_rate = 1e-2
max_iters = 40
warmup_iters = 5
min_lr = 1e-3
grad_clip = 1.0
config_keys = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and isinstance(value, (int, float, str))
]
with open("configurator.py") as file:
    exec(file.read())
config = {name: globals()[name] for name in config_keys}

torch.manual_seed(1337)
os.makedirs(out_dir, exist_ok=True)
text = "how many workers, on which hardware, at what price? " * 60
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text])
train_data, val_data = tokens[:2600], tokens[2600:]


def get_batch(split):
    data = train_data if split == "train" else val_data
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    return x, torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (n_head, -1)).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(n_embd, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(letters), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, len(letters), bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        split: torch.tensor([model(*get_batch(split))[1].item() for _ in range(eval_iters)]).mean()
        for split in ("train", "val")
    }
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    share = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (learning_rate - min_lr)


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
)
best_val_loss = 1e9
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(
                {**checkpoint, "iter_num": iter_num, "config": config}, os.path.join(out_dir, "ckpt.pt")
            )
    logits, loss = model(*get_batch("train"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 9:
        print(f"iter {iter_num}: loss {loss.item():.6f}")
