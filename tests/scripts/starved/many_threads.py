# argv: threads that each worker's numpy may use.
import os
import sys

os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[1]
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Matrices(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        a = np.random.default_rng(index).standard_normal((160, 160))
        return torch.from_numpy((a @ a @ a)[:2, :4].copy()), index % 2


if __name__ == "__main__":
    from parts import Training

    training = Training()
    loader = DataLoader(Matrices(), batch_size=8, num_workers=2)
    for _ in range(50):
        for x, y in loader:
            training.step(x, y)
