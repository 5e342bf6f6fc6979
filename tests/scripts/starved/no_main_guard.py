# Workers are spawned, and the script has no main guard: a sample waits 4 ms.
import torch.multiprocessing
from parts import Samples, Training
from torch.utils.data import DataLoader

torch.multiprocessing.set_start_method("spawn", force=True)
training = Training(compute_s=0.002)
loader = DataLoader(Samples(512, wait_s=0.004), batch_size=8)
for _ in range(2000):
    for x, y in loader:
        training.step(x, y)
