"""Hands the loop its batches: the real ones untouched, or substituted ones at the same place.

One `Feed` belongs to one pass of the loop over a loader (one epoch). While nothing was
substituted in it, it only calls torch's own `__next__`. Once something was, the loop still never
sees more batches than the epoch has.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from loaderdoctor.instrument.session.loader_state import LoaderState
from loaderdoctor.instrument.wire.records import BoundaryRecord

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from loaderdoctor.instrument.batches.replay_buffer import Ahead
    from loaderdoctor.instrument.handover.live_pass import LoopsPass

FEED = "_loaderdoctor_feed"  # attribute of a torch iterator: the Feed of the user's pass

_bypass = threading.local()


def bypassed() -> bool:
    """Whether this thread is opening an iterator of our own."""
    return getattr(_bypass, "on", False)


@contextmanager
def bypass() -> Iterator[None]:
    """Iterators created inside belong to us: hooks leave them alone."""
    before = bypassed()
    _bypass.on = True
    try:
        yield
    finally:
        _bypass.on = before


class Torch:
    """torch's own functions, as they were before our hooks."""

    def __init__(
        self,
        open_iterator: Callable[[DataLoader[Any]], Any],
        fetch: Callable[[Any], Any],
    ) -> None:
        self._open = open_iterator
        self.fetch = fetch

    def open_iterator(self, loader: DataLoader[Any]) -> Any:
        """A fresh torch iterator that our hooks ignore."""
        with bypass():
            return self._open(loader)


class Feed:
    """One pass of the loop over one loader."""

    __slots__ = (
        "__weakref__",
        "apart_ns",
        "at_ns",
        "create_ns",
        "fresh",
        "handed",
        "iterator",
        "keep_loader",
        "loader",
        "n_drawn",
        "n_seen",
        "quick",
        "raw",
        "spare",
        "tainted",
    )

    def __init__(
        self,
        loader: LoaderState,
        *,
        keep_loader: DataLoader[Any] | None = None,
        spare: DataLoader[Any] | None = None,
        iterator: Any = None,
    ) -> None:
        """`iterator`: torch's own that the loop holds; None where it holds a light one."""
        self.loader = loader
        # Weak, or a cycle would keep its workers alive until the garbage collector runs.
        self.iterator: Callable[[], Any] = _nothing if iterator is None else weakref.ref(iterator)
        loader.feed = weakref.ref(self)
        # A light iterator may have to open the loader after the script dropped it; torch's own
        # iterators don't keep their loader alive, and neither do we then: they get a `spare`.
        self.keep_loader = keep_loader
        self.spare = spare
        # The torch iterator that supplies real batches if it isn't the one the loop holds. Never
        # that one: a cycle would keep its workers alive until the garbage collector runs.
        self.raw: Any = None
        # A pass of a loader whose pools can be replaced: it serves all batches then.
        self.handed: LoopsPass | None = None
        self.n_seen = 0
        # What the loader's own data gave since it was opened: ahead and thrown away, too, but not
        # what was substituted.
        self.n_drawn = 0
        self.tainted = False  # something was substituted or thrown away in this pass
        self.fresh = True  # nothing fetched yet
        # Instead of `Loop.fetch`, while steps hold nothing else (`quick_next`).
        self.quick: Callable[[Feed, Any], Any] | None = None
        self.at_ns = 0
        self.create_ns = 0
        self.apart_ns = 0  # its end took so long for the loop's own pool, not for a substitute

    @property
    def held(self) -> DataLoader[Any] | None:
        """A loader that lives as long as this pass."""
        return self.keep_loader if self.keep_loader is not None else self.spare

    @property
    def untouched(self) -> bool:
        """Whether its batches are torch's own, with none of them substituted or thrown away."""
        loader = self.loader
        switched = loader.substitute.source is not None or bool(loader.pending_drop)
        return not self.tainted and self.raw is None and not switched

    def describe(self, batch: object) -> str | None:
        """Note what a batch is like; why that can't be done, where it can't."""
        try:
            self.loader.seen.describe(batch)
        except Exception as error:  # a custom batch type may object to being looked at
            return f"{type(error).__name__}: {error}"
        return None

    def at_edge(self) -> bool:
        """Whether the fetch to come may border on an epoch's end."""
        limit = self.loader.limit
        return self.fresh or limit is None or self.n_seen >= limit

    def opening(self, start: int, end: int) -> BoundaryRecord:
        """What it took to begin this pass, whose first fetch lasted from `start` to `end`."""
        loader, passes = self.loader, self.loader.passes
        record = BoundaryRecord(
            loader=loader.id,
            create_ns=self.create_ns,
            first_wait_ns=end - start,
            teardown_ns=passes.teardown_ns,
            at_ns=self.at_ns or start,
            first=passes.n_begun <= 1,
            rebuilt=loader.rebuilt,
            changed=loader.changed,
        )
        passes.teardown_ns = 0
        loader.rebuilt, loader.changed = False, None
        return record

    def take(self, own: Any, torch: Torch) -> Any:
        """The next batch. `own` is the torch iterator the loop holds, None for a light one.

        Raises StopIteration at the end of the epoch, and whatever the user's dataset raises.
        """
        loader = self.loader
        if self.handed is not None:
            batch = self.handed.next_batch(own)
            self.n_seen += 1
            self.n_drawn += 1
            return batch
        if loader.substitute.source is not None:
            return self._substituted(own, torch)
        if self.raw is None and own is not None and not self.tainted and not loader.pending_drop:
            early = loader.role == "other" and 0 < self.n_seen < 3
            batch = self._watched(own, torch) if early else torch.fetch(own)
            self.n_seen += 1
            self.n_drawn += 1
            return batch
        return self._real_again(own, torch)

    def _watched(self, own: Any, torch: Torch) -> Any:
        """A fetch around which to see whether the loop changes the dataset as it reads it.

        By two of this process, before it is known what a step is.
        """
        between, dataset = self.loader.between, getattr(own, "_dataset", None)
        if between is None or dataset is None or self.loader.workers:
            return torch.fetch(own)
        return between.around(dataset, lambda: torch.fetch(own))

    def _substituted(self, own: Any, torch: Torch) -> Any:
        if self._complete():
            self._end(own)
        ahead = self.loader.ahead
        if ahead is not None and ahead.wanting:
            self._make_ahead(ahead, own, torch)
        came = self.loader.substitute.next_batch()
        if came is None:
            return self._real_again(own, torch)
        self.n_seen += 1
        self.tainted = True
        return came[0]

    def _make_ahead(self, ahead: Ahead, own: Any, torch: Torch) -> None:
        """Let the loader make its next batches, of this epoch and of those behind it."""
        self.tainted = True
        just_opened = False
        if self.raw is None and own is None and not self._reopen(torch):
            ahead.end()
        while ahead.wanting:
            try:
                batch = torch.fetch(own if self.raw is None else self.raw)
            except StopIteration:
                if just_opened or not self.loader.reopenable or not self._reopen(torch):
                    ahead.end()
                just_opened = True
                continue
            just_opened = False
            self.n_drawn += 1
            ahead.add(batch)
            del batch

    def _real_again(self, own: Any, torch: Torch) -> Any:
        """Real batches in a pass that is no longer torch's own."""
        loader = self.loader
        if self.tainted and self._complete():
            self._end(own)
        if self.raw is None and own is None:
            self._reopen(torch)
        drop, loader.pending_drop = loader.pending_drop, 0
        self.tainted = self.tainted or drop > 0
        just_opened = False
        while True:
            try:
                batch = torch.fetch(own if self.raw is None else self.raw)
            except StopIteration:
                # Batches thrown away would make the epoch shorter than the script expects.
                short = self.tainted and loader.limit is not None and not just_opened
                if not (short and loader.reopenable and self._reopen(torch)):
                    raise
                just_opened = True
                continue
            just_opened = False
            self.n_drawn += 1
            if drop > 0:
                drop -= 1
                held = [batch]
                del batch
                loader.pages.use_up(held)
                continue
            self.n_seen += 1
            return batch

    def _reopen(self, torch: Torch) -> bool:
        loader = self.keep_loader if self.keep_loader is not None else self.loader.living()
        if loader is None:
            return False
        self.raw = torch.open_iterator(loader)
        self.n_drawn = 0
        return True

    def _complete(self) -> bool:
        limit = self.loader.limit
        return limit is not None and self.n_seen >= limit

    def _end(self, own: Any) -> None:
        """End of the epoch as torch would make it: workers shut down unless persistent."""
        raw = own if self.raw is None else self.raw
        self.raw = None
        shut_down = getattr(raw, "_shutdown_workers", None)
        if shut_down is not None and not getattr(raw, "_persistent_workers", False):
            began = perf_counter_ns()
            shut_down()
            if self.loader.substitute.source is not None:
                self.apart_ns = perf_counter_ns() - began
        raise StopIteration


def _nothing() -> None:
    return None


class LightIterator:
    """What the loop gets from `iter(loader)` while batches are substituted.

    Starts no workers; opens the real loader only if a plain window needs it.
    """

    def __init__(self, feed: Feed, fetch: Callable[[Feed, Any], Any]) -> None:
        self._feed = feed
        self._fetch = fetch

    def __iter__(self) -> LightIterator:
        return self

    def __next__(self) -> Any:
        feed = self._feed
        quick = feed.quick
        return self._fetch(feed, None) if quick is None else quick(feed, None)

    def __len__(self) -> int:
        limit = self._feed.loader.limit
        if limit is None:
            raise TypeError("this loader's dataset has no length")
        return limit
