"""Where batches come from while we measure, and what stands between that and the loop.

Runs in the measuring process, at the DataLoader, below any wrapper of the user's own. Batches may
be asked for from any thread of the loop. `synthetic` and `fields` are sources too: recorded batches
in place of loading, wholly or but for one input.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Sized
from dataclasses import FrozenInstanceError
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    default_collate,
)

from loaderdoctor.errors import TrialRefused
from loaderdoctor.instrument.batches import UnsupportedBatch, rebuild, tensors
from loaderdoctor.instrument.batches.h2d import ToDevice
from loaderdoctor.instrument.batches.replay_buffer import ReplayBuffer, ReplaySource


class Source(Protocol):
    """Something the loop can be fed from instead of the loader's own iterator."""

    @property
    def startup_ns(self) -> int | None:
        """Opening to first batch; None: not opened here, or no batch yet."""

    def next_batch(self) -> Any:
        """The next batch. Raises StopIteration at the end of the data."""

    def drop(self, n: int) -> int:
        """Throw away up to n batches as quickly as they come; returns how many came."""

    def close(self) -> None:
        """Leave no worker, thread or batch behind, in bounded time. Idempotent."""


def epochs_ended(source: Source) -> Sequence[object] | None:
    """The list of epochs that ended within a source, which grows; None where it has none."""
    seen: Any = source
    while seen is not None:
        ended = getattr(seen, "boundaries", None)
        if ended is not None:
            return cast("Sequence[object]", ended)
        seen = getattr(seen, "inner", None)
    return None


class ChangedSource:
    """Batches of `inner`, each changed as it is handed to the loop."""

    def __init__(self, inner: Source, change: Callable[[Any], Any]) -> None:
        self.inner, self._change = inner, change

    @property
    def startup_ns(self) -> int | None:
        return self.inner.startup_ns

    def next_batch(self) -> Any:
        return self._change(self.inner.next_batch())

    def drop(self, n: int) -> int:
        return self.inner.drop(n)

    def close(self) -> None:
        self.inner.close()


class SideStreamSource:
    """One batch ahead of the loop, copied on a side stream.

    The loop's stream waits for the copy, the allocator is told of both streams, and a host batch
    is let go only after its copy is complete. Raises from the wrapped source pass through.
    """

    def __init__(self, inner: Source, to_device: ToDevice) -> None:
        self.inner = inner
        self._to_device = to_device
        self._stream = torch.cuda.Stream(device=to_device.device)  # type: ignore[no-untyped-call]
        self._ahead: tuple[Any, list[torch.Tensor]] | None = None
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()
        self._closed = False

    @property
    def startup_ns(self) -> int | None:
        return self.inner.startup_ns

    def next_batch(self) -> Any:
        """A batch on the device, ready for the caller's current stream; the next is under way."""
        if self._closed:
            raise StopIteration
        if self._ahead is None:
            self._fetch()
        assert self._ahead is not None
        batch, moved = self._ahead
        self._ahead = None
        current = torch.cuda.current_stream(self._to_device.device)
        current.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(current)
        with contextlib.suppress(StopIteration):  # the next call finds the end itself
            self._fetch()
        return batch

    def drop(self, n: int) -> int:
        """The batch ahead counts as one."""
        if n > 0 and self._ahead is not None:
            self._ahead = None
            return 1 + self.inner.drop(n - 1)
        return self.inner.drop(n)

    def close(self) -> None:
        """Wait for copies under way, then close the wrapped source."""
        self._closed = True
        self._ahead = None
        if self._under_way:
            self._stream.synchronize()
            self._under_way.clear()
        self.inner.close()

    def _fetch(self) -> None:
        host_batch = self.inner.next_batch()
        while self._under_way and self._under_way[0][0].query():  # type: ignore[no-untyped-call]
            self._under_way.popleft()
        with torch.cuda.stream(self._stream):
            self._ahead = self._to_device.move(host_batch)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._under_way.append((done, host_batch))


MAX_RECORDED = 24  # a buffer that isn't full by then won't be


REPEATS_SHAPES = (
    "synthetic: the batches differ in shape, and a few of them are handed out again and again. "
    "What the model does again for each new shape (compiling, tuning, planning) is spared it too, "
    "so that the bound may be more than loading costs; `loaderdoctor diagnose` tells them apart."
)


class SyntheticSource(ReplaySource):
    """Recorded batches of `inner`, which is closed, handed out endlessly: the upper bound."""

    def __init__(self, inner: Source, note: Callable[[str, str], None]) -> None:
        """`note` is told where repeated batches may spare the model more than loading."""
        self._recorded = ReplayBuffer()
        super().__init__(self._recorded)
        try:
            for _ in range(MAX_RECORDED):
                if self._recorded.ready or self._recorded.reason is not None:
                    break
                self._recorded.record(inner.next_batch())
        except StopIteration:
            pass  # an epoch without a batch
        finally:
            self.startup_ns = inner.startup_ns
            inner.close()
        if not self._recorded.ready:
            reason = self._recorded.reason or "too few batches were seen"
            self.close()
            raise TrialRefused(f"batches can't be recorded: {reason}")
        if self._recorded.shapes_vary:
            note("synthetic-repeats-shapes", REPEATS_SHAPES)

    def close(self) -> None:
        """The batches are its own, and go."""
        super().close()
        self._recorded.release()


class OneField:
    """A collate function that sends one input of the batch only. Runs in the workers.

    torch's own default is given that input alone; another function must see whole samples.
    """

    def __init__(self, collate: Any, field: str) -> None:
        self._collate = collate
        self._field = field

    def __call__(self, samples: Any) -> Any:
        if self._collate is default_collate and isinstance(samples, list):
            return default_collate([_take(sample, self._field) for sample in samples])
        return _take(self._collate(samples), self._field)


class OtherFields:
    """Puts what was loaded, one input, into a recorded batch with all the others.

    These lie on the device already where the loop moves them there.
    """

    def __init__(self, field: str, template: Any, to_device: ToDevice | None) -> None:
        self._field = field
        own = [t for _, t in tensors(_take(template, field))]
        self._n = own[0].shape[0] if own and own[0].dim() else 0
        ready = rebuild(template, lambda _, tensor: tensor.detach().clone())
        self._template = ready if to_device is None else to_device.move(ready)[0]

    def __call__(self, loaded: Any) -> Any:
        """A batch of the loop's kind; the last one of an epoch as short as it comes."""
        sizes = [t.shape[0] for _, t in tensors(loaded) if t.dim()]
        short = bool(sizes) and sizes[0] < self._n

        def others(_: str, tensor: Tensor) -> Tensor:
            whole = tensor.detach()
            return whole[: sizes[0]] if short and whole.dim() and len(whole) == self._n else whole

        return _put(rebuild(self._template, others), self._field, loaded)


def one_batch(source: Source) -> Any:
    """One batch of the source, which is closed. Raises TrialRefused where it has none."""
    try:
        return source.next_batch()
    except StopIteration:
        raise TrialRefused("an epoch has no batch") from None
    finally:
        source.close()


def first_batch(source: Source, field: str) -> Any:
    """One batch of the source, which is closed. Raises TrialRefused where it has no such input."""
    batch = one_batch(source)
    try:
        _take(batch, field)
        tensors(batch)
    except (KeyError, IndexError, AttributeError, UnsupportedBatch):
        raise TrialRefused(f"the batch has no input {field}; it has {_names(batch)}") from None
    return batch


def _take(whole: Any, field: str) -> Any:
    """That input of a sample or batch. Raises KeyError, IndexError, AttributeError."""
    if isinstance(whole, (list, tuple)) and field.isdigit():
        return whole[int(field)]
    if isinstance(whole, Mapping):
        return {str(key): value for key, value in whole.items()}[field]
    if isinstance(whole, Tensor):
        raise KeyError(field)
    return getattr(whole, field)


def _put(whole: Any, field: str, value: Any) -> Any:
    if isinstance(whole, (list, tuple)) and field.isdigit():
        items = [value if i == int(field) else item for i, item in enumerate(whole)]
        return type(whole)(*items) if hasattr(whole, "_fields") else type(whole)(items)
    if isinstance(whole, MutableMapping):
        whole[next(key for key in whole if str(key) == field)] = value
    elif hasattr(whole, "_fields"):
        return whole._replace(**{field: value})
    else:
        try:
            setattr(whole, field, value)
        except FrozenInstanceError:  # the copy is ours
            object.__setattr__(whole, field, value)
    return whole


def _names(batch: Any) -> str:
    if isinstance(batch, (list, tuple)):
        return ", ".join(str(i) for i in range(len(batch)))
    if isinstance(batch, Mapping):
        return ", ".join(map(str, batch))
    return "one tensor only"


class EndlessBatches(Sampler[Any]):
    """The indexes of epoch after epoch, for one iterator; `len` is one epoch's, as the loop has it.

    Runs in the training process. A sampler that gives nothing ends it, or it would spin.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches) if isinstance(self._batches, Sized) else 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            n = 0
            for n, batch in enumerate(self._batches, 1):  # noqa: B007 - counts what came
                yield batch
            if n == 0:
                return


def endlessly(loader: DataLoader[Any]) -> dict[str, Any]:
    """A loader's arguments for its sampling, never ending. Raises TrialRefused."""
    if isinstance(loader.dataset, IterableDataset):
        raise TrialRefused(
            "an iterable dataset ends by itself: one iterator can't serve all epochs"
        )
    if loader.batch_sampler is None:
        return {"batch_size": None, "sampler": EndlessBatches(loader.sampler)}
    return {"batch_sampler": EndlessBatches(loader.batch_sampler)}
