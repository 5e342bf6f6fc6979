"""MNIST's digits one by one through PIL and a Compose, made in the training process."""

import sys
from pathlib import Path

import torch
from clock import epochs
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MNIST = Path(__file__).parents[2] / "recipes" / "mnist"
sys.path.insert(0, str(MNIST))
from idx import load_mnist

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Digits(Dataset):
    def __init__(self, transform):
        self.images, self.labels = load_mnist(MNIST / "data", train=True)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
train_loader = DataLoader(Digits(transform), batch_size=64, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in epochs(len(train_loader)):
    for x, y in train_loader:
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
