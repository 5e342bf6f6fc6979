"""`.item()` after every step, so the host never runs ahead, beside a loader without workers."""

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
        wave = torch.sin(torch.arange(10_000) * (index + 1) * 1e-3)
        return torch.stft(wave, 512, window=WINDOW, return_complex=True).abs()[:128, :32], index % 10


train_loader = DataLoader(Waves(), batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Unflatten(1, (1, 128)), nn.Conv2d(1, CHANNELS, 5), nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 5), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * CHANNELS, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running = 0.0
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running = 0.9 * running + 0.1 * loss.item()
