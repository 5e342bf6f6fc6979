from dataclasses import dataclass

import torch
from torch import nn

from .data import build_dataloader


@dataclass
class Config:
    data_path: str = "data/recordings.npy"
    batch_size: int = 20
    num_workers: int = 0
    lr: float = 3e-4


class Recognizer(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(40, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 5)

    def forward(self, bands):
        states, _ = self.rnn(bands[:, ::8])
        return self.out(states[:, -1])


def main():
    cfg = Config()
    loader = build_dataloader(cfg)
    model = Recognizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    for epoch in range(1000):
        for bands, target in loader:
            loss = nn.functional.cross_entropy(model(bands), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()


if __name__ == "__main__":
    main()
