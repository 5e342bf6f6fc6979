# A loader class that keeps one iterator for all epochs, over a sampler that never ends.
from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


model, optimizer = model_and_optimizer()
loader = InfiniteLoader(SlowSamples(400), batch_size=4)
for _ in range(200):
    n = 0
    for x, y in loader:
        train_step(model, optimizer, x, y)
        n += 1
    assert n == 100
