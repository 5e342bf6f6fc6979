from prefetch_generator import BackgroundGenerator
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


class DataLoaderX(DataLoader):
    def __iter__(self):
        return BackgroundGenerator(super().__iter__(), max_prefetch=4)


model, optimizer = model_and_optimizer()
loader = DataLoaderX(SlowSamples(), batch_size=4)
for _ in range(20):
    for x, y in loader:
        train_step(model, optimizer, x, y)
