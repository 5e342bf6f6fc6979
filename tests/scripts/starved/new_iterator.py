# argv: workers. A loader opened again for each batch.
import sys

from parts import Samples, Training
from torch.utils.data import DataLoader

training = Training()
loader = DataLoader(Samples(400), batch_size=4, shuffle=True, num_workers=int(sys.argv[1]))
while True:
    x, y = next(iter(loader))
    training.step(x, y)
