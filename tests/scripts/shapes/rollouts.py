"""Rollouts in Python, then optimizer steps on what they gave: no DataLoader, most time between."""

import sys

import torch

n_rounds, n_played, n_steps = int(sys.argv[1]), 400, 40
policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters())


def play():
    states, state = [], [0.0, 0.1, 0.2, 0.3]
    with torch.no_grad():
        for _ in range(n_played):
            seen = torch.tensor(state)
            action = policy(seen).argmax().item()
            for _ in range(150):  # the environment
                state = [x + 0.01 * y - 0.001 * action for x, y in zip(state, state[1:] + [0.1])]
            states.append(seen)
    return torch.stack(states)


for _ in range(n_rounds):
    states = play()
    for rows in torch.randint(n_played, (n_steps, 64)):
        loss = policy(states[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
