# A loader class that does something to each batch.
import torch
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


class Normalised(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield (x - x.mean()) / (x.std() + 1e-6), y


model, optimizer = model_and_optimizer()
loader = Normalised(SlowSamples(), batch_size=4)
for _ in range(20):
    for x, y in loader:
        assert torch.is_tensor(x)
        train_step(model, optimizer, x, y)
