# argv[1] "pinned": what an import may do. The workers inherit it.
import os
import sys

if sys.argv[1] == "pinned":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training()
for _ in range(50):
    for x, y in DataLoader(Samples(spin_s=0.003), batch_size=4, num_workers=2):
        training.step(x, y)
