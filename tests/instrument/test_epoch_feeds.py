"""The end of a trial's iterator."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from loaderdoctor.instrument.epoch_feeds import shut_down
from tests.instrument.watched import Numbers


def test_a_worker_reported_as_killed_while_its_iterator_ends_is_no_error_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iterator: Any = iter(DataLoader(Numbers(64), batch_size=4, num_workers=2))
    next(iterator)
    first, second = iterator._workers

    def reported(timeout: float | None = None) -> None:  # as by torch's handler, in a join
        raise RuntimeError(f"DataLoader worker (pid {first.pid}) is killed by signal: Killed.")

    with monkeypatch.context() as patched:
        patched.setattr(first, "join", reported)
        shut_down(iterator, stuck=False)
    first.join()
    second.join(timeout=10.0)
    assert not second.is_alive()
