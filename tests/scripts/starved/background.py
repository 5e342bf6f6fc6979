# Samples fetched in a background thread: 5 ms of waiting each beside a step that takes 10 ms, or
# with `spin` 5 ms of Python each beside a step of so many operations, whatever they take.
import sys

import torch
from parts import Samples, Training
from prefetch_generator import BackgroundGenerator
from torch.utils.data import DataLoader

spin = sys.argv[1:] == ["spin"]
samples = Samples(spin_s=0.005) if spin else Samples(wait_s=0.005)
training = Training(compute_s=0.0 if spin else 0.010)
for _ in range(50):
    for x, y in BackgroundGenerator(DataLoader(samples, batch_size=4)):
        if spin:
            for _ in range(10):
                torch.mm(training.matrix, training.matrix)
        training.step(x, y)
