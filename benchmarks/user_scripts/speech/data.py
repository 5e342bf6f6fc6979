import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """Fixed pieces of every recording, as mel-like bands."""

    def __init__(self, path, piece=4000):
        self.waves = np.load(path, mmap_mode="r")
        self.piece = piece
        self.per_wave = self.waves.shape[1] // piece
        self.bands = np.abs(np.random.RandomState(0).randn(129, 40))

    def __len__(self):
        return len(self.waves) * self.per_wave

    def __getitem__(self, i):
        wave, part = divmod(i, self.per_wave)
        clip = np.asarray(self.waves[wave, part * self.piece:(part + 1) * self.piece], np.float64)
        frames = np.stack([clip[s:s + 256] for s in range(0, self.piece - 256, 16)])
        power = np.abs(np.fft.rfft(frames * np.hamming(256))) ** 2
        return torch.tensor(np.log(power @ self.bands + 1e-6), dtype=torch.float32), wave % 5


def build_dataloader(cfg, split="train"):
    dataset = Clips(cfg.data_path)
    kwargs = {"batch_size": cfg.batch_size, "num_workers": cfg.num_workers}
    if split == "train":
        kwargs["shuffle"] = True
    return DataLoader(dataset, **kwargs)
