"""A loop in a method, three calls deep, over an attribute."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, n):
        self.rows = [[float(i + k) for k in range(4)] for i in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index])  # hot line


class Trainer:
    def __init__(self, batch_size):
        self.dataset = Numbers(32)
        self.device = torch.device("cpu")
        self.loader = DataLoader(  # train loader
            self.dataset,
            batch_size=batch_size,  # größer hilft nicht
            shuffle=True,
        )
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def epoch(self):
        for batch in self.loader:  # train loop
            batch = batch.to(self.device)
            self.step(batch)

    def step(self, batch):
        self.optimizer.zero_grad(set_to_none=False)
        self.model(batch).mean().backward()
        self.optimizer.step()

    def fit(self, epochs):
        for _ in range(epochs):
            self.epoch()


if __name__ == "__main__":
    Trainer(8).fit(2)
