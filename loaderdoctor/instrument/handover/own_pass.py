"""A pass that torch's own iterator serves: counted, and a few of its batches remembered.

Which indexes belong to which batch is noted between the sampler and torch's iterator, without
asking the sampler for more or earlier.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import dataloader

from loaderdoctor.instrument.batches.digest import digest
from loaderdoctor.instrument.dataset.draws import states
from loaderdoctor.instrument.handover.dataset_marks import Marks, marks
from loaderdoctor.instrument.handover.pools import Sample

# Batches compared in each pass: a hash costs about a millisecond a megabyte.
N_COMPARED = 3

# torch's own, whoever has wrapped it.
_FETCH: Callable[[Any], Any] = inspect.unwrap(vars(dataloader._BaseDataLoaderIter)["__next__"])


class Saw(Protocol):
    """`LiveLoader.saw`."""

    def __call__(self, sample: Sample | None, *, drew: bool, changed: bool) -> None: ...


class _Counted:
    """The sampler's iterator, counting what is drawn from it and keeping a few of the indexes."""

    def __init__(self, inner: Iterator[Any], n_drawn: int, keep: range) -> None:
        self.n_drawn = n_drawn
        self.kept: dict[int, Any] = {}
        self.drawn_states: tuple[Any, ...] | None = None
        self._inner = inner
        self._keep = keep

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        index = next(self._inner)
        self.n_drawn += 1
        if self.n_drawn in self._keep:
            self.kept[self.n_drawn] = index
            self.drawn_states = states()
        return index


class OwnPass:
    """What is known of a pass that one of torch's iterators serves. It keeps no iterator alive."""

    def __init__(self, own: Any) -> None:
        """From now on, wherever the iterator is in its pass."""
        self.n_asked = int(own._num_yielded)
        self._in_process = not own._num_workers
        n_drawn = self.n_asked if self._in_process else int(own._send_idx)
        self._compared = range(n_drawn + 1, n_drawn + N_COMPARED + 1)
        self._drawn = _Counted(own._sampler_iter, n_drawn, self._compared)
        own._sampler_iter = self._drawn
        self._marks_after: Marks | None = None

    @property
    def n_drawn(self) -> int:
        """Indexes drawn from the sampler."""
        return self._drawn.n_drawn

    def n_under_way(self, own: Any) -> int:
        """Batches that the iterator's workers still give without another index."""
        return 0 if self._in_process else int(own._send_idx - own._rcvd_idx)

    def next_batch(self, own: Any, saw: Saw) -> Any:
        """Torch's next batch. Raises what torch and the user's code raise."""
        self.n_asked += 1
        number = self.n_asked
        if number not in self._compared:
            return _FETCH(own)
        changed = self._marks_after is not None and self._marks_after != marks(own._dataset)
        batch = _FETCH(own)
        drew = self._in_process and states() != self._drawn.drawn_states
        self._marks_after = marks(own._dataset) if self._in_process else None
        index = self._drawn.kept.pop(number, None)
        sample = None
        if index is not None:
            try:
                sample = Sample(index=index, digest=digest(batch))
            except Exception:  # what can't be compared; the batch is the loop's all the same
                sample = None
        saw(sample, drew=drew, changed=changed)
        return batch
