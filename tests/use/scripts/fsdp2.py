"""Weights sharded by fully_shard, gradients clipped, the whole state saved by rank 0."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)), nn.Linear(32, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optim = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(12):
    rows = torch.randn(16, 32)
    loss = (model(rows) - rows.mean(1, keepdim=True)).pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optim.step()
    optim.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if dist.get_rank() == 0 and step % 4 == 3:
        print(f"step {step} loss {mean.item() / dist.get_world_size():.6f}")
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0:
    torch.save(state, "model_state_dict.pt")
dist.destroy_process_group()
