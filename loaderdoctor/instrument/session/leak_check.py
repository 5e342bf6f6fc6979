"""What a trial left behind: looked for before the next one opens."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch


class LeakCheck:
    """Whether what the trial before held is gone, without asking the garbage collector.

    A full collection walks every object of the script: 150 to 250 ms of CPU with torch and
    torchvision imported, at each measurement of each trial. What a trial opens is nearly always
    freed when its source is closed. So the collector runs only where something is left: in a cycle
    (a dataset that refers to itself, the traceback of a trial that failed), or as memory of the
    accelerator.
    """

    def __init__(self) -> None:
        self.n_collections = 0
        self._opened: list[weakref.ref[Any]] = []  # by the trial before
        self._allocated_bytes: int | None = None  # on the device, from before it
        self._known = False  # False: the loop ran on its own until now

    def opened(self, made: object) -> None:
        """Something a trial holds that must be gone before the next."""
        try:
            self._opened.append(weakref.ref(made))
        except TypeError:  # it can't be asked whether it lives
            self._known = False

    def clear(self, device: torch.device | None) -> None:
        """Free what is left; the trial before is closed."""
        alive = any(ref() is not None for ref in self._opened)
        before = self._allocated_bytes
        grown = before is not None and (_allocated_bytes(device) or 0) > before
        if alive or grown or not self._known:
            gc.collect()
            self.n_collections += 1
        self._opened.clear()
        self._known = True
        self._allocated_bytes = _allocated_bytes(device)


def _allocated_bytes(device: torch.device | None) -> int | None:
    """Of tensors, by the allocator's own count; None without a CUDA or ROCm device."""
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(device)
