"""Batches that a thread of the script's own fetches for the one that trains."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.session.roles import Definition, RoleObserver
from tests.instrument.watched import Slow, Trainer, watch


def test_the_step_is_defined_once_where_both_threads_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has seen enough before either has said so, or it waits in vain for the other."""
    decide, both = RoleObserver.decide, threading.Barrier(2)
    raised: list[BaseException] = []

    def in_step(self: RoleObserver, now: int) -> Definition | None:
        found = decide(self, now)
        if found is not None and not both.broken:
            try:
                both.wait(1.0)
            except threading.BrokenBarrierError:
                return found
            both.abort()
        return found

    monkeypatch.setattr(RoleObserver, "decide", in_step)
    batches: queue.Queue[Any] = queue.Queue()

    def fetch() -> None:
        try:
            for x, _ in DataLoader(Slow(200, ms=2.0), 2):
                batches.put(x)
        except BaseException as error:
            raised.append(error)
        batches.put(None)

    def loop() -> None:
        trainer = Trainer()
        fetching = threading.Thread(target=fetch)
        fetching.start()
        while (x := batches.get()) is not None:
            trainer.step(x)
            time.sleep(0.003)
        fetching.join()

    run = watch(loop)
    assert not raised, raised[0]
    assert run.observed.loaders[0].in_background
