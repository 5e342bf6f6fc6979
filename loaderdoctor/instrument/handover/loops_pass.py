"""What the loop iterates in one pass: torch's own iterator as it is, until it is taken over."""

from __future__ import annotations

from typing import Any, Protocol

from loaderdoctor.instrument.handover.live_pass import LivePass
from loaderdoctor.instrument.handover.own_pass import OwnPass
from loaderdoctor.instrument.handover.pools import Sample
from loaderdoctor.settings import Settings


class Owner(Protocol):
    """The loader that a pass belongs to (`live_loader.LiveLoader`)."""

    own: Settings
    wanted: Settings

    def take_over(self, own: Any, seen: OwnPass) -> LivePass | None: ...

    def saw(self, sample: Sample | None, *, drew: bool, changed: bool) -> None: ...


class LoopsPass:
    """One pass of the loop, torch's own or taken over; held by what the loop iterates."""

    __slots__ = ("__weakref__", "_live", "_own", "_taken", "n_given")

    def __init__(self, live: Owner, taken: LivePass | None, own: OwnPass | None) -> None:
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
        taken = self._taken
        batch = self._next(own) if taken is None else taken.next_batch(own)
        self.n_given += 1
        return batch

    def _next(self, own: Any) -> Any:
        live, seen = self._live, self._own
        if seen is None:
            return next(own)
        if live.wanted is not live.own:
            taken = self._taken = live.take_over(own, seen)
            if taken is not None:
                return taken.next_batch(own)
        return seen.next_batch(own, live.saw)

    def close(self) -> None:
        """The loop has left it."""
        if self._taken is not None:
            self._taken.close()
