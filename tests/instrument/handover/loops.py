"""Small loops that log what they get and what they draw, with their loader handed over or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from loaderdoctor.instrument.batches import digest
from loaderdoctor.instrument.handover.live_loader import LiveLoader
from loaderdoctor.instrument.handover.live_pass import LoopsPass
from loaderdoctor.settings import Settings

N_SAMPLES = 40


class Squares(Dataset[Any]):
    """Sample i is i and its square."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index * index)), index


@dataclass
class Log:
    """What a loop saw: batches and its own draws, and what happened to its loader."""

    steps: list[Any] = field(default_factory=list)
    served: list[Settings] = field(default_factory=list)
    live: LiveLoader | None = None
    reasons: list[str | None] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """Of the events, in order."""
        return [] if self.live is None else [event.kind for event in self.live.events]


class Iterated:
    """What the loop iterates: a pass, and torch's iterator where it began with one."""

    def __init__(self, made: LoopsPass, own: Any) -> None:
        self.made, self.own = made, own

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.made.next_batch(self.own)


def looped(
    make: Callable[[], DataLoader[Any]],
    plan: Mapping[int, Settings] | None = None,
    *,
    exact: bool = True,
    at_epoch: bool = False,
    n_epochs: int = 3,
    leave_at: int | None = None,
    before_epoch: Callable[[DataLoader[Any], int], None] = lambda loader, epoch: None,
    after_step: Callable[[int, DataLoader[Any], LiveLoader | None], None] = lambda *_: None,
    **live_options: Any,
) -> Log:
    """Run a loop; with a `plan`, settings are wanted behind the steps that it names.

    `at_epoch`: they are wanted for the next epoch. `leave_at`: batches after which the loop breaks
    off each epoch. It draws from all global generators in each step, as dropout would.
    """
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(7)
    loader, log = make(), Log()
    if plan is not None:
        log.live = LiveLoader(loader, exact=exact, has_accelerator=False, **live_options)
    step = 0
    try:
        for epoch in range(n_epochs):
            before_epoch(loader, epoch)
            iterator = iter(loader) if log.live is None else _opened(log.live, loader)
            for at, batch in enumerate(iterator, 1):
                draws = drawn()
                log.steps.append((digest(batch).hex(), draws))
                if log.live is not None:
                    log.served.append(log.live.serving)
                step += 1
                after_step(step, loader, log.live)
                if plan is not None and log.live is not None and step in plan:
                    log.reasons.append(log.live.want(plan[step], at_epoch=at_epoch))
                if at == leave_at:
                    break
            del iterator
    finally:
        if log.live is not None:
            log.live.close()
    generator = loader.generator
    log.steps.append(drawn())
    if generator is not None:
        log.steps.append(torch.rand((), generator=generator).item())
    return log


def drawn() -> tuple[float, float, float]:
    """A draw from each global generator."""
    return torch.rand(()).item(), random.random(), np.random.rand()  # noqa: NPY002


def _opened(live: LiveLoader, loader: DataLoader[Any]) -> Iterated:
    return Iterated(*live.begin_pass(lambda: iter(loader)))
