# Samples that wait 5 ms each, fetched in a background thread.
from parts import Samples, Training
from prefetch_generator import BackgroundGenerator
from torch.utils.data import DataLoader

training = Training(compute_s=0.010)
for _ in range(50):
    for x, y in BackgroundGenerator(DataLoader(Samples(wait_s=0.005), batch_size=4)):
        training.step(x, y)
