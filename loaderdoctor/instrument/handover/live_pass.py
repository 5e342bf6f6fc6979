"""One pass of the loop over a loader whose pool may be replaced while it lasts.

Pools stand in a line: the first gives what it has under way, the last takes new indexes. A pool
that fails is replaced by one with the settings before, which makes what the failed one had under
way; so every index's batch is handed out once, in order.

Runs on the thread that fetches.
"""

from __future__ import annotations

from typing import Any, Protocol

from loaderdoctor.instrument.handover.index_stream import IndexStream
from loaderdoctor.instrument.handover.pools import OwnRest, Pool, PoolUnfitError
from loaderdoctor.instrument.trial.epoch_feeds import NoBatchError
from loaderdoctor.settings import Settings


class Keeper(Protocol):
    """The loader that a pass belongs to."""

    wanted: Settings

    def wanted_within_pass(self) -> Settings | None:
        """Settings to go over to now; None: none, or not within a pass."""

    def open_pool(self, settings: Settings, seed: int) -> Pool | None:
        """A pool with these settings; None where it could not be opened, which is noted."""

    def failed(self, settings: Settings, error: Exception) -> Settings | None:
        """Settings to go back to; None where it is the loop that must see the error."""

    def proved(self, settings: Settings) -> None:
        """A pool with these gave the loop its first batch."""

    def keep(self, pool: Pool) -> None:
        """Its workers persist: the pass is over and another may come."""


class LivePass:
    """Hands out the batches of one pass; `rest` is what the loop's own iterator gives first."""

    def __init__(
        self,
        keeper: Keeper,
        stream: IndexStream,
        seed: int,
        pool: Pool,
        *,
        rest: OwnRest | None = None,
    ) -> None:
        self._keeper = keeper
        self._stream = stream
        self._seed = seed
        self._line: list[OwnRest | Pool] = [] if rest is None else [rest]
        self._closed = False
        self._append(pool)
        # That made the last batch.
        self.serving = pool.settings if rest is None else rest.settings

    @property
    def settled(self) -> bool:
        """Whether nothing is left of a pool before the present one."""
        return len(self._line) == 1

    def next_batch(self, own: Any = None) -> Any:
        """The next batch; `own` is torch's iterator that the loop holds, where it began with one.

        Raises StopIteration at the end, and what a loader with the loop's own settings would.
        """
        if self._closed:
            raise StopIteration
        self._stream.asked()
        if self._keeper.wanted is not self._line[-1].settings:
            self._go_over()
        while True:
            here = self._line[0]
            try:
                batch = here.next_batch(own)
            except StopIteration:
                if len(self._line) == 1:
                    self.close()
                    raise
                self._drop_first()
            except Exception as error:
                self._fail(here, error)
            else:
                if self.serving is not here.settings:
                    self.serving = here.settings
                    self._keeper.proved(here.settings)
                return batch

    def close(self) -> None:
        """End it: the loop has left it, or begins another."""
        if self._closed:
            return
        self._closed = True
        line, self._line = self._line, []
        for pool in line:
            if isinstance(pool, Pool):
                if pool is line[-1] and pool.settings.persistent_workers:
                    self._keeper.keep(pool)
                else:
                    pool.close()

    __del__ = close

    def _go_over(self) -> None:
        """To the settings that are wanted, where they are others."""
        settings = self._keeper.wanted_within_pass()
        if settings is None or settings == self._line[-1].settings:
            return
        made = self._keeper.open_pool(settings, self._seed)
        if made is None:
            return
        before = self._line[-1]
        if isinstance(before, Pool):
            before.stop_taking()
        self._append(made)

    def _append(self, pool: Pool) -> None:
        self._line.append(pool)
        pool.serve(self._stream.take)
        pool.fill()

    def _drop_first(self) -> None:
        done = self._line.pop(0)
        if isinstance(done, Pool):
            done.close()

    def _fail(self, pool: OwnRest | Pool, error: Exception) -> None:
        """Replace a pool that failed, or raise its error where it is the loop's to see."""
        if isinstance(pool, OwnRest):
            raise error
        settings = self._keeper.failed(pool.settings, error)
        if settings is None and isinstance(error, NoBatchError):  # the script's own `timeout`
            raise RuntimeError(str(error)) from error  # as torch; the batch may still come
        if settings is None:
            pool.skip_failed()
            raise error
        at = self._line.index(pool)
        left: list[Any] = []
        for one in self._line[at:]:
            assert isinstance(one, Pool)  # what torch's own iterator has left comes first
            # Workers that are well end by themselves: one that is killed may hold a lock of the
            # user's.
            left += one.close(stuck=not isinstance(error, PoolUnfitError))
        del self._line[at:]
        self._stream.give_back(left)
        made = self._keeper.open_pool(settings, self._seed)
        while made is None:
            settings = self._keeper.failed(settings, error)
            if settings is None:
                self.close()
                raise error
            made = self._keeper.open_pool(settings, self._seed)
        self._append(made)
