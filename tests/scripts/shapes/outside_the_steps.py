"""`often`: validation and saving every 4 steps; `epochs`: at each epoch's end; `never`."""

import sys
import time

import torch
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader

when = sys.argv[1]
model, optimizer = model_and_optimizer()
training = DataLoader(SlowSamples(64, sample_s=0.0), 4)  # 16 steps an epoch
validation = DataLoader(SlowSamples(16, sample_s=0.0), 4)


class Large:
    def __reduce__(self):
        time.sleep(0.05)
        return str, ("",)


def validate_and_save():
    with torch.no_grad():
        for x, _ in validation:
            model(x)
            time.sleep(0.03)
    torch.save(Large(), "model.pt")


step = 0
for _ in range(2000):
    for x, y in training:
        train_step(model, optimizer, x, y)
        time.sleep(0.01)
        step += 1
        if when == "often" and step % 4 == 0:
            validate_and_save()
    if when == "epochs":
        validate_and_save()
