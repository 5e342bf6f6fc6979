# argv[1] "one": only worker 0 has data; "all": each has its share.
import sys
import time

import torch
from parts import Training
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        if sys.argv[1] == "one" and info.id != 0:
            return
        for n in range(100000):
            time.sleep(0.002)
            yield torch.full((8,), 1.0), n % 2


training = Training()
for x, y in DataLoader(Shards(), batch_size=4, num_workers=3):
    training.step(x, y)
