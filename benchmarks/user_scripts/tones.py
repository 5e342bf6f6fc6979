"""Spectrograms of recordings, with a random cut and noise."""
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "batch_size": 16,
    "shuffle": True,
    "drop_last": True,
}


class Tones(Dataset):
    def __init__(self, path, length=8192):
        self.waves = np.load(path)
        self.length = length
        self.window = np.hanning(512)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        wave = self.waves[index].astype(np.float32) / 32768
        start = np.random.randint(0, len(wave) - self.length)
        wave = wave[start:start + self.length]
        wave = wave + np.random.normal(0, 0.01, self.length)
        frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::32] * self.window
        spec = np.log1p(np.abs(np.fft.rfft(frames, axis=1)))
        return torch.from_numpy(spec.T.astype(np.float32)), index % 4


loader_kwargs = dict(CONFIG)
train_loader = DataLoader(Tones("data/recordings.npy"), **loader_kwargs)

net = torch.nn.Sequential(torch.nn.Conv1d(257, 32, 5, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool1d(1),
                          torch.nn.Flatten(), torch.nn.Linear(32, 4))
optim = torch.optim.Adam(net.parameters())

for epoch in range(1000):
    for step, (spec, label) in enumerate(train_loader):
        optim.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(spec), label)
        loss.backward()
        optim.step()
