"""Which item of work goes to which node next. Plain bookkeeping: it knows no cluster.

An item whose worker or node is lost goes elsewhere, a bounded number of times. Exclusive work has
a machine of its own: two nodes of one machine are never busy at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# A node lost while it ran an item is bad luck; three of them point at the item.
MAX_ATTEMPTS = 3
# A node that has not begun by then is busy with something else: the item moves where there is room.
# Starting a worker that imports us from a network disk takes some ten seconds.
PATIENCE_S = 30.0


class RefusedError(Exception):
    """Raised by work where this node can't do it, and another may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node that can take work."""

    id: str  # of the node within the cluster
    host: str
    machine: str  # nodes that share one share this
    cpus: float
    gpus: float = 0.0
    memory_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class _Item:
    at: Place | None = None  # where it runs, or waits to
    since: float = 0.0
    begun: bool = False
    n_lost: int = 0
    tried: set[str] = field(default_factory=set)  # nodes it should not go to again
    refusals: list[str] = field(default_factory=list)
    over: bool = False


class Schedule:
    """Gives items to places; the caller runs them and tells what became of each.

    `slots` says how many items a place holds at once; with `exclusive` a machine holds one.
    `allowed` says whether an item may go to a place at all.
    """

    def __init__(
        self,
        n_items: int,
        *,
        exclusive: bool = False,
        slots: Callable[[Place], int] = lambda place: max(1, int(place.cpus)),
        allowed: Callable[[int, Place], bool] = lambda index, place: True,
        max_attempts: int = MAX_ATTEMPTS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._items = [_Item() for _ in range(n_items)]
        self._queue = list(range(n_items))
        self._exclusive = exclusive
        self._slots = slots
        self._allowed = allowed
        self._max_attempts = max_attempts
        self._patience_s = patience_s
        self.failed: dict[int, str] = {}  # items given up, with the reason

    @property
    def finished(self) -> bool:
        """Whether every item is done or given up."""
        return all(item.over for item in self._items)

    @property
    def running(self) -> tuple[int, ...]:
        """Items given to a place and not yet over."""
        return tuple(i for i, item in enumerate(self._items) if item.at is not None)

    def assign(self, places: Sequence[Place], now: float) -> list[tuple[int, Place]]:
        """What starts now, where; in the order of the queue."""
        given = []
        for index in list(self._queue):
            place = self._choose(index, places)
            if place is None:
                continue
            self._queue.remove(index)
            item = self._items[index]
            item.at, item.since, item.begun = place, now, False
            given.append((index, place))
        return given

    def begun(self, index: int) -> None:
        """The item's work really runs."""
        self._items[index].begun = True

    def done(self, index: int) -> None:
        """The item has its answer."""
        self._leave(index)
        self._items[index].over = True

    def lost(self, index: int, why: str) -> None:
        """Its worker or node died under it: again elsewhere, or given up."""
        item = self._items[index]
        host = item.at.host if item.at is not None else "?"
        self._avoid(index)
        item.n_lost += 1
        if item.n_lost >= self._max_attempts:
            times = "once" if item.n_lost == 1 else f"{item.n_lost} times"
            self._give_up(index, f"lost {times}, the last time on {host}: {why}")
        else:
            self._queue.insert(0, index)

    def refused(self, index: int, why: str) -> None:
        """That node can't do it; another may."""
        self._avoid(index)
        self._items[index].refusals.append(why)
        if len(self._items[index].refusals) >= self._max_attempts:
            self._give_up(index, why)
        else:
            self._queue.insert(0, index)

    def withdrawn(self, index: int) -> None:
        """Taken back from a node that did not begin."""
        self._avoid(index)
        self._queue.insert(0, index)

    def late(self, now: float) -> list[int]:
        """Items given to a node that has not begun with them."""
        waiting = (i for i in self.running if not self._items[i].begun)
        return [i for i in waiting if now - self._items[i].since >= self._patience_s]

    def stuck(self, places: Sequence[Place], now: float) -> list[int]:
        """Items that wait for a busy node while another has room."""
        found = []
        for index in self.late(now):
            item = self._items[index]
            others = [p for p in places if item.at is not None and p.id != item.at.id]
            if not self._queue and self._choose(index, others, again=False) is not None:
                found.append(index)
        return found

    def settle(self, places: Sequence[Place]) -> None:
        """Give up items that every node there is has refused."""
        for index in list(self._queue):
            item = self._items[index]
            there = [place for place in places if self._allowed(index, place)]
            if item.refusals and all(place.id in item.tried for place in there):
                self._give_up(index, item.refusals[-1])

    def can_go_on(self, places: Sequence[Place]) -> bool:
        """Whether one of these places may take what waits, now or once it is free."""
        return any(self._allowed(index, place) for index in self._queue for place in places)

    def give_up(self, why: str) -> None:
        """Give up everything that is not running."""
        for index in list(self._queue):
            self._give_up(index, why)

    def _choose(self, index: int, places: Sequence[Place], *, again: bool = True) -> Place | None:
        item = self._items[index]
        there = [place for place in places if self._allowed(index, place)]
        untried = [place for place in there if place.id not in item.tried]
        if not untried and again and not item.refusals:
            untried = there  # nowhere else to go
        free = [place for place in untried if self._room(place)]
        return min(free, key=self._load, default=None)

    def _room(self, place: Place) -> bool:
        busy = [self._items[i].at for i in self.running]
        if self._exclusive:
            return all(one is None or one.machine != place.machine for one in busy)
        return sum(one is not None and one.id == place.id for one in busy) < self._slots(place)

    def _load(self, place: Place) -> float:
        n_busy = sum(
            (at := self._items[i].at) is not None and at.id == place.id for i in self.running
        )
        return n_busy / max(1, self._slots(place))

    def _leave(self, index: int) -> Place | None:
        place, self._items[index].at = self._items[index].at, None
        return place

    def _avoid(self, index: int) -> None:
        place = self._leave(index)
        if place is not None:
            self._items[index].tried.add(place.id)

    def _give_up(self, index: int, why: str) -> None:
        if index in self._queue:
            self._queue.remove(index)
        self._leave(index)
        self._items[index].over = True
        self.failed[index] = why
