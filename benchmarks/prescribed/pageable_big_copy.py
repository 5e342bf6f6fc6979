"""Big float batches in pageable memory: the copy to the GPU costs more than the model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE = 256 if device.type == "cuda" else 64


class Volumes(Dataset):
    def __init__(self):
        self.volumes = torch.randn(64, 16, SIDE, SIDE)

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return self.volumes[index % 64], index % 10


train_loader = DataLoader(Volumes(), batch_size=16, shuffle=True, num_workers=4)
model = nn.Sequential(
    nn.Conv2d(16, 32, 7, stride=4),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
