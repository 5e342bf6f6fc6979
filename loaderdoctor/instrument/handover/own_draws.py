"""What torch itself draws when a pass begins: the sampler's iterator, seeds, in its own order.

`begin` runs the code of this torch's own iterators as far as it draws anything, and starts no
worker: generators are afterwards where they would be, whatever version of torch it is.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data import DataLoader, dataloader

from loaderdoctor.instrument.handover.stand_in import stand_in
from loaderdoctor.instrument.trial.epoch_feeds import shut_down

_BASE: Any = dataloader._BaseDataLoaderIter


class OwnDraws:
    """One pass of the loader with its own settings, as far as it draws; `begin` makes them."""

    def __init__(self, state: Any) -> None:
        self._state = state  # torch's base iterator: no fetcher, no workers

    @property
    def base_seed(self) -> int:
        """What worker seeds are counted from."""
        return int(self._state._base_seed)

    def next_index(self) -> Any:
        """The sampler's next index, or batch of indexes. Raises StopIteration."""
        return next(self._state._sampler_iter)


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


def continuing(loader: DataLoader[Any], iterator: Any) -> OwnDraws:
    """The pass that one of torch's iterators is in the middle of; it draws no further itself."""
    state = object.__new__(_BASE)
    _torchs("__init__")(state, stand_in(loader))  # for what it holds besides workers, by name
    state.__dict__.update((k, vars(iterator)[k]) for k in vars(state))
    iterator._sampler_iter = iter(())
    return OwnDraws(state)


def of_kept_workers(loader: DataLoader[Any]) -> OwnDraws | None:
    """The loop's own workers where they persist between passes: they end, what is drawn goes on.

    Torch draws no seed for workers that it has, so none must be drawn for those in their place.
    """
    own = loader._iterator
    if type(own) is not dataloader._MultiProcessingDataLoaderIter:
        return None
    draws = continuing(loader, own)
    loader._iterator = None
    shut_down(own, stuck=False)
    return draws


def _torchs(name: str) -> Any:
    """Torch's own function, without what anybody (we too) has put around it."""
    return inspect.unwrap(vars(_BASE)[name])
