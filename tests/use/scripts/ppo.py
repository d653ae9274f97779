"""Proximal policy optimisation in one file: a rollout, then epochs over its mini-batches."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probabilities = Categorical(logits=self.actor(x))
        action = probabilities.sample() if action is None else action
        return action, probabilities.log_prob(action), probabilities.entropy(), self.critic(x)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
for update in range(4):
    obs = torch.randn(64, 4)
    with torch.no_grad():
        actions, logprobs, _, values = agent.get_action_and_value(obs)
    rewards = (actions == (obs[:, 0] > 0)).float()
    advantages = rewards - values.flatten()
    for _ in range(2):
        for rows in torch.randperm(64).split(16):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs[rows], actions[rows])
            ratio = (newlogprob - logprobs[rows]).exp()
            gain = advantages[rows]
            pg_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            v_loss = 0.5 * (newvalue.flatten() - rewards[rows]).pow(2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"update {update} reward {rewards.mean():.4f} loss {loss.item():.6f}")
torch.save(agent.state_dict(), "agent.pt")
