# argv: sleep per sample in ms. 5: the loader is what the loop waits for; 0.2: it is not.
import sys

from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training(compute_s=0.01)
for _ in range(50):
    for x, y in DataLoader(Samples(wait_s=float(sys.argv[1]) / 1e3), batch_size=8):
        training.step(x, y)
