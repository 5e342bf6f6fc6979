from tiny import SlowSamples, model_and_optimizer, train_step
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self):
        self.model, self.optimizer = model_and_optimizer()
        self.loader = DataLoader(SlowSamples(), 4)

    def fit(self):
        while True:
            self._run_epoch()

    def _run_epoch(self):
        self._run_batches(iter(self.loader))

    def _run_batches(self, batches):
        for x, y in batches:
            self._run_step(x, y)

    def _run_step(self, x, y):
        train_step(self.model, self.optimizer, x, y)


Trainer().fit()
