"""Workers that hand over large batches at once, in memory that the loop has never seen.

What a worker sends stays its own and is sent again later, so making a batch costs nothing; the
loop maps, reads and unmaps each. Beside it works an optimizer on data of its own. The argument is
the size of a batch, MiB.
"""

import sys

import torch
from torch.utils.data import DataLoader, Dataset

N_BYTES = int(float(sys.argv[1]) * (1 << 20))


class Sent(Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if not self.kept:  # in the worker, so that the loop has none of it mapped
            self.kept = [torch.ones(N_BYTES // 4).share_memory_() for _ in range(8)]
        return self.kept[index // 2 % 8]


def main():
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    own = torch.ones(512, 256)
    for x in DataLoader(Sent(), batch_size=None, num_workers=2):
        optimizer.zero_grad()
        (model(own).mean() * x.max()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
