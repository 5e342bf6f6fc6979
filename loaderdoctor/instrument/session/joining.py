"""Notices that a loader joins the steps, or leaves them, when it is known already what a step is.

Which loaders feed it is decided as the loop begins (`roles`).
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderdoctor.instrument.wire.protocol import BATCHES_REPLAYED, ONE_REPLAYED

N_REPLAYED = 20  # optimizer steps without any fetch after the loader ran out
# Another loader joins the steps where at least one in so many has a batch of it: three come within
# the 24 steps for which batches to be replayed are recorded.
JOINS_EVERY = 8
# Steps with one before that is said: where one in fifty has one by chance, two lie so near one time
# in seven, three one in 25.
MIN_JOINED = 3

_REPLAYED = (
    "the loop trains on without fetching, as with itertools.cycle, which replays the batches of "
    "the first epoch from memory (and keeps them all). Steps are told by the optimizer from here "
    "on; the loader costs them nothing."
)
_ONE_REPLAYED = (
    "the loop trains on without fetching from it, as with itertools.cycle, which replays the "
    "batches of its first pass from memory (and keeps them all), beside another loader that it "
    "goes on fetching from. Steps are told by the optimizer from here on."
)


@dataclass(slots=True)
class _Joining:
    """Steps with a batch, or a few, of another loader, since the first of them."""

    first: int
    last: int
    n: int = 0
    n_opened: int = 0  # of them, with an iterator made for it

    def seen(self, n_steps: int, *, opened: bool) -> None:
        self.last = n_steps
        self.n += 1
        self.n_opened += opened

    @property
    def joins(self) -> bool:
        """Whether they are frequent enough, and of iterators that live on: no probe of a batch."""
        often = JOINS_EVERY * (self.n - 1) >= self.last - self.first
        return self.n >= MIN_JOINED and often and 2 * self.n_opened <= self.n

    def may_join(self, n_steps: int) -> bool:
        """Whether it could yet turn out so: its steps came that often up to now."""
        lives_on = self.n < MIN_JOINED or self.n_opened < self.n
        return lives_on and JOINS_EVERY * self.n >= n_steps - self.first


class JoinWatch:
    """Tells which other loaders join the steps of a loop that settles; later it looks no more."""

    def __init__(self) -> None:
        self.decided = False
        self._found: dict[str, _Joining] = {}  # by loader

    def seen(self, site: str, n_steps: int, *, opened: bool) -> None:
        """A step trained on a few batches of it, with an iterator made for it (`opened`)."""
        one = self._found.setdefault(site, _Joining(n_steps, n_steps))
        if not one.n or one.last != n_steps:
            one.seen(n_steps, opened=opened)

    def is_open(self, n_steps: int) -> bool:
        """Whether steps to come could tell that one joins them, which is not known yet."""
        found = self._found.values()
        return not self.decided and any(x.may_join(n_steps) and not x.joins for x in found)

    def decide(self, n_steps: int) -> list[str]:
        """Those that do, told once."""
        joined = [s for s, x in self._found.items() if x.joins and x.may_join(n_steps)]
        self.decided, self._found = True, {}
        return joined


class ReplayWatch:
    """Notices a loop that trains on after its loader ran out: it replays batches from memory.

    Counts the optimizer steps between a loader's end and its next fetch.
    """

    def __init__(self) -> None:
        self._ran_out = False
        self._n = 0
        self._optimizer: int | None = None
        self._n_beside = 0

    def ran_out(self) -> None:
        """The step's loader found its epoch at the end."""
        self._ran_out = True
        self._n = self._n_beside = 0
        self._optimizer = None

    def fetched(self) -> None:
        """The step's loader is about to fetch."""
        self._ran_out = False

    def fetched_other(self) -> None:
        """Another loader gave a batch to train on: what follows it is of that."""
        self._n = 0

    def fetched_beside(self) -> None:
        """Another loader that feeds the step gave a batch."""
        self._n_beside += 1

    def worked(self, optimizer: int) -> tuple[str, str] | None:
        """An optimizer (its id) stepped: the note that batches are being replayed, told once."""
        if not self._ran_out:
            return None
        if self._optimizer is None:
            self._optimizer = optimizer
        self._n += optimizer == self._optimizer
        if self._n < N_REPLAYED:
            return None
        self._ran_out = False
        if 2 * self._n_beside >= N_REPLAYED:
            return ONE_REPLAYED, _ONE_REPLAYED
        return BATCHES_REPLAYED, _REPLAYED
