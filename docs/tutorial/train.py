"""A first MNIST script, as many are: right, and slow. The digits come with the repository."""

import argparse
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

MNIST = Path(__file__).parents[2] / "recipes" / "mnist"
sys.path.insert(0, str(MNIST))
from idx import load_mnist  # noqa: E402


class Digits(Dataset):
    def __init__(self, train):
        self.images, self.labels = load_mnist(MNIST / "data", train=train)
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.images[i])), int(self.labels[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = Digits(train=True)
    # An epoch as long as MNIST's: 60,000 digits, of the 4,500 that are here.
    sampler = RandomSampler(digits, num_samples=60_000)
    loader = DataLoader(digits, batch_size=64, sampler=sampler)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512), nn.ReLU(),
        nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
