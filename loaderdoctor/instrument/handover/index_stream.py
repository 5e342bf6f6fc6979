"""The indexes of one pass, drawn from the loop's own sampler when its own loader would draw them.

A sampler may draw from generators that the loop draws from too, or look at what the loop changes
meanwhile. Which index comes next then depends on when it is asked for, so it is asked exactly when
the loader with its own settings would have asked, however deep the queue of the present one is.
Only draws known to touch nothing outside (`quiet_draws`) may come earlier.

Runs on the thread that fetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch.utils.data
from torch.utils.data import DataLoader

_NEVER = 2**62


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
