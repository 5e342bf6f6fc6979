# argv: workers, ms of waiting and ms of computing for each sample, ms of a step's own work.
import sys

from parts import Samples, Training
from torch.utils.data import DataLoader

workers = int(sys.argv[1])
wait_s, spin_s, compute_s = (float(a) / 1e3 for a in sys.argv[2:])
training = Training(compute_s=compute_s)
loader = DataLoader(Samples(wait_s=wait_s, spin_s=spin_s), batch_size=8, num_workers=workers)
for _ in range(50):
    for x, y in loader:
        training.step(x, y)
