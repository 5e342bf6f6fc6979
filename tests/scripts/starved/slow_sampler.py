# argv: ms for each index.
import sys
import time

from parts import Samples, Training
from torch.utils.data import DataLoader, Sampler


class Weighted(Sampler):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for index in range(self.n):
            time.sleep(float(sys.argv[1]) / 1e3)
            yield index

    def __len__(self):
        return self.n


training = Training(compute_s=0.004)
data = Samples()
for _ in range(50):
    for x, y in DataLoader(data, batch_size=4, sampler=Weighted(len(data)), num_workers=2):
        training.step(x, y)
