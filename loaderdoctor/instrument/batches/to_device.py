"""Moves the tensors of a batch that the loop itself moves to the accelerator, and no other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loaderdoctor.instrument.batches.batch_tree import rebuild
from loaderdoctor.instrument.batches.h2d import raw_to
from loaderdoctor.instrument.wire.records import TransferRecord


class ToDevice:
    """Which tensors of a batch go to the device.

    By their place in the batch where the loop's calls name it; where none does (the loop copies
    what it made of the batch), by dtype and the shape of one sample. Lengths and other tensors
    that the loop reads on the host stay there.
    """

    def __init__(
        self, device: torch.device, transfers: tuple[TransferRecord, ...], *, non_blocking: bool
    ) -> None:
        self.device = device
        self.non_blocking = non_blocking
        self._paths = {transfer.path for transfer in transfers if transfer.path is not None}
        self._kinds = {(t.dtype, t.shape[1:]) for t in transfers}

    def moves(self, path: str, tensor: Tensor) -> bool:
        """Whether that tensor of a batch goes to the device."""
        if tensor.device == self.device:
            return False
        if self._paths:
            return path in self._paths
        dtype = str(tensor.dtype).removeprefix("torch.")
        return (dtype, tuple(tensor.shape[1:])) in self._kinds

    def move(self, batch: Any) -> tuple[Any, list[Tensor]]:
        """The batch with those tensors on the device, and these, new ones only.

        Copies are queued on the calling thread's current stream. Raises UnsupportedBatch.
        """
        moved: list[Tensor] = []

        def place(path: str, tensor: Tensor) -> Tensor:
            if not self.moves(path, tensor):
                return tensor
            made = raw_to(tensor, self.device, non_blocking=self.non_blocking)
            moved.append(made)
            return made

        return rebuild(batch, place), moved
