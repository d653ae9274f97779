"""Four training loops as people write them for one GPU; random data; on a CPU, small models.

python gpu_loops.py trainer|compiled_gpt|imagenet|graphs [SECONDS]
"""

import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
WARM_UP = 20 if CUDA else 3  # steps


class Rows(Dataset):
    """Items that take a moment to make, as files that are decoded do."""

    def __init__(self, shape, classes):
        self.shape, self.classes = shape, classes

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % self.classes


def loader(shape, classes, batch):
    return DataLoader(
        Rows(shape, classes),
        batch_size=batch,
        num_workers=8 if CUDA else 1,
        pin_memory=CUDA,
        persistent_workers=True,
        drop_last=True,
    )


def report(step, batches, samples):
    """Call step(batch) for SECONDS after some to warm up; print samples/s."""
    batches = iter(batches)
    for _ in range(WARM_UP):
        step(next(batches))
    if CUDA:
        torch.cuda.synchronize()
    begin, seen = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        step(next(batches))
        seen += samples
    if CUDA:
        torch.cuda.synchronize()
    print(f"rate {seen / (time.perf_counter() - begin)}", flush=True)


class Trainer:
    """Accumulates two micro-batches under autocast and clips."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.number = model, optimizer, 0

    def training_step(self, batch):
        rows, labels = (part.to(DEVICE, non_blocking=True) for part in batch)
        self.number += 1
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = F.cross_entropy(self.model(rows), labels) / 2
        loss.backward()
        if self.number % 2 == 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


def trainer():
    width, batch = (4096, 512) if CUDA else (64, 32)
    hidden = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(nn.Linear(256, width), *hidden, nn.Linear(width, 10)).to(DEVICE)
    loop = Trainer(model, torch.optim.AdamW(model.parameters(), 1e-3))
    report(loop.training_step, loader((256,), 10, batch), batch)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        parts = self.qkv(self.first(x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    def __init__(self, words, context, width, heads, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens, targets):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.blocks(self.words(tokens) + self.places(places)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def compiled_gpt():
    words, context, width, heads, layers, batch = (
        (50_304, 1024, 768, 12, 12, 16) if CUDA else (128, 32, 32, 2, 1, 4)
    )
    model = Gpt(words, context, width, heads, layers).to(DEVICE)
    compiled = torch.compile(model, backend="inductor" if CUDA else "aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    tokens = torch.randint(words, (batch, context + 1), device=DEVICE)

    def step(_):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    report(step, iter(int, 1), batch * context)


def convolutions(width):
    """Return a stem and three stages of strided convolutions."""
    layers = [nn.Conv2d(3, width, 7, 4, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(3):
        inner, outer = width << stage, width << (stage + 1)
        layers += [nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, 1000))


def imagenet():
    side, batch = (224, 128) if CUDA else (32, 8)
    model: Any = convolutions(64 if CUDA else 8).to(DEVICE)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def step(data):
        images = data[0].to(DEVICE, non_blocking=True).contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = criterion(model(images), data[1].to(DEVICE, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    report(step, loader((3, side, side), 1000, batch), batch)


def graphs():
    """Without a GPU the model is not captured."""
    batch, side = 128, 32
    model = convolutions(32 if CUDA else 8).to(DEVICE)
    images = torch.randn(batch, 3, side, side, device=DEVICE)
    labels = torch.randint(1000, (batch,), device=DEVICE)
    called: Any = torch.cuda.make_graphed_callables(model, (images,)) if CUDA else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=CUDA)

    def step(_):
        F.cross_entropy(called(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    report(step, iter(int, 1), batch)


if __name__ == "__main__":
    {each.__name__: each for each in (trainer, compiled_gpt, imagenet, graphs)}[sys.argv[1]]()
