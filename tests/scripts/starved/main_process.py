# argv: ms of waiting for each sample. 5: the loop waits for the loader; 0: it does not.
import sys

from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training(compute_s=0.01)
for _ in range(50):
    for x, y in DataLoader(Samples(wait_s=float(sys.argv[1]) / 1e3), batch_size=8):
        training.step(x, y)
