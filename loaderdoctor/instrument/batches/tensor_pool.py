"""One tensor's content, handed out over and over: what the loop does to it is undone.

Loops change their batch in place (`x.div_(255)`), grow gradients on it, or set
`requires_grad`. Each hand-out is therefore a new tensor object over shared storage, and the
storage's version counter, which that object shares, tells whether the content was changed.
Changed content is put back by `restore()` between windows. A loop that changes its batch each
step gets as many copies as a window uses, so that nothing has to be put back inside the timed
part; only when memory doesn't allow that it happens there, and `inline_ns` counts it. What the loop
still holds of an earlier step (the batch before, a graph that is not run back yet) is its own: a
new copy takes its place, and nothing is written into it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loaderdoctor.instrument.batches.h2d import raw_copy

# A prefetcher of the loop holds a batch or two ahead: with that many copies they are different
# tensors already when the first change is noticed.
FIRST_COPIES = 4
# References to a storage that one tensor alone has: its own, and that of the object which is asked.
HELD_BY_ONE = 2
# As many hand-outs as a window has; beyond, putting back inside the window is cheaper than memory.
MAX_COPIES = 128


class Budget:
    """Bytes that may still be taken; shared by the pools of one kind of memory."""

    def __init__(self, n_bytes: int) -> None:
        self._left = n_bytes

    def take(self, n_bytes: int) -> bool:
        """Whether that much was left; it is taken then."""
        if n_bytes > self._left:
            return False
        self._left -= n_bytes
        return True

    def give(self, n_bytes: int) -> None:
        self._left += n_bytes


@dataclass(slots=True)
class _Copy:
    """A tensor that is handed out, and its version when its content was right."""

    tensor: Tensor
    version: int

    @property
    def changed(self) -> bool:
        return self.tensor._version != self.version


class TensorPool:
    """Hands out one tensor's content; `budget` pays for every copy, the first one included.

    Raises MemoryError where not even one copy and its pristine twin fit the budget, TypeError for
    a tensor that can't be cloned as it is.
    """

    def __init__(self, content: Tensor, budget: Budget) -> None:
        self.n_bytes = held_bytes(content)
        if not budget.take(2 * self.n_bytes):
            raise MemoryError(f"2 x {self.n_bytes} bytes are more than may be taken")
        self._budget = budget
        self.inline_ns = 0
        with torch.inference_mode(False), torch.no_grad():
            self._pristine = clone(content, pinned=False)
            self._pinned = _is_pinned(content)
            first = clone(content, pinned=self._pinned)
        self._copies = [_Copy(first, first._version)]
        self._next = 0
        self._n_handed_out = 0
        self._changes_seen = False

    @property
    def n_copies(self) -> int:
        return len(self._copies)

    @property
    def next_tensor(self) -> Tensor:
        """Whose storage the next hand-out shares, unless it was changed."""
        return self._copies[self._next].tensor

    def hand_out(self) -> Tensor:
        """The content, as a tensor object of its own that shares a copy's storage."""
        copy = self._copies[self._next]
        if copy.changed:
            copy = self._put_back_now()
        self._next = (self._next + 1) % len(self._copies)
        self._n_handed_out += 1
        return copy.tensor.detach()

    def restore(self) -> None:
        """Put back what was changed, and get ready for as many hand-outs as since the last call.

        Call it between windows. It finds changes past the version counter too (through
        `.numpy()` or `.data`). Waits for the device.
        """
        self._next = 0
        if not self._n_handed_out:
            return
        if self._pristine.device.type == "cuda" or self._pinned:
            torch.cuda.synchronize()  # copies out of a pinned tensor may still be under way
        changed = False
        with torch.inference_mode(False), torch.no_grad():
            for copy in self._copies:
                if copy.changed or not _same(copy.tensor, self._pristine):
                    changed = True
                    self._refill(copy)
            if changed or self._changes_seen:
                self._grow(min(self._n_handed_out, MAX_COPIES))
        self._changes_seen = self._changes_seen or changed
        self._n_handed_out = 0

    def release(self) -> None:
        """Give every byte back; the pool is of no use afterwards."""
        self._budget.give((1 + len(self._copies)) * self.n_bytes)
        self._copies.clear()
        self._pristine = torch.empty(0)

    def _put_back_now(self) -> _Copy:
        began = time.perf_counter_ns()
        with torch.inference_mode(False), torch.no_grad():
            if not self._changes_seen:
                self._changes_seen = True
                self._grow(FIRST_COPIES)
                self._next = min(1, len(self._copies) - 1)
            copy = self._copies[self._next]
            if copy.changed:
                self._wait_for_users()
                self._refill(copy)
        self.inline_ns += time.perf_counter_ns() - began
        return copy

    def _wait_for_users(self) -> None:
        """No copy or kernel may still read what is about to be written."""
        if self._pinned:
            torch.cuda.synchronize()
        elif self._pristine.device.type == "cuda":
            current = torch.cuda.current_stream(self._pristine.device)
            usual = torch.cuda.default_stream(self._pristine.device)
            if current != usual:
                current.wait_stream(usual)

    def _refill(self, copy: _Copy) -> None:
        if _is_plain(self._pristine) and not _is_held(copy.tensor):
            raw_copy(_writable(copy.tensor), _writable(self._pristine))
        else:
            copy.tensor = clone(self._pristine, pinned=self._pinned)
        copy.version = copy.tensor._version

    def _grow(self, n_copies: int) -> None:
        while len(self._copies) < n_copies and self._budget.take(self.n_bytes):
            fresh = clone(self._pristine, pinned=self._pinned)
            self._copies.append(_Copy(fresh, fresh._version))


def clone(tensor: Tensor, *, pinned: bool) -> Tensor:
    """A copy with the same type, dtype, device, strides and overlaps; pinned where asked.

    It never needs a gradient. Raises TypeError where a pinned copy would not be the same kind of
    tensor. Call it without autograd and outside inference mode.
    """
    source = tensor.detach()
    if not _is_plain(source):
        made = source.clone()
        if pinned:
            made = made.pin_memory()
        if type(made) is not type(tensor):
            raise TypeError(f"a copy of {type(tensor).__name__} is a {type(made).__name__}")
        return made
    sizes, strides = list(source.size()), list(source.stride())
    written = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    made = torch.empty_strided(
        written, strides, dtype=source.dtype, device=source.device, pin_memory=pinned
    )
    raw_copy(made, _writable(source))
    return made.expand(sizes) if written != sizes else made


def held_bytes(tensor: Tensor) -> int:
    """Bytes a copy of this tensor takes: gaps counted, repeated (expanded) values once."""
    if tensor.layout != torch.strided:
        parts = {
            torch.sparse_coo: ("_indices", "_values"),
            torch.sparse_csr: ("crow_indices", "col_indices", "values"),
            torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
            torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
            torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
        }.get(tensor.layout, ("values", "offsets"))
        return sum(held_bytes(getattr(tensor, part)()) for part in parts)
    if tensor.is_nested:
        return int(tensor.numel()) * tensor.element_size()
    if tensor.numel() == 0:
        return 0
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return span * tensor.element_size()


def _is_plain(tensor: Tensor) -> bool:
    """Whether strides say all: no subclass, sparse, nested or quantized tensor."""
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
    )


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and torch.cuda.is_available() and tensor.is_pinned()


def _is_held(tensor: Tensor) -> bool:
    """Whether another tensor, a view or a graph has its memory as well."""
    count: Any = torch._C._storage_Use_Count
    return bool(count(tensor.untyped_storage()._cdata) > HELD_BY_ONE)


def _writable(tensor: Tensor) -> Tensor:
    """The part of an expanded tensor that holds each value once."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(dim) > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _same(tensor: Tensor, pristine: Tensor) -> bool:
    if not _is_plain(pristine):
        return True  # the version counter has to do
    if tensor.device.type == "meta":
        return True
    # Not-a-number differs from itself: put back once too often, which does no harm.
    return torch.equal(tensor, pristine)
