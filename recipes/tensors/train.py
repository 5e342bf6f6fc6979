"""Trains a small MLP on a table that is already in memory as tensors.

    python train.py --epochs 5

20,000 rows of 20 numbers in a TensorDataset: nothing to read or decode, and yet fetching rows one
by one and stacking them into batches takes longer than training on them.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

N_COLUMNS = 20


def make_table(n_rows: int) -> tuple[Tensor, Tensor]:
    """Rows (n, 20) float32 and a yes/no label (n,) int64 that depends on them non-linearly."""
    draw = torch.Generator().manual_seed(0)  # the data never depend on --seed
    rows = torch.randn(n_rows, N_COLUMNS, generator=draw)
    weights = torch.randn(N_COLUMNS, 2, generator=draw)
    first, second = (rows @ weights).unbind(dim=1)
    return rows, (first * second > 0).long()


def train_epoch(
    model: nn.Module,
    loader: DataLoader[tuple[Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    model.train()
    total = torch.zeros((), device=device)
    for rows, labels in loader:
        rows = rows.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000, help="rows of the table")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    loader = DataLoader(
        TensorDataset(*make_table(args.samples)),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        pin_memory=args.pin_memory,
    )
    model = nn.Sequential(
        nn.Linear(N_COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, loader, optimizer, device)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.4f}, {args.samples / seconds:,.0f} rows/s", flush=True)


if __name__ == "__main__":
    main()
