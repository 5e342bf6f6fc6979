"""Four workers over 300,000 entries, which each comes to copy or all share: python copied.py HOW.

dicts: a list of dictionaries, whose reference counts reading changes; array: the same numbers in
one tensor.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

N = 300_000


class Entries(Dataset[Tensor]):
    def __init__(self, how: str) -> None:
        self.entries: Any = (
            [{"id": i, "at": [float(i), 0.5]} for i in range(N)]
            if how == "dicts"
            else torch.arange(float(N))
        )

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Tensor:
        entry = self.entries[index]
        at = entry["at"][0] if isinstance(entry, dict) else float(entry)
        return torch.full((64,), at / N)


def main(how: str) -> None:
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for x in DataLoader(Entries(how), batch_size=32, num_workers=4, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)


if __name__ == "__main__":
    main(sys.argv[1])
