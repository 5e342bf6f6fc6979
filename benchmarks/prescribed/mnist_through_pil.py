"""MNIST's digits one by one through PIL and a Compose, made in the training process."""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Digits(Dataset):
    def __init__(self, folder, transform):
        images, labels = (gzip.decompress((folder / f"train-{x}-ubyte.gz").read_bytes()) for x in ("images-idx3", "labels-idx1"))
        self.images = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
        self.labels = np.frombuffer(labels, np.uint8, offset=8)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
train_loader = DataLoader(Digits(Path(sys.argv[1]), transform), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
