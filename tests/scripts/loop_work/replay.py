"""Reinforcement learning in kind: a replay buffer copied whole at each draw, and no DataLoader."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn


class Replay:
    def __init__(self) -> None:
        self.rows = [(np.zeros(64, np.float32), float(n)) for n in range(20_000)]

    def sample(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = list(self.rows)
        random.shuffle(rows)
        states, rewards = zip(*rows[:n], strict=True)
        return torch.from_numpy(np.stack(states)), torch.tensor(rewards)


if __name__ == "__main__":
    buffer = Replay()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    while True:
        states, rewards = buffer.sample(128)
        loss = ((model(states)[:, 0] - rewards) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
