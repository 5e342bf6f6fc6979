"""How much of a batch is padding: cells behind the end of a sample, up to the longest one's.

Told by a mask, where the batch has one; else by rows that end in a run of one and the same value.
That a tensor is padded at all, several batches tell: padded to its longest sample, each has
another length (`Lengths`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, tensors
from loaderdoctor.instrument.wire.records import PaddingRecord

# Larger tensors are not looked at: 4 million values of float32 take about 10 ms of one CPU.
MAX_VALUES = 4_000_000
# Shorter rows may end in equal values by chance, and are no text or sound.
MIN_LENGTH = 8
# Of the rows, so many end in the value, or it is no padding.
MIN_PADDED_ROWS = 0.25


@dataclass(frozen=True, slots=True)
class Cells:
    """One tensor of one batch: its length, all its cells, and those that are padding."""

    path: str
    length: int
    n: int
    n_padding: int
    by_mask: bool


@dataclass(slots=True)
class Lengths:
    """What several batches of one loader show."""

    seen: list[Cells] = field(default_factory=list)
    n_batches: int = 0

    def add(self, batch: Any) -> None:
        """Look at a batch; nothing of it is kept."""
        self.n_batches += 1
        self.seen += cells(batch)

    def record(self) -> PaddingRecord | None:
        """Of the tensor with most cells that is padded; None where none is known to be."""
        paths = Counter(dict.fromkeys({x.path for x in self.seen}, 0))
        for one in self.seen:
            paths[one.path] += one.n
        for path, n in paths.most_common():
            mine = [x for x in self.seen if x.path == path]
            lengths = {x.length for x in mine}
            padding = sum(x.n_padding for x in mine)
            if not padding or not (mine[0].by_mask or len(lengths) > 1):
                continue  # rows of one length that end alike: images, one-hot labels
            return PaddingRecord(
                path=path,
                share=padding / n,
                n_batches=len(mine),
                one_length=len(lengths) == 1 and len(mine) > 1,
            )
        return None


def cells(batch: Any) -> list[Cells]:
    """Of each tensor of a batch in host memory that may be padded; masks alone where there are."""
    try:
        found = [(path, t) for path, t in tensors(batch) if _fits(t)]
    except UnsupportedBatch:
        return []
    masks = [c for path, t in found if "mask" in path.lower() and (c := _of_mask(path, t))]
    return masks or list(_of_values(found))


def _fits(tensor: Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return (
        plain
        and tensor.ndim >= 2
        and tensor.shape[0] >= 2
        and tensor.shape[1] >= MIN_LENGTH
        and tensor.numel() <= MAX_VALUES
    )


def _of_mask(path: str, tensor: Tensor) -> Cells | None:
    """A mask of ones and zeros, whose zeros stand at one end of each row."""
    if tensor.ndim != 2:
        return None
    kept = tensor.detach() != 0
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        return None
    steps = kept[:, 1:].int() - kept[:, :-1].int()
    if not (bool((steps <= 0).all()) or bool((steps >= 0).all())):
        return None
    n_padding = tensor.numel() - int(kept.sum())
    return Cells(path, tensor.shape[1], tensor.numel(), n_padding, by_mask=True)


def _of_values(found: list[tuple[str, Tensor]]) -> Iterator[Cells]:
    for path, tensor in found:
        rows = tensor.detach().reshape(tensor.shape[0], tensor.shape[1], -1)
        last = rows[:, -1:, :]
        runs = (rows == last).all(-1).flip(1).int().cumprod(1).sum(1)  # of each row, at its end
        ends = [
            float(row[0]) for row, run in zip(last[:, 0, :], runs, strict=True)
            if run >= 2 and bool((row == row[0]).all())
        ]  # fmt: skip
        if not ends:
            continue
        value, n_rows = Counter(ends).most_common(1)[0]
        padded = (last[:, 0, :] == value).all(-1) & (runs >= 2)
        # The longest sample ends in a value of its own.
        if n_rows < MIN_PADDED_ROWS * len(rows) or bool(padded.all()):
            continue
        n_padding = int(runs[padded].sum()) * rows.shape[2]
        yield Cells(path, tensor.shape[1], tensor.numel(), n_padding, by_mask=False)
