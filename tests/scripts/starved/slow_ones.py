# Every fourth batch is slow, and the ready ones wait behind it; argv[1] "even": all are alike.
import sys
import time

import torch
from parts import Training
from torch.utils.data import DataLoader, Dataset

even = sys.argv[1] == "even"


class Uneven(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        slow = index // 4 % 4 == 0
        time.sleep(0.006 if even else 0.020 if slow else 0.0005)
        return torch.full((8,), 1.0), index % 2


training = Training()
for _ in range(50):
    for x, y in DataLoader(Uneven(), batch_size=4, num_workers=4):
        training.step(x, y)
