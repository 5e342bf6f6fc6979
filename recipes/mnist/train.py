"""Trains a small CNN on MNIST the way most first training scripts do.

    python train.py --epochs 3 --num-workers 2

Each sample is an image that goes through PIL and torchvision's transforms, one at a time; the
images are small and so is the network, so feeding it costs more than training it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from idx import DataError, load_mnist
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.1307,), (0.3081,)  # of the 60,000 training images, scaled to 0…1


class Digits(Dataset[tuple[Tensor, int]]):
    """Sample i: the transformed image (1, 28, 28) float32 and its digit."""

    def __init__(self, data_dir: Path, *, train: bool) -> None:
        self.images, self.labels = load_mnist(data_dir, train=train)
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[index])
        return self.transform(image), int(self.labels[index])


class Net(nn.Module):
    """Two convolutions, two linear layers: about 420,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, int]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images = images.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def accuracy(
    model: nn.Module, loader: DataLoader[tuple[Tensor, int]], device: torch.device
) -> float:
    model.eval()
    correct = n_seen = 0
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1)
        correct += int((predicted == labels.to(device)).sum())
        n_seen += len(labels)
    return correct / n_seen


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder with MNIST's IDX files, also in torchvision's layout (default: data/)",
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--threads", type=int, default=1, help="torch's own threads; more compete with the workers"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    try:
        train_set = Digits(args.data_dir, train=True)
        test_set = Digits(args.data_dir, train=False)
    except DataError as error:
        raise SystemExit(str(error)) from None

    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        pin_memory=args.pin_memory,
    )
    test_loader = DataLoader(test_set, batch_size=256, num_workers=args.num_workers)

    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, device)
        seconds = time.perf_counter() - start
        right = accuracy(model, test_loader, device)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {right:.1%}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
