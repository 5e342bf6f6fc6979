# Workers start again for each epoch of eight steps; argv[1] "kept": they don't; "rebuilt": in a
# loader that each epoch builds, of samples that take long enough for workers to be worth it.
import sys

from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training(compute_s=0.004)
loader = DataLoader(
    Samples(32), batch_size=4, num_workers=2, persistent_workers=sys.argv[1] == "kept"
)
for _ in range(2000):
    if sys.argv[1] == "rebuilt":
        loader = DataLoader(Samples(32, wait_s=0.002), batch_size=4, num_workers=2)
    for x, y in loader:
        training.step(x, y)
