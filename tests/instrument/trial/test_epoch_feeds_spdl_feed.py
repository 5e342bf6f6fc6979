"""`spdl`: SPDL's workers hand out the loader's own batches, and are gone with the source."""

from __future__ import annotations

import os
import time

import pytest
from torch.utils.data import DataLoader, SequentialSampler

from loaderdoctor.instrument.trial.open_trial import measure_boundary
from loaderdoctor.settings import Settings
from tests.instrument import trial_cases as cases
from tests.instrument.axis_cases import digests, plainly
from tests.instrument.opening import opened, reason
from tests.instrument.trial_cases import Failing, Squares, WorkerIds

pytest.importorskip("spdl.dataloader")
SPDL = Settings(spdl=True, num_workers=2)


def test_batches_are_the_loaders_own_epoch_after_epoch_and_workers_end() -> None:
    before = cases.children()
    loader = DataLoader(Squares(10), batch_size=4)
    source = opened(loader, SPDL)
    assert digests(source.next_batch() for _ in range(6)) == plainly(loader, 3) * 2
    assert measure_boundary(source) > 0
    source.close()
    deadline = time.monotonic() + 20
    while cases.children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cases.children() <= before


def test_its_workers_make_the_samples() -> None:
    source = opened(DataLoader(WorkerIds(), batch_size=4), SPDL)
    assert os.getpid() not in source.next_batch().tolist()
    source.close()


def test_samples_that_are_batches_come_as_they_are() -> None:
    whole = Squares(6)
    loader = DataLoader(whole, batch_size=None, sampler=SequentialSampler(whole))
    source = opened(loader, SPDL)
    assert digests(source.next_batch() for _ in range(6)) == plainly(loader, 6)
    source.close()


def test_a_batch_that_is_left_out_is_an_error() -> None:
    source = opened(DataLoader(Failing(), batch_size=2), SPDL)
    assert [source.next_batch().tolist() for _ in range(3)] == [[0, 1], [4, 5], [6, 7]]
    with pytest.raises(RuntimeError, match="left out 1 of 4 batches"):
        source.next_batch()
    source.close()


def test_what_it_lacks_is_refused() -> None:
    loader = DataLoader(Squares(8), batch_size=4, num_workers=1, worker_init_fn=print)
    assert "worker_init_fn" in reason(loader, SPDL)
    assert "needs num_workers" in reason(DataLoader(Squares(8)), Settings(spdl=True))
