"""A loader like the user's with other settings, whose sampler is never asked for anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from loaderdoctor.settings import DEFAULT_PREFETCH_FACTOR, Settings


class NoIndexes(Sampler[Any]):
    """Stands where a sampler stands; the indexes come from elsewhere."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


def stand_in(loader: DataLoader[Any], effective: Settings | None = None) -> DataLoader[Any]:
    """A loader over the same objects with `effective` settings (None: its own).

    Made without its class's `__init__`: no warning is printed that the script would not print.
    What torch draws for it comes from a generator of its own, and so leaves the loop's alone.
    """
    made: Any = object.__new__(DataLoader)
    held = made.__dict__
    held.update(vars(loader))
    held["_iterator"] = None
    held["generator"] = torch.Generator()
    held["batch_sampler" if loader.batch_sampler is not None else "sampler"] = NoIndexes()
    if effective is None:
        return made  # type: ignore[no-any-return]
    workers = effective.num_workers or 0
    held["num_workers"] = workers
    held["pin_memory"] = bool(effective.pin_memory)
    held["persistent_workers"] = bool(workers and effective.persistent_workers)
    held["in_order"] = True
    held["timeout"] = 0
    held["prefetch_factor"] = (
        (effective.prefetch_factor or DEFAULT_PREFETCH_FACTOR) if workers else None
    )
    own_context = loader.multiprocessing_context if loader.num_workers else None
    method = effective.start_method if workers else None
    same = own_context is not None and method in (None, own_context.get_start_method())
    # A context of the user's own making is kept where it starts workers the way that is asked for.
    made.multiprocessing_context = own_context if workers and same else method
    return made  # type: ignore[no-any-return]
