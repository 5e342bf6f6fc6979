"""Trains a small transformer encoder on token sequences of very different lengths.

    python train.py                     # every batch padded to --max-length, in plain Python
    python train.py --trim              # batches of similar length, padded to their own longest
    python train.py --trim --vectorised # and padded by tensor operations

The task is to tell which of four Markov chains wrote a sequence.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from markov import N_CHAINS, PAD, VOCABULARY, LengthBuckets, Sample, Sequences
from torch import Tensor, nn
from torch.utils.data import DataLoader

Collate = Callable[[list[Sample]], tuple[Tensor, Tensor]]


def pad_in_python(samples: list[Sample], length: int | None) -> tuple[Tensor, Tensor]:
    """Tokens (n, length) and labels (n,), both int64; `length` None means the longest here."""
    width = length or max(len(tokens) for tokens, _ in samples)
    rows = []
    labels = []
    for tokens, label in samples:
        rows.append([*tokens, *[PAD] * (width - len(tokens))])
        labels.append(label)
    return torch.tensor(rows), torch.tensor(labels)


def pad_vectorised(samples: list[Sample], length: int | None) -> tuple[Tensor, Tensor]:
    """The same from samples that are tensors already, one copy per sequence."""
    width = length or max(len(tokens) for tokens, _ in samples)
    padded = torch.full((len(samples), width), PAD)
    for row, (tokens, _) in zip(padded, samples, strict=True):
        row[: len(tokens)] = cast(Tensor, tokens)
    return padded, torch.tensor([label for _, label in samples])


class Encoder(nn.Module):
    """Token and position embeddings, two encoder layers, the mean over real tokens, one linear."""

    def __init__(self, max_length: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.positions = nn.Embedding(max_length, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=2, dim_feedforward=2 * width, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, N_CHAINS)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == PAD
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(places)
        hidden = self.layers(embedded, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(-1)
        mean = (hidden * real).sum(dim=1) / real.sum(dim=1)
        logits: Tensor = self.classifier(mean)
        return logits


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    model.train()
    total = torch.zeros((), device=device)
    for tokens, labels in loader:
        tokens = tokens.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


def make_loader(args: argparse.Namespace) -> DataLoader[Sample]:
    sequences = Sequences(args.samples, max_length=args.max_length, as_tensors=args.vectorised)
    pad = pad_vectorised if args.vectorised else pad_in_python
    collate: Collate = partial(pad, length=None if args.trim else args.max_length)
    make = partial(
        DataLoader,
        sequences,
        collate_fn=collate,
        num_workers=args.num_workers,
        pin_memory=args.pin_memory,
    )
    if args.trim:
        return make(batch_sampler=LengthBuckets(sequences.lengths, args.batch_size))
    return make(batch_size=args.batch_size, shuffle=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8_000, help="sequences to draw")
    parser.add_argument("--max-length", type=int, default=256, help="longer ones are cut off")
    parser.add_argument(
        "--trim", action="store_true", help="batch by length, pad to the longest of the batch"
    )
    parser.add_argument(
        "--vectorised", action="store_true", help="pad by tensor operations, not in Python"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    loader = make_loader(args)
    model = Encoder(args.max_length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, loader, optimizer, device)
        seconds = time.perf_counter() - start
        speed = args.samples / seconds
        print(f"epoch {epoch}: loss {loss:.4f}, {speed:,.0f} sequences/s", flush=True)


if __name__ == "__main__":
    main()
