"""`phases`: 120 steps on one loader, then only another; `turns`: every third epoch on the other."""

import sys
import time

from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader

model, optimizer = model_and_optimizer()
usual = DataLoader(SlowSamples(480, sample_s=0.0), 4)  # 120 steps an epoch
other = DataLoader(SlowSamples(96, sample_s=0.004), 4)  # 16 ms and more to read a batch


def epoch(loader):
    for x, y in loader:
        train_step(model, optimizer, x, y)
        time.sleep(0.008)


for number in range(2000):
    if sys.argv[1] == "phases":
        epoch(other if number else usual)
    else:
        epoch(other if number % 3 == 2 else usual)
