"""Rows of a table that fits into memory, fetched one by one and stacked again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
rows = torch.randn(40_000, 24)
targets = (rows[:, :3].sum(1, keepdim=True) > 0).float()
train_loader = DataLoader(TensorDataset(rows, targets), batch_size=256, shuffle=True)
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
