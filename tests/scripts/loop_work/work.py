"""A loop that does WHAT in each step, by default next to a small model whose loader costs nothing.

Lines of the work end in `# the work`; where it spreads over a function, its name is `the_work`.
"""

from __future__ import annotations

import copy
import logging
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches cut out of one tensor: nothing to wait for."""

    def __init__(self, width: int) -> None:
        self.x, self.y = torch.rand(6400, width), torch.randint(0, 10, (6400,))

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.as_tensor(numbers)
        return self.x[rows], self.y[rows]


def the_work(batch: torch.Tensor) -> torch.Tensor:
    counts = []
    for row in batch.tolist():
        total = 0
        for value in row:
            total = (total * 31 + int(value * 1000)) % 9973
        counts.append(total)
    return torch.tensor(counts)


def main(what: str) -> None:
    width, hidden = (512, 2048) if what == "heavy" else (64, 64)
    loader = DataLoader(Slices(width), 64, shuffle=True, collate_fn=lambda batch: batch)
    layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    log = logging.getLogger("train")
    log.addHandler(logging.FileHandler("train.log"))
    log.setLevel(logging.INFO)
    while True:
        for x, y in loader:
            if what == "elements":
                the_work(x)
            elif what == "numpy":
                ranks = np.argsort(np.tile(x.numpy(), (4, 64)))  # the work
                x = x + float(ranks[0, 0])
            optimizer.zero_grad()
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            if what == "heavy":
                loss = loss + 1e-4 * sum((p**2).sum() for p in model.parameters())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if what == "deepcopy":
                best = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())  # the work
                del best
            elif what == "save":
                torch.save([model.state_dict(), optimizer.state_dict()], "last.pt")  # the work
            elif what == "log":
                log.info("weights %s", [p.tolist() for p in model.parameters()])  # the work


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
