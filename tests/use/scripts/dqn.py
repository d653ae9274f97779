"""Deep Q-learning on a small corridor, with a memory and a target network; it ends with a code of its own."""

import random
import sys
from collections import deque

import torch
from torch import nn, optim

random.seed(0)
torch.manual_seed(0)
LENGTH, GAMMA, TAU, BATCH = 6, 0.9, 0.05, 16
net = lambda: nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))  # noqa: E731
policy_net, target_net = net(), net()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory = deque([], maxlen=500)
state_of = torch.eye(LENGTH)


def optimize_model():
    if len(memory) < BATCH:
        return None
    states, actions, rewards, nexts, ends = map(torch.stack, zip(*random.sample(memory, BATCH), strict=True))
    values = policy_net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        expected = rewards + GAMMA * target_net(nexts).max(1).values * (1 - ends)
    loss = nn.SmoothL1Loss()(values, expected)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


for episode in range(12):
    place, loss = 0, None
    for _ in range(20):
        if random.random() < 0.9**episode:
            action = random.randrange(2)
        else:
            with torch.no_grad():
                action = int(policy_net(state_of[place]).argmax())
        following = max(0, place + (1 if action else -1))
        end = following == LENGTH - 1
        values = (float(end), following, float(end))
        memory.append(
            (
                state_of[place],
                torch.tensor(action),
                torch.tensor(values[0]),
                state_of[following],
                torch.tensor(values[2]),
            )
        )
        loss = optimize_model()
        for target, source in zip(target_net.parameters(), policy_net.parameters(), strict=True):
            target.data.lerp_(source.data, TAU)
        if end:
            break
        place = following
    print(f"episode {episode} loss {loss if loss is None else round(loss, 6)}")
torch.save(policy_net.state_dict(), "policy.pt")
sys.exit(7)
