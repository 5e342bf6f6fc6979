"""Ablation of the copies: the loop's own host-to-device calls, answered with ready device tensors.

What stays in host memory stays there, whatever else the loop does to its batch. The first time a
call is seen it is made and its result kept; afterwards the loop gets that result at once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loaderdoctor.instrument.batches.h2d import H2DCall, H2DHook, raw_copy, raw_to
from loaderdoctor.instrument.batches.tensor_pool import Budget, TensorPool
from loaderdoctor.instrument.system.memory import gpu_free_bytes
from loaderdoctor.instrument.wire.measured import CopyRecord

# With more of the copies let through, what is left of the step is no step without copies.
MAX_MISS_SHARE = 0.20
# Device memory that answers may take, of what is free at the first.
MAX_SHARE_OF_FREE_MEMORY = 0.10

_Key = tuple[Any, ...]


class FreeCopies(H2DHook):
    """Answers the k-th host-to-device call of a step with a device tensor kept from earlier.

    Learning comes first: until `start_counting` a call not seen at its place is made and kept.
    Learn for at least `n_batches` steps where batches are recorded ones; `position` says which of
    them was handed out last, so that tensors of one batch stay together.
    """

    def __init__(self, device: torch.device, *, position: Callable[[], int] = lambda: 0) -> None:
        super().__init__(device.type)
        self._device = device
        self._position = position
        self._budget: Budget | None = None
        self._at_place: dict[tuple[_Key, int], TensorPool] = {}
        self._anywhere: dict[_Key, TensorPool] = {}
        self._buffers = _Buffers()
        # Of batches that come once, by where they lie on the host: each tensor there, its version,
        # and the same on the device; None once the loop was given that.
        self._ahead: dict[int, tuple[Tensor, int, Tensor | None]] = {}
        self._counting = False
        self._short_of_memory = False
        self.hits = 0
        self.misses = 0

    @property
    def reason(self) -> str | None:
        """Why windows so far say nothing about the step without copies; None where they do."""
        total = self.hits + self.misses
        if not total or self.misses <= MAX_MISS_SHARE * total:
            return None
        why = (
            "device memory for ready copies is short"
            if self._short_of_memory
            else (
                "shapes change from step to step, a batch is copied more than once, or the copies "
                "carry gradients or parameters"
            )
        )
        return f"{self.misses} of {total} copies could not be answered: {why}"

    def counts(self) -> CopyRecord:
        """Calls answered and let through since `start_counting`."""
        return CopyRecord(n_hits=self.hits, n_misses=self.misses)

    @property
    def inline_ns(self) -> int:
        """Host time spent within calls on undoing in-place changes."""
        return sum(pool.inline_ns for pool in self._pools())

    def start_counting(self) -> None:
        """The measured part begins: hits and misses count from 0."""
        self._counting = True
        self.hits = self.misses = 0

    def stop_counting(self) -> None:
        """Learn again: what is not known at its place is made and kept."""
        self._counting = False

    def copy_ahead(self, tensors: Iterable[Tensor]) -> None:
        """Copy host tensors of batches that the loop will get once; waits for the device.

        Who moves one of them as it is first gets the copy, to change as one of torch's; who moves
        it again is let through, as are those beyond the budget.
        """
        self._ahead.clear()
        budget = self._new_budget()
        for tensor in tensors:
            if tensor.device.type != "cpu" or not tensor.numel():
                continue
            if not budget.take(tensor.numel() * tensor.element_size()):
                self._short_of_memory = True
                break
            with torch.no_grad():
                moved = raw_to(tensor.detach(), self._device, non_blocking=False)
            self._ahead[tensor.data_ptr()] = (tensor, tensor._version, moved)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def restore(self) -> None:
        """Undo what the loop changed in place. Call it between windows; waits for the device."""
        for pool in self._pools():
            pool.restore()

    def release(self) -> None:
        """Free all device memory held here. Waits for the device: any stream may use it."""
        if self._device.type == "cuda" and self._at_place:
            torch.cuda.synchronize(self._device)
        for pool in self._pools():
            pool.release()
        self._ahead.clear()
        self._at_place.clear()
        self._anywhere.clear()
        self._buffers = _Buffers()
        self._budget = None

    def on_call(self, call: H2DCall) -> Tensor:
        """A ready tensor, or the call itself where there is none."""
        ordinal = self._ordinal()
        if not _answerable(call):
            return self._let_through(call)
        if self._ahead and (tensor := self._lies_ahead(call)) is not None:
            return self._copied_ahead(call, tensor)
        key: _Key = (
            # A thread that begins no steps has no ordinal: the line that calls has to do.
            _calling_line() if ordinal is None else ordinal,
            call.name,
            tuple(call.source.shape),
            call.source.dtype,
            call.dtype,
            call.device,
            call.memory_format,
            None if call.target is None else tuple(call.target.shape),
        )
        place = (key, self._position())
        pool = self._at_place.get(place)
        if pool is None and self._counting:
            pool = self._anywhere.get(key)
        if pool is None:
            return self._learn(call, key, place)
        self.hits += self._counting
        if call.target is None:
            return pool.hand_out()
        return self._fill(call.target, place, pool)

    def _lies_ahead(self, call: H2DCall) -> Tensor | None:
        """The host tensor that was copied ahead, where it is the call's source as it was."""
        source, found = call.source, self._ahead.get(call.source.data_ptr())
        if found is None:
            return None
        tensor, version, _ = found
        as_it_is = (
            source.shape == tensor.shape
            and source.stride() == tensor.stride()
            and call.dtype == source.dtype == tensor.dtype
            and call.memory_format in (None, torch.preserve_format)
            and tensor._version == version  # which all that share its storage have
        )
        return tensor if as_it_is else None

    def _copied_ahead(self, call: H2DCall, tensor: Tensor) -> Tensor:
        """The device's copy, in the call's target where it has one; the call itself without."""
        place = tensor.data_ptr()
        _, version, moved = self._ahead[place]
        if moved is None:
            return self._let_through(call)
        self.hits += self._counting
        if call.target is None:
            # The loop's own from here on: what it writes into it is in no other copy.
            self._ahead[place] = (tensor, version, None)
            return moved
        raw_copy(call.target, moved)
        return call.target

    def _learn(self, call: H2DCall, key: _Key, place: tuple[_Key, int]) -> Tensor:
        before = 0 if call.target is None else call.target._version
        result = self._let_through(call)
        if self._budget is None:
            self._budget = self._new_budget()
        try:
            pool = TensorPool(result, self._budget)
        except MemoryError:
            self._short_of_memory = True
            return result
        except (TypeError, RuntimeError):  # a kind of tensor that torch doesn't clone as it is
            return result
        if self._device.type == "cuda":
            # Ready for any stream from here on; learning is not timed.
            torch.cuda.current_stream(self._device).synchronize()
        self._at_place[place] = pool
        self._anywhere.setdefault(key, pool)
        if call.target is not None:
            self._buffers.note(place, call.target, before)
        return result

    def _new_budget(self) -> Budget:
        free = gpu_free_bytes(self._device)
        share = MAX_SHARE_OF_FREE_MEMORY
        return Budget(int(free * share) if free is not None else sys.maxsize)

    def _fill(self, target: Tensor, place: _Key, pool: TensorPool) -> Tensor:
        """`copy_` into the loop's own buffer: nothing to do while the buffer still holds it."""
        if not self._buffers.hold(place, target):
            # Another buffer, or one that was changed: a copy on the device, beside which a copy
            # over the bus is slow.
            before = target._version
            raw_copy(target, pool.hand_out())
            self._buffers.note(place, target, before)
        return target

    def _let_through(self, call: H2DCall) -> Tensor:
        self.misses += self._counting
        return call.make()

    def _pools(self) -> list[TensorPool]:
        return list(self._at_place.values())


@dataclass(slots=True)
class _Filled:
    """A part of a buffer of the loop's own, as it was when it was filled last."""

    base: weakref.ref[Tensor]
    version: int
    offset: int  # in elements of the storage
    shape: torch.Size
    stride: tuple[int, ...]

    def overlaps(self, other: _Filled) -> bool:
        """Whether the spans of storage have an element in common."""
        return self.offset < other.end and other.offset < self.end

    @property
    def end(self) -> int:
        """First element of the storage behind the part."""
        return (
            self.offset
            + 1
            + sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        )


class _Buffers:
    """Which of the loop's buffers hold what they were filled with."""

    def __init__(self) -> None:
        self._filled: dict[_Key, _Filled] = {}

    def hold(self, place: _Key, target: Tensor) -> bool:
        """Whether this is the buffer that was filled for that place, untouched since."""
        then = self._filled.get(place)
        if then is None:
            return False
        now = _filled(target)
        return then.base() is now.base() and (
            then.version,
            then.offset,
            then.shape,
            then.stride,
        ) == (now.version, now.offset, now.shape, now.stride)

    def note(self, place: _Key, target: Tensor, version_before: int) -> None:
        """The buffer was filled for that place; its version was `version_before` until then."""
        now = _filled(target)
        base = now.base()
        for key, other in list(self._filled.items()):
            if other.base() is not base:
                continue
            if other.overlaps(now):
                del self._filled[key]
            elif other.version == version_before:
                other.version = now.version  # our write bumped it, and left that part alone
        self._filled[place] = now


def _filled(target: Tensor) -> _Filled:
    base = target if target._base is None else target._base
    return _Filled(
        weakref.ref(base),
        base._version,
        int(target.storage_offset()),
        target.shape,
        tuple(target.stride()),
    )


def _answerable(call: H2DCall) -> bool:
    """Gradients flow through real copies only, and parameters have to keep their values."""
    if isinstance(call.source, torch.nn.Parameter) or isinstance(call.target, torch.nn.Parameter):
        return False
    if call.source.requires_grad and torch.is_grad_enabled():
        return False
    if call.target is not None and call.target.requires_grad:
        return False
    if call.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return not _moves_a_module()


def _moves_a_module() -> bool:
    """Whether `nn.Module.to` is calling: a buffer of the model, no batch."""
    frame: Any = sys._getframe(3)
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_code.co_name == "_apply" and "module.py" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _calling_line() -> tuple[str, int]:
    """The line that makes the call under way: three frames up from here."""
    frame = sys._getframe(3)
    return frame.f_code.co_filename, frame.f_lineno
