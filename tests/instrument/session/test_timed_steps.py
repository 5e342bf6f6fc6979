"""A loader drained alone, with real workers: nothing of it reaches the loop."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import DataLoader

from loaderdoctor.instrument.session.timed_steps import drained
from loaderdoctor.instrument.wire.protocol import WindowRequest
from loaderdoctor.settings import Settings
from tests.instrument.opening import opened
from tests.instrument.trial_cases import Squares


def test_a_drained_loader_gives_the_time_of_each_fetch() -> None:
    loader: DataLoader[Any] = DataLoader(Squares(40), batch_size=4)
    source = opened(loader, Settings())
    request = WindowRequest(id=7, mode="trial", n_steps=6, drain=True)
    deadline = time.perf_counter_ns() + 60 * 10**9
    done = drained(source, request, cycle=1, samples_per_batch=4.0, deadline=deadline)
    assert (done.status, done.n_steps, done.n_samples) == ("ok", 6, 24)
    assert sum(done.host_step_ns) == done.end_ns - done.start_ns
    assert done.startup_ns is not None
    # One cycle went first: the next batch is the eighth.
    assert source.next_batch()[1].tolist() == [28, 29, 30, 31]
    source.close()


def test_draining_ends_at_the_deadline_with_what_it_has() -> None:
    loader: DataLoader[Any] = DataLoader(Squares(40), batch_size=4)
    source = opened(loader, Settings())
    request = WindowRequest(id=7, mode="trial", n_steps=10**6, limit_s=0.1, drain=True)
    deadline = time.perf_counter_ns() + 10**8
    done = drained(source, request, cycle=1, samples_per_batch=4.0, deadline=deadline)
    assert done.status == "short"
    assert 0 < done.n_steps < 10**6
    source.close()
