"""Copies of sampled steps: counted on the step's stream only, and torch left as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from loaderdoctor.instrument.recording.process_counts import (
    MAX_CALLS,
    MAX_OPEN,
    CopyProbe,
    DryProbe,
)

DEVICE = torch.device("meta")  # copies to it are seen as copies to any accelerator


class Clock:
    """A device whose every event is reached 2 ms after the one before."""

    def __init__(self) -> None:
        self.n, self.stream, self.done, self.n_made = 0, "the step's", True, 0

    def event(self) -> Any:
        clock = self
        clock.n_made += 1

        class Event:
            at = 0

            def record(self, stream: str) -> None:
                clock.n += 1
                self.at = clock.n

            def query(self) -> bool:
                return clock.done

            def elapsed_time(self, other: Event) -> float:
                return 2.0 * (other.at - self.at)

        return Event()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probe(clock: Clock) -> Iterator[CopyProbe]:
    made = CopyProbe(DEVICE, event=clock.event, stream_of=lambda device: clock.stream)
    yield made
    made.end()


def test_two_copies_of_a_step_are_counted_once_they_are_done(
    probe: CopyProbe, clock: Clock
) -> None:
    clock.done = False
    probe.begin()
    x = torch.ones(3).to("meta")
    torch.ones(3).to("meta", non_blocking=True)
    torch.ones(3).double()  # no copy to the device
    probe.end()
    assert x.device.type == "meta"
    assert probe.take() == (0, 0)
    clock.done = True
    assert probe.take() == (1, 4_000_000)
    assert probe.take() == (0, 0)


def test_a_step_without_a_copy_counts_as_one(probe: CopyProbe) -> None:
    probe.begin()
    probe.end()
    assert probe.take() == (1, 0)


def test_other_streams_and_other_threads_hold_nothing_up(probe: CopyProbe, clock: Clock) -> None:
    probe.begin()
    clock.stream = "one of its own"
    torch.ones(3).to("meta")
    clock.stream = "the step's"
    thread = threading.Thread(target=lambda: torch.ones(3).to("meta"))
    thread.start()
    thread.join()
    probe.end()
    assert probe.take() == (1, 0)


def test_a_step_of_more_copies_than_are_kept_is_not_counted(probe: CopyProbe) -> None:
    probe.begin()
    for _ in range(MAX_CALLS + 5):
        torch.ones(3).to("meta")
    probe.end()
    assert probe.take() == (0, 0)


def test_torch_is_as_it_was_and_another_hook_goes_before(probe: CopyProbe, clock: Clock) -> None:
    before = torch.Tensor.to
    other = CopyProbe(DEVICE, event=clock.event, stream_of=lambda device: clock.stream)
    other.install()
    probe.begin()
    probe.end()
    assert other.installed
    other.remove()
    assert probe.take() == (0, 0)
    assert torch.Tensor.to is before


@pytest.fixture
def dry(clock: Clock) -> DryProbe:
    return DryProbe(DEVICE, event=clock.event, stream_of=lambda device: clock.stream)


def test_a_device_stood_dry_from_before_the_fetch_to_after_it(dry: DryProbe, clock: Clock) -> None:
    clock.done = False
    for _ in range(3):
        dry.before_fetch()
        dry.after_fetch()
    assert dry.take() == (0, 0)  # never waited for
    clock.done = True
    assert dry.take() == (3, 3 * 2_000_000)
    assert dry.take() == (0, 0)


def test_a_fetch_that_found_the_epoch_over_is_no_step_and_keeps_no_event(
    dry: DryProbe, clock: Clock
) -> None:
    for _ in range(200):
        dry.before_fetch()
        dry.cancel()
    assert dry.take() == (0, 0)
    assert clock.n_made == 2
    dry.cancel()  # nothing is under way
    dry.after_fetch()
    assert dry.take() == (0, 0)


def test_no_more_events_are_made_than_of_so_many_steps(dry: DryProbe, clock: Clock) -> None:
    clock.done = False
    for _ in range(3 * MAX_OPEN):
        dry.before_fetch()
        dry.after_fetch()
    assert clock.n_made == 2 * MAX_OPEN
    clock.done = True
    assert dry.take() == (MAX_OPEN, MAX_OPEN * 2_000_000)
    for _ in range(MAX_OPEN):
        dry.before_fetch()
        dry.after_fetch()
    assert dry.take() == (MAX_OPEN, MAX_OPEN * 2_000_000)
    assert clock.n_made == 2 * MAX_OPEN
