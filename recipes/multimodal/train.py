"""Trains a small network with two branches on pairs of an image and a sound.

    python train.py --num-workers 2

A sample is a dict: a cut-out of one of two photos, the spectrogram of one second of a noisy tone,
and the class, which is the photo and the pitch together: neither input tells it alone. Both are
prepared one sample at a time; which of the two costs more is what one wants to know.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

PHOTOS = Path(__file__).resolve().parent.parent / "_photos"
NAMES = ("china.jpg", "flower.jpg")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE_SIZE = 96
SAMPLE_RATE = 16_000  # per second; a sound is one second long
PITCHES = (220.0, 330.0, 440.0, 660.0)  # Hz
OVERTONES = (1.0, 0.5, 0.25)  # strength of the tone, twice and three times its pitch
N_FFT, HOP = 512, 160  # windows of 32 ms, every 10 ms: spectrograms of 257 x 101


class Pairs(Dataset[dict[str, Tensor | int]]):
    """Sample i: image (3, 96, 96) and spectrogram (1, 257, 101), float32, and its label."""

    def __init__(self, n_samples: int) -> None:
        self.photos = [Image.open(PHOTOS / name).convert("RGB") for name in NAMES]
        self.image_transform = transforms.Compose(
            [
                transforms.Resize((IMAGE_SIZE, IMAGE_SIZE)),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
        draw = np.random.default_rng(0)  # the data never depend on --seed
        self.noise = torch.from_numpy(draw.normal(size=8 * SAMPLE_RATE).astype(np.float32))
        self.labels = draw.integers(len(NAMES) * len(PITCHES), size=n_samples).tolist()
        self.draws = draw.random((n_samples, 5)).tolist()
        self.window = torch.hann_window(N_FFT)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        label = self.labels[index]
        photo, pitch = divmod(label, len(PITCHES))
        across, down, scale, phase, loudness = self.draws[index]
        return {
            "image": self.image_transform(self._cut_out(self.photos[photo], across, down, scale)),
            "spectrogram": self._spectrogram(PITCHES[pitch], phase, loudness),
            "label": label,
        }

    @staticmethod
    def _cut_out(photo: Image.Image, across: float, down: float, scale: float) -> Image.Image:
        side = int(IMAGE_SIZE * (1 + 2 * scale))
        left = int(across * (photo.width - side))
        top = int(down * (photo.height - side))
        return photo.crop((left, top, left + side, top + side))

    def _spectrogram(self, pitch: float, phase: float, loudness: float) -> Tensor:
        """Logarithmic power of a tone with overtones in noise."""
        angle = 2 * math.pi * (pitch * torch.arange(SAMPLE_RATE) / SAMPLE_RATE + phase)
        start = int(phase * (len(self.noise) - SAMPLE_RATE))
        sound = self.noise[start : start + SAMPLE_RATE].clone()
        for multiple, strength in enumerate(OVERTONES, start=1):
            sound += (0.1 + loudness) * strength * torch.sin(multiple * angle)
        spectrum = torch.stft(sound, N_FFT, hop_length=HOP, window=self.window, return_complex=True)
        return torch.log1p(spectrum.abs().square()).unsqueeze(0)


def branch(channels: int, *, rows: int) -> nn.Sequential:
    """(n, channels, h, w) to (n, 64 x rows): of a place only its row is kept, coarsely."""
    layers: list[nn.Module] = []
    for wide in (16, 32, 64):
        layers += [nn.Conv2d(channels, wide, 3, stride=2, padding=1), nn.ReLU()]
        channels = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((rows, 1)), nn.Flatten())


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = branch(3, rows=1)
        self.spectrogram = branch(1, rows=32)  # a row is a frequency, and pitch is what matters
        self.classifier = nn.Sequential(
            nn.Linear(64 * (1 + 32), 64), nn.ReLU(), nn.Linear(64, len(NAMES) * len(PITCHES))
        )

    def forward(self, image: Tensor, spectrogram: Tensor) -> Tensor:
        both = torch.cat([self.image(image), self.spectrogram(spectrogram)], dim=1)
        logits: Tensor = self.classifier(both)
        return logits


def train_epoch(
    model: nn.Module,
    loader: DataLoader[dict[str, Tensor | int]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    non_blocking: bool,
) -> float:
    model.train()
    total = torch.zeros((), device=device)
    for batch in loader:
        batch = {key: value.to(device, non_blocking=non_blocking) for key, value in batch.items()}
        optimizer.zero_grad()
        logits = model(batch["image"], batch["spectrogram"])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4_000, help="pairs of image and sound")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--non-blocking", action="store_true", help="copy without waiting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    loader = DataLoader(
        Pairs(args.samples),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        pin_memory=args.pin_memory,
    )
    model = TwoBranches().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, loader, optimizer, device, non_blocking=args.non_blocking)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.4f}, {args.samples / seconds:,.0f} pairs/s", flush=True)


if __name__ == "__main__":
    main()
