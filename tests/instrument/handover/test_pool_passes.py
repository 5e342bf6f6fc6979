"""Workers that persist are given another pass while they still make batches of the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from loaderdoctor.instrument import trial
from loaderdoctor.instrument.handover import Pool
from loaderdoctor.instrument.trial import NoBatchError
from loaderdoctor.instrument.trial.trial_checks import loader_settings
from tests.instrument.handover.loops import Squares


class Slow(Squares):
    """A batch takes several of the looks at its workers; one index takes for ever."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(600 if index == 39 else 0.2)
        return super().__getitem__(index)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """One that waits 1.5 seconds for a batch, and has given the first of its pass."""
    monkeypatch.setattr(trial, "POLL_S", 0.05)
    loader: DataLoader[Any] = DataLoader(
        Slow(), 2, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    made = Pool(loader, loader_settings(loader), seed=1, limit_s=1.5)
    yield made
    made.close(stuck=True)


def serve(pool: Pool, *indexes: int) -> None:
    left = iter([[i, i + 1] for i in indexes])
    pool.serve(lambda: next(left))


def test_a_pass_begins_once_they_have_made_what_the_loop_left(pool: Pool) -> None:
    serve(pool, 0, 2, 4, 6)
    assert pool.next_batch()[1].tolist() == [0, 1]
    pool.begin_pass()
    serve(pool, 10, 12)
    assert [pool.next_batch()[1].tolist() for _ in range(2)] == [[10, 11], [12, 13]]
    with pytest.raises(StopIteration):
        pool.next_batch()


def test_a_batch_that_hangs_is_waited_for_as_long_as_any(pool: Pool) -> None:
    serve(pool, 0, 38)
    pool.next_batch()
    began = time.monotonic()
    with pytest.raises(NoBatchError, match=r"timed out after 1\.5 seconds"):
        pool.begin_pass()
    assert time.monotonic() - began > 1.4
