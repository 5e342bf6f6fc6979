"""A hand-written prefetcher copies the next batch on its own stream; the workers are too few."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHANNELS = 32 if device.type == "cuda" else 2
WINDOW = torch.hann_window(512)


class Waves(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        wave = torch.sin(torch.arange(40_000) * (index + 1) * 1e-3)
        return torch.stft(wave, 512, window=WINDOW, return_complex=True).abs()[:128, :128], index % 10


class Prefetcher:
    def __init__(self, loader):
        self.batches = iter(loader)
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.preload()

    def preload(self):
        self.batch = next(self.batches, None)
        if self.batch is not None and self.stream is not None:
            with torch.cuda.stream(self.stream):
                self.batch = [t.to(device, non_blocking=True) for t in self.batch]

    def __iter__(self):
        while self.batch is not None:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                for tensor in self.batch:
                    tensor.record_stream(torch.cuda.current_stream())
            batch = self.batch
            self.preload()
            yield batch


train_loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=1, pin_memory=True)
model = nn.Sequential(
    nn.Unflatten(1, (1, 128)), nn.Conv2d(1, CHANNELS, 5), nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 5), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * CHANNELS, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in Prefetcher(train_loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
