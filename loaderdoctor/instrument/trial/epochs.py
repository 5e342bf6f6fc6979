"""A source that opens its loader again at each epoch's end, and times what that takes."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

from loaderdoctor.instrument.trial.epoch_feeds import EpochFeed
from loaderdoctor.instrument.wire.records import BoundaryRecord
from loaderdoctor.units import NS_PER_S

# Fetches of the loader alone that tell a boundary from a steady fetch are given up after this.
STEADY_LIMIT_S = 5.0


class EpochSource:
    """Batches of one epoch after the other. Opens the first feed at once.

    `open_feed` starts an epoch; `cycle` is the number of batches that are made at the same time
    (num_workers, at least 1); `after` runs at `close`, whatever happened; `before_epoch` before
    each epoch but the first, outside what is timed of the boundary.
    """

    def __init__(
        self,
        open_feed: Callable[[], EpochFeed],
        *,
        cycle: int,
        after: Callable[[bool], None],
        loader_id: str = "",
        before_epoch: Callable[[], None] | None = None,
    ) -> None:
        self._open_feed = open_feed
        self._cycle = cycle
        self._after = after
        self._loader_id = loader_id
        self._before_epoch = before_epoch
        self._stuck = False
        self._ended_early = False
        self.startup_ns: int | None = None
        self.boundaries: list[BoundaryRecord] = []  # epochs that ended, oldest first
        self._opened_ns = time.perf_counter_ns()
        try:
            self._feed: EpochFeed | None = self._open()
        except BaseException:
            after(True)
            raise

    def next_batch(self) -> Any:
        """The next batch, of the next epoch where one ends. StopIteration where that is empty."""
        if self._feed is None:
            raise StopIteration
        began = time.perf_counter_ns()
        try:
            batch = self._next(self._feed)
        except StopIteration:
            return self._next_epoch(began)
        if self.startup_ns is None:
            self.startup_ns = time.perf_counter_ns() - self._opened_ns
        return batch

    def drop(self, n: int) -> int:
        """Throw away up to n batches as quickly as they come, across epochs."""
        n_dropped = 0
        with contextlib.suppress(StopIteration):
            while n_dropped < n:
                self.next_batch()
                n_dropped += 1
        return n_dropped

    def close(self) -> None:
        """End workers, threads and batches under way; at once where a fetch timed out."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        try:
            feed.close(stuck=self._stuck)
        finally:
            self._after(self._stuck)

    def boundary_ns(self) -> int:
        """Measure one epoch boundary, beyond a steady fetch of the loader alone. Drops batches.

        The epoch is ended as a real one ends, by its last index. Raises StopIteration once
        closed or where an epoch is empty.
        """
        if self._feed is None:
            raise StopIteration
        self._feed.end_early()
        n_before = len(self.boundaries)
        self.drop_until(lambda: len(self.boundaries) > n_before)
        if len(self.boundaries) == n_before:
            raise StopIteration
        ended = self.boundaries[-1]
        total = ended.teardown_ns + ended.create_ns + ended.first_wait_ns
        # The first batches of all workers come together: skip them, then take whole cycles.
        n_before = len(self.boundaries)
        self.drop(self._cycle - 1)
        n_fetches = 2 * self._cycle
        began = time.perf_counter_ns()
        fetched = 0
        while fetched < n_fetches and time.perf_counter_ns() - began < STEADY_LIMIT_S * NS_PER_S:
            fetched += self.drop(1)
            if len(self.boundaries) > n_before:  # an epoch as short as that has no steady part
                return total
        return max(0, total - (time.perf_counter_ns() - began) // max(1, fetched))

    def drop_until(self, done: Callable[[], bool]) -> None:
        """Throw batches away until `done`, or the data ends."""
        while not done() and self.drop(1):
            pass

    def _next(self, feed: EpochFeed) -> Any:
        try:
            return feed.next()
        except TimeoutError:
            self._stuck = True
            raise

    def _open(self) -> EpochFeed:
        with warnings.catch_warnings():
            # torch warns of more workers than CPUs; that is what the trial is to find out.
            warnings.simplefilter("ignore")
            return self._open_feed()

    def _next_epoch(self, ending_ns: int) -> Any:
        assert self._feed is not None
        self._feed.retire()
        ended_ns = opening_ns = time.perf_counter_ns()
        if self._before_epoch is not None:
            self._before_epoch()
            opening_ns = time.perf_counter_ns()
        self._feed = self._open()
        created_ns = time.perf_counter_ns()
        batch = self._next(self._feed)
        self.boundaries.append(
            BoundaryRecord(
                loader=self._loader_id,
                create_ns=created_ns - opening_ns,
                first_wait_ns=time.perf_counter_ns() - created_ns,
                teardown_ns=ended_ns - ending_ns,
                at_ns=ended_ns,
            )
        )
        return batch
