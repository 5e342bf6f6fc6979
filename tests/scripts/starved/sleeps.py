# A loop that waits for something of its own in each step.
import time

from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training(compute_s=0.004)
for _ in range(200):
    for x, y in DataLoader(Samples(), batch_size=4):
        training.step(x, y)
        time.sleep(0.02)
