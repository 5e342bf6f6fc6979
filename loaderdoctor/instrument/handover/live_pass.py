"""One pass of the loop over a loader whose pool may be replaced while it lasts.

It begins as torch's own (`OwnPass`): counted, and a few of its batches remembered; which indexes
belong to which batch is noted between the sampler and torch's iterator, without asking the sampler
for more or earlier. Once taken over (`LivePass`), pools stand in a line: the first gives what it
has under way, the last takes new indexes. A pool that fails is replaced by one with the settings
before, which makes what the failed one had under way; so every index's batch is handed out once, in
order.

Runs on the thread that fetches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from loaderdoctor.instrument.batches import digest
from loaderdoctor.instrument.dataset import states
from loaderdoctor.instrument.dataset.changes import Marks, marks
from loaderdoctor.instrument.handover import FETCH, OwnRest, Pool, PoolUnfitError, Sample
from loaderdoctor.instrument.handover.exactness import CHANGED
from loaderdoctor.instrument.handover.index_stream import IndexStream
from loaderdoctor.instrument.trial import NoBatchError
from loaderdoctor.settings import Settings

# Batches compared in each pass: a hash costs about a millisecond a megabyte.
N_COMPARED = 3


class Keeper(Protocol):
    """The loader that a pass belongs to (`live_loader.LiveLoader`)."""

    own: Settings
    wanted: Settings

    def saw(self, sample: Sample | None, *, drew: bool, changed: bool) -> None:
        """A batch of the loader's own that other pools can be held against."""

    def take_over(self, own: Any, seen: OwnPass) -> LivePass | None:
        """Go on with the pass that torch's iterator is in the middle of; None: it stays its own."""

    def wanted_within_pass(self) -> Settings | None:
        """Settings to go over to now; None: none, or not within a pass."""

    def open_pool(self, settings: Settings, seed: int) -> Pool | None:
        """A pool with these settings; None where it could not be opened, which is noted."""

    def failed(self, settings: Settings, error: Exception) -> Settings | None:
        """Settings to go back to; None where it is the loop that must see the error."""

    def proved(self, settings: Settings) -> None:
        """A pool with these gave the loop its first batch."""

    @property
    def wants_sample(self) -> bool:
        """Whether there are too few of what its dataset gives now."""

    def changed_meanwhile(self) -> bool:
        """Whether the loop changed its dataset, and its own loader would read it as it is now."""

    def keep(self, pool: Pool) -> None:
        """Its workers persist: the pass is over and another may come."""


class _Counted:
    """The sampler's iterator, counting what is drawn from it and keeping a few of the indexes."""

    def __init__(self, inner: Iterator[Any], n_drawn: int, keep: range) -> None:
        self.n_drawn = n_drawn
        self.kept: dict[int, Any] = {}
        self.drawn_states: tuple[Any, ...] | None = None
        self.inner = inner
        self._keep = keep

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        index = next(self.inner)
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
        self._marks_after: Marks | None = None  # the dataset, behind the last compared batch
        self._changes_itself = False  # as its samples are made: it counts or keeps them, say

    @staticmethod
    def of(iterator: Any) -> OwnPass | None:
        """None of what is neither of torch's two iterators, but a class derived from them, say."""
        single, workers = _SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter
        return OwnPass(iterator) if type(iterator) in (single, workers) else None

    @property
    def n_drawn(self) -> int:
        return self._drawn.n_drawn

    def let_go(self, own: Any) -> None:
        """Count no more draws: others make them."""
        own._sampler_iter = self._drawn.inner

    def n_under_way(self, own: Any) -> int:
        """Batches that the iterator's workers still give without another index."""
        return 0 if self._in_process else int(own._send_idx - own._rcvd_idx)

    def changed_by_loop(self, own: Any) -> bool:
        """Whether the loop changed what the iterator without workers reads, since it was seen."""
        seen = self._marks_after
        return seen is not None and not self._changes_itself and marks(own._dataset) != seen

    def next_batch(self, own: Any, keeper: Keeper) -> Any:
        """Torch's next batch. Raises what torch and the user's code raise."""
        self.n_asked += 1
        number = self.n_asked
        if number not in self._compared:
            try:
                return FETCH(own)
            except StopIteration:
                keeper.saw(None, drew=False, changed=self.changed_by_loop(own))
                raise
        before = marks(own._dataset) if self._in_process else None
        changed = self._marks_after is not None and self._marks_after != before
        batch = FETCH(own)
        drew = self._in_process and states() != self._drawn.drawn_states
        if self._in_process:
            self._marks_after = marks(own._dataset)
            self._changes_itself |= self._marks_after != before
        index = self._drawn.kept.pop(number, None)
        sample = None if index is None else _sample(index, batch)
        keeper.saw(sample, drew=drew, changed=changed)
        return batch


def _sample(index: Any, batch: Any) -> Sample | None:
    try:
        return Sample(index=index, digest=digest(batch))
    except Exception:  # what can't be compared; the batch is the loop's all the same
        return None


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
        if self._line[-1].settings.num_workers and self._keeper.changed_meanwhile():
            # What workers made of the dataset as it was is made again.
            self._close_from(0 if isinstance(self._line[0], Pool) else 1, stuck=False)
            self._open(self._keeper.wanted, PoolUnfitError(CHANGED))
        elif self._keeper.wanted is not self._line[-1].settings:
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
                if isinstance(here, Pool) and self._keeper.wants_sample:
                    sample = _sample(here.last_index, batch)
                    self._keeper.saw(sample, drew=False, changed=False)
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
        # Workers that are well end by themselves: one that is killed may hold a lock of the user's.
        stuck = not isinstance(error, PoolUnfitError)
        self._close_from(self._line.index(pool), stuck=stuck)
        self._open(settings, error)

    def _close_from(self, at: int, *, stuck: bool) -> None:
        """These pools of the line; others make what they have not given."""
        left: list[Any] = []
        for one in self._line[at:]:
            assert isinstance(one, Pool)  # what torch's own iterator has left comes first
            left += one.close(stuck=stuck)
        del self._line[at:]
        self._stream.give_back(left)

    def _open(self, settings: Settings, error: Exception) -> None:
        """A pool with these, or with what is gone back to; raises the error where there is none."""
        made = self._keeper.open_pool(settings, self._seed)
        while made is None:
            before = self._keeper.failed(settings, error)
            if before is None:
                self.close()
                raise error
            settings = before
            made = self._keeper.open_pool(settings, self._seed)
        self._append(made)


class LoopsPass:
    """One pass of the loop, torch's own or taken over; held by what the loop iterates."""

    __slots__ = ("__weakref__", "_live", "_own", "_taken", "n_given")

    def __init__(self, live: Keeper, taken: LivePass | None, own: OwnPass | None) -> None:
        self._live = live
        self._taken = taken
        self._own = own
        self.n_given = 0  # batches that the loop has, since this was made

    @property
    def serving(self) -> Settings:
        """The settings that made the last batch."""
        return self._live.own if self._taken is None else self._taken.serving

    @property
    def settled(self) -> bool:
        """Whether its batches come from one pool only."""
        return self._taken is None or self._taken.settled

    def next_batch(self, own: Any) -> Any:
        """The loop's next batch; `own` is torch's iterator where the loop holds one."""
        taken, live, seen = self._taken, self._live, self._own
        if taken is None and seen is not None and live.wanted is not live.own:
            taken = self._taken = live.take_over(own, seen)
        if taken is not None:
            batch = taken.next_batch(own)
        elif seen is not None:
            batch = seen.next_batch(own, live)
        else:
            batch = next(own)
        self.n_given += 1
        return batch

    def close(self) -> None:
        if self._taken is not None:
            self._taken.close()
