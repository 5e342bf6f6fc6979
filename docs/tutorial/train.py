"""A first MNIST script, as many are: right, and slow. The digits come with the repository."""

import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
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
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(20):
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
