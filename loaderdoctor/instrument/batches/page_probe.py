"""What a worker's batch costs before anything is computed: its pages mapped, and let go again.

A batch arrives in shared memory that this process has never seen. Whoever reads it first takes a
page fault for every few pages, and whoever drops it last unmaps and frees them all; neither is
waiting, and no trace names either. Both are timed here on batches that are thrown away between
windows anyway; reading also on batches that are recorded to be handed out again, in steps that
nobody times. In CPU time: while batches are thrown away workers run at full speed, and the thread
stands ready without a CPU more than in a step.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.system.cpu_use import thread_faults
from loaderdoctor.instrument.wire.window_records import PageRecord

if TYPE_CHECKING:
    from torch import Tensor

PAGE_BYTES = 4096
# As many as a replay buffer holds; the median counts. One of 64 MiB takes 30 to 60 ms
# on a virtual machine (`benchmarks/page_faults.py`), of 1 MiB half a millisecond.
MAX_PROBED = 8


@dataclass(frozen=True, slots=True)
class _Touch:
    n_bytes: int
    n_faults: int
    touch_ns: int


@dataclass(slots=True)
class PageProbe:
    """Figures of one loader's batches. Belongs to the thread that fetches them."""

    _touched: list[_Touch] = field(default_factory=list)
    _released_ns: list[int] = field(default_factory=list)

    def use_up(self, held: list[Any]) -> None:
        """Read a byte of each page of the batch in `held`, and drop it: its last reference."""
        if not held or len(self._released_ns) >= MAX_PROBED or not self.touch(held[0]):
            held.clear()
            return
        start_ns = thread_time_ns()
        held.clear()
        self._released_ns.append(thread_time_ns() - start_ns)

    def touch(self, batch: Any) -> bool:
        """Read a byte of each page of a batch that nobody has read yet; False: it has none."""
        if sys.platform != "linux":
            return False
        from loaderdoctor.instrument.batches.batch_tree import UnsupportedBatch, tensors

        try:
            ranges = [_bytes_of(t) for _, t in tensors(batch) if _is_plain(t)]
        except (UnsupportedBatch, RuntimeError, NotImplementedError):
            ranges = []  # a tensor of the user's own kind that has no memory to speak of
        before = thread_faults()
        first_ns = _read(ranges)
        after = thread_faults()
        if before is None or after is None or not ranges:
            return False
        if len(self._touched) < 2 * MAX_PROBED:
            touch_ns = max(0, first_ns - _read(ranges))
            n_bytes = sum(n for _, n in ranges)
            self._touched.append(_Touch(n_bytes, after - before, touch_ns))
        return True

    def record(self) -> PageRecord | None:
        """Medians of a batch; None where none was probed yet. Of dropping one: 0 until one was."""
        if not self._touched:
            return None
        return PageRecord(
            n_batches=len(self._touched),
            n_bytes=round(statistics.median(x.n_bytes for x in self._touched)),
            n_faults=round(statistics.median(x.n_faults for x in self._touched)),
            touch_ns=round(statistics.median(x.touch_ns for x in self._touched)),
            release_ns=round(statistics.median(self._released_ns or [0])),
        )


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is an ordinary tensor in host memory, whose bytes lie where it says."""
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Address of the first byte, and bytes to the last one."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _read(ranges: list[tuple[int, int]]) -> int:
    """One byte of each page; the CPU time of that (ns). Profilers would see torch operations."""
    import numpy as np

    start_ns = thread_time_ns()
    for address, n_bytes in ranges:
        if n_bytes:
            memory = (ctypes.c_ubyte * n_bytes).from_address(address)
            np.frombuffer(memoryview(memory), dtype=np.uint8)[::PAGE_BYTES].max()
    return thread_time_ns() - start_ns
