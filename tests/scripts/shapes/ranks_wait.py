# Two ranks or more under a launcher; rank 1's dataset is slow. argv[1]: steps, argv[2]: seconds.
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

N_STEPS, SLOW_S = int(sys.argv[1]), float(sys.argv[2])
RANK = int(os.environ["RANK"])


class Data(Dataset):
    def __len__(self):
        return 4 * N_STEPS * int(os.environ["WORLD_SIZE"])

    def __getitem__(self, index):
        if RANK == 1:
            time.sleep(SLOW_S / 4)
        return torch.full((8,), index % 7 / 7.0), index % 2


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Data()
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(f"rank {RANK} {total!r}", flush=True)
dist.destroy_process_group()
