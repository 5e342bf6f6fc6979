"""What batches are like: shapes that vary, labels, padding, and what their memory costs.

Shapes are what a batch looks like to code that depends on it: compilers, autotuners and caches of
plans work once for each new shape, some for each new number that code branches on. One label in
each batch tells of data unshuffled. Padding are cells behind the end of a sample, up to the longest
one's: told by a mask, where the batch has one; else by rows that end in a run of one and the same
value. That a tensor is padded at all, several batches tell: padded to its longest sample, each has
another length. Runs in the measuring process, in steps that nobody times.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from loaderdoctor.instrument.batches import UnsupportedBatch, integers, tensors
from loaderdoctor.instrument.system.cpu_use import thread_faults
from loaderdoctor.instrument.wire.measured import PageRecord
from loaderdoctor.instrument.wire.records import LabelsRecord, PaddingRecord

# Batches by which it is judged whether shapes vary now: a change a long time ago is none.
N_RECENT = 32
# Signatures remembered; a loop with more of them makes new ones all the time.
MAX_KNOWN = 100_000
# Of a batch's whole numbers, those looked at: lengths and counts come first, longer lists are data.
MAX_INTEGERS = 64
# Looking at batches may take this part of the time, in steps that nobody times: a batch of 200,000
# objects takes 100 ms to walk.
MAX_SHARE_OF_TIME = 0.05
MIN_SAMPLES: Final = 8  # fewer are alike by chance
_NAMED = re.compile(r"label|target|class|\bcls\b|category", re.IGNORECASE)
_FIRST, _SECOND = "[0]", "[1]"  # of (inputs, labels)
# Larger tensors are not looked at: 4 million values of float32 take about 10 ms of one CPU.
MAX_VALUES = 4_000_000
# Shorter rows may end in equal values by chance, and are no text or sound.
MIN_LENGTH = 8
# Of the rows, so many end in the value, or it is no padding.
MIN_PADDED_ROWS = 0.25


@dataclass(frozen=True, slots=True)
class Signature:
    """`structure`: type, paths, shapes, dtypes, devices. `numbers`: what code may branch on."""

    structure: tuple[Any, ...]
    numbers: tuple[int, ...] = ()


def structure(batch: Any, found: list[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """Of a batch whose tensors are `found`: hashable, equal for batches of one shape."""
    return (
        type(batch),
        tuple((path, tuple(t.shape), t.dtype, t.device, t.layout) for path, t in found),
    )


def signature(batch: Any) -> Signature:
    """Of any batch. Raises UnsupportedBatch."""
    return Signature(structure(batch, tensors(batch)), integers(batch, MAX_INTEGERS))


class Shapes:
    """The signatures of a loader's batches, as far as they were looked at."""

    def __init__(self) -> None:
        self._known: set[Signature] = set()
        self._recent: deque[tuple[Signature, bool]] = deque(maxlen=N_RECENT)  # was it new then
        self._free_at_ns = 0

    def glance(self, batch: Any) -> None:
        """`see`, where looking at such batches has not taken too much of the time."""
        began = perf_counter_ns()
        if began < self._free_at_ns:
            return
        self.see(batch)
        now = perf_counter_ns()
        self._free_at_ns = now + int((now - began) / MAX_SHARE_OF_TIME)

    def see(self, batch: Any) -> bool:
        """The loop is given this batch: whether its like was never seen before."""
        try:
            seen = signature(batch)
        except (UnsupportedBatch, RuntimeError, TypeError):  # the user's own types
            return False
        new = seen not in self._known
        if new and len(self._known) < MAX_KNOWN:
            self._known.add(seen)
        self._recent.append((seen, new))
        return new

    @property
    def vary(self) -> bool:
        """Whether recent batches differ in what code may depend on."""
        return len({seen for seen, _ in self._recent}) > 1

    @property
    def novel(self) -> bool:
        """Whether new ones were still coming in the later half of the recent batches."""
        later = list(self._recent)[len(self._recent) // 2 :]
        return self.vary and any(new for _, new in later)

    @property
    def last(self) -> Signature | None:
        """Of the latest batch; None before the first."""
        return self._recent[-1][0] if self._recent else None


class Labels:
    """Of batches as they come; nothing of them is kept but one number each."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._n = 0
        self._single: list[int] = []
        # Dimensions of the inputs that were the largest number in every batch: then it is a length.
        self._padded_to: set[int] | None = None

    def add(self, batch: Any) -> None:
        try:
            found = dict(tensors(batch))
        except UnsupportedBatch:
            return
        if self._path is None:
            self._path = _labels_path(found)
        labels = found.get(self._path or "")
        if labels is None or not _is_labels(labels):
            return
        self._n += 1
        if self._path == _SECOND:
            padded = _dimensions_of(found.get(_FIRST), int(labels.max()))
            self._padded_to = padded if self._padded_to is None else self._padded_to & padded
        first = int(labels.reshape(-1)[0])
        if bool((labels == first).all()):
            self._single.append(first)

    def record(self) -> LabelsRecord | None:
        """None where no batch had any, or they were the lengths that inputs are padded to."""
        if self._path is None or not self._n or self._padded_to:
            return None
        return LabelsRecord(
            path=self._path,
            n_batches=self._n,
            n_of_one_label=len(self._single),
            n_labels=len(set(self._single)),
        )


def _labels_path(found: dict[str, Tensor]) -> str | None:
    named = [path for path, tensor in found.items() if _NAMED.search(path) and _is_labels(tensor)]
    if len(named) == 1:
        return named[0]
    return _SECOND if len(found) == 2 and _is_labels(found.get(_SECOND)) else None


def _dimensions_of(inputs: Tensor | None, size: int) -> set[int]:
    shape = () if inputs is None else inputs.shape
    return {i for i, n in enumerate(shape) if n == size}


def _is_labels(tensor: Tensor | None) -> bool:
    return (
        tensor is not None
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.int64, torch.int32, torch.uint8)
        and (tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1))
        and tensor.shape[0] >= MIN_SAMPLES
    )


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


# What a worker's batch costs before anything is computed: its pages mapped, and let go again.
#
# A batch arrives in shared memory that this process has never seen. Whoever reads it first takes a
# page fault for every few pages, and whoever drops it last unmaps and frees them all; neither is
# waiting, and no trace names either. Both are timed on batches that are thrown away between windows
# anyway; reading also on batches that are recorded to be handed out again. In CPU time: while
# batches are thrown away workers run at full speed, and the thread stands ready without a CPU more
# than in a step.

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
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return plain and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _bytes_of(tensor: Tensor) -> tuple[int, int]:
    """Address of the first byte, and bytes to the last one."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _read(ranges: list[tuple[int, int]]) -> int:
    """One byte of each page; the CPU time of that (ns). Profilers would see torch operations."""
    start_ns = thread_time_ns()
    for address, n_bytes in ranges:
        if n_bytes:
            memory = (ctypes.c_ubyte * n_bytes).from_address(address)
            np.frombuffer(memoryview(memory), dtype=np.uint8)[::PAGE_BYTES].max()
    return thread_time_ns() - start_ns
