# argv: workers of both loaders, start method, how they are built (once, helper), what validation
# sample costs (ms; "none": no validation). Training samples wait 1 ms. One dataset object for both.
import sys
import time

import torch
from parts import Training
from torch.utils.data import DataLoader, Dataset, Subset

N_TRAIN, N_VALIDATION = 160, 32


class Crop:
    def __call__(self, x):
        time.sleep(0.001)
        return x


class Warp:
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __call__(self, x):
        time.sleep(self.wait_s)
        return x


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class Images(Dataset):
    def __init__(self, validation_s):
        self.train = Compose([Crop()])
        self.validation = Compose([Warp(validation_s)])

    def __len__(self):
        return N_TRAIN + N_VALIDATION

    def __getitem__(self, index):
        x = torch.full((8,), float(index % 7))
        return (self.train if index < N_TRAIN else self.validation)(x), index % 2


def make(dataset, shuffle):
    more = {"multiprocessing_context": METHOD, "persistent_workers": True} if N_WORKERS else {}
    return DataLoader(dataset, 8, shuffle=shuffle, num_workers=N_WORKERS, **more)


N_WORKERS, METHOD, HOW, COST = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]

if __name__ == "__main__":
    images = Images(0.0 if COST == "none" else float(COST) / 1e3)
    training_set = Subset(images, range(N_TRAIN))
    validation_set = Subset(images, range(N_TRAIN, N_TRAIN + N_VALIDATION))
    training = Training(compute_s=0.004)
    if HOW == "once":
        train, validation = make(training_set, True), make(validation_set, False)
    for _ in range(400):
        for x, y in train if HOW == "once" else make(training_set, True):
            training.step(x, y)
        if COST != "none":
            with torch.no_grad():
                for x, y in validation if HOW == "once" else make(validation_set, False):
                    training.model(x)
