"""The indexes of one pass, drawn from the loop's own sampler when its own loader would draw them.

A sampler may draw from generators that the loop draws from too, or look at what the loop changes
meanwhile. Which index comes next then depends on when it is asked for, so it is asked exactly when
the loader with its own settings would have asked, however deep the queue of the present one is.
Only draws known to touch nothing outside (`quiet_draws`) may come earlier.

When a pass begins torch itself draws: the sampler's iterator, seeds, in its own order.
`OwnDraws.begin` runs the code of this torch's own iterators as far as it draws anything, and starts
no worker: generators are afterwards where they would be, whatever version of torch it is.

Runs on the thread that fetches.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch.utils.data
from torch.utils.data import DataLoader, dataloader

from loaderdoctor.instrument.handover import stand_in
from loaderdoctor.instrument.trial import shut_down

_NEVER = 2**62
_BASE: Any = dataloader._BaseDataLoaderIter


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietDraws:
    """Draws `first` to `last` of a pass (counted from 1) touch nothing outside the sampler."""

    first: int
    last: int = _NEVER

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


NONE_QUIET = QuietDraws(first=1, last=0)


def quiet_draws(loader: DataLoader[Any]) -> QuietDraws:
    """Which draws of this loader's indexes may be made early. A map-style dataset's loader only.

    Known of torch's own samplers, by their code (torch 2.0 to 2.14; a test watches the generators
    of the torch that is installed). A sampler of anybody else's: none.
    """
    sampler, n_per_draw = loader.sampler, 1
    if loader.batch_sampler is not None:
        if type(loader.batch_sampler) is not torch.utils.data.BatchSampler:
            return NONE_QUIET
        sampler, n_per_draw = loader.batch_sampler.sampler, loader.batch_sampler.batch_size
    if type(sampler) is torch.utils.data.SequentialSampler:
        return QuietDraws(first=1)
    if type(sampler) in (
        torch.utils.data.SubsetRandomSampler,
        torch.utils.data.WeightedRandomSampler,
        torch.utils.data.DistributedSampler,
    ):
        return QuietDraws(first=2)  # all that is random is drawn before the first index
    if type(sampler) is torch.utils.data.RandomSampler:
        return _of_random_sampler(sampler, n_per_draw)
    return NONE_QUIET


def _of_random_sampler(sampler: torch.utils.data.RandomSampler, n_per_draw: int) -> QuietDraws:
    if sampler.generator is None:
        return QuietDraws(first=2)  # it seeds a generator of its own before the first index
    n = len(sampler.data_source)
    if sampler.replacement or sampler.num_samples > n:
        return NONE_QUIET  # the loop's generator is drawn from again and again
    if sampler.num_samples < n:
        return QuietDraws(first=2)
    # At its end it draws one more permutation, of which it takes nothing.
    return QuietDraws(first=2, last=n // n_per_draw)


class IndexStream:
    """Indexes of one pass over the data, in order.

    `draw` gives the next index, StopIteration at the end, or raises what the user's sampler does.
    `lead` is how many the loader's own settings would have drawn ahead of the batch being asked
    for: 0 without workers, else what its workers' queues hold. `n_drawn` and `n_asked` say how far
    the pass is, where it is taken over in its middle.
    """

    def __init__(
        self,
        draw: Callable[[], Any],
        *,
        lead: int,
        quiet: QuietDraws,
        n_drawn: int = 0,
        n_asked: int = 0,
    ) -> None:
        self.n_asked = n_asked
        self.exhausted = False
        self._draw = draw
        self._lead = lead
        self._quiet = quiet
        self._n_drawn = n_drawn
        self._waiting: deque[Any] = deque()
        if lead:
            self._draw_due()

    def asked(self) -> None:
        """The loop asks for its next batch: draw what its own loader would draw by now."""
        self.n_asked += 1
        if self._n_drawn < self._lead + self.n_asked:
            self._draw_due()

    def take(self) -> Any:
        """The next index for a pool. Raises StopIteration where there is none, or none yet."""
        waiting = self._waiting
        if not waiting and self._n_drawn + 1 in self._quiet:
            self._draw_one()
        if not waiting:
            raise StopIteration
        return waiting.popleft()

    def give_back(self, indexes: Iterable[Any]) -> None:
        """Indexes that were taken and whose batches never came: the next to be taken."""
        self._waiting.extendleft(reversed(list(indexes)))

    def _draw_due(self) -> None:
        while not self.exhausted and self._n_drawn < self._lead + self.n_asked:
            self._draw_one()

    def _draw_one(self) -> None:
        if self.exhausted:
            return
        try:
            index = self._draw()
        except StopIteration:
            self.exhausted = True
            return
        self._n_drawn += 1
        self._waiting.append(index)


class OwnDraws:
    """One pass of the loader with its own settings, as far as it draws; `begin` makes them."""

    def __init__(self, state: Any) -> None:
        self._state = state  # torch's base iterator: no fetcher, no workers

    @property
    def base_seed(self) -> int:
        """What worker seeds are counted from."""
        return int(self._state._base_seed)

    def next_index(self) -> Callable[[], Any]:
        """What gives the pass's next index, or batch of indexes; it raises StopIteration."""
        return functools.partial(next, self._state._sampler_iter)

    @staticmethod
    def begin(loader: DataLoader[Any], before: OwnDraws | None) -> OwnDraws:
        """Begin a pass as `iter(loader)` would; `before` is the pass before where workers persist.

        The first index is not drawn yet. Raises what the user's sampler raises.
        """
        if before is not None and loader.num_workers and loader.persistent_workers:
            _torchs("_reset")(before._state, loader)
            return before
        state = object.__new__(_BASE)
        _torchs("__init__")(state, loader)
        if loader.num_workers:
            _torchs("_reset")(state, loader, True)
        return OwnDraws(state)

    @staticmethod
    def continuing(loader: DataLoader[Any], iterator: Any) -> OwnDraws:
        """The pass that a torch iterator is in the middle of; it draws no further itself."""
        state = object.__new__(_BASE)
        _torchs("__init__")(state, stand_in(loader))  # for what it holds besides workers, by name
        state.__dict__.update((k, vars(iterator)[k]) for k in vars(state))
        iterator._sampler_iter = iter(())
        return OwnDraws(state)

    @staticmethod
    def of_kept_workers(loader: DataLoader[Any]) -> OwnDraws | None:
        """Of the loop's own workers that persist between passes: they end, what is drawn goes on.

        Torch draws no seed for workers that it has, so none must be drawn for those in their place.
        """
        own = loader._iterator
        if type(own) is not dataloader._MultiProcessingDataLoaderIter:
            return None
        draws = OwnDraws.continuing(loader, own)
        loader._iterator = None
        shut_down(own, stuck=False)
        return draws


def _torchs(name: str) -> Any:
    """Torch's own function, without what anybody (we too) has put around it."""
    return inspect.unwrap(vars(_BASE)[name])
