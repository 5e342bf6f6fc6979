"""Timing events on a CUDA device: made before the timed steps, on the stream in use."""

from __future__ import annotations

import time

import pytest
import torch

from loaderdoctor.instrument.session.step_clock import EVENT_EVERY, DeviceMarks, StepClock

pytestmark = pytest.mark.gpu


@pytest.fixture
def marks() -> DeviceMarks:
    return DeviceMarks(torch.device("cuda", torch.cuda.current_device()))


def work(n: int = 1) -> None:
    x = torch.ones(1 << 22, device="cuda")
    for _ in range(n):
        x = x * 1.0001


def test_no_event_is_made_while_steps_are_timed(marks: DeviceMarks) -> None:
    n_steps = 5 * EVENT_EVERY
    clock = StepClock(marks, n_steps=n_steps)
    ready = len(marks._events)
    clock.start(time.perf_counter_ns(), fresh=False)
    for n in range(n_steps):
        work()
        clock.mark(time.perf_counter_ns(), edge=n + 1 == n_steps)
    times = clock.finish()
    assert len(marks._events) == ready > n_steps // EVENT_EVERY
    assert times.device_ns is not None
    assert len(times.device_ns) == n_steps
    assert all(ns > 0 for ns in times.device_ns)
    # The device can't take longer than the host waited for it, give or take the clocks.
    began, ended = times.start_ns, time.perf_counter_ns()
    assert sum(times.device_ns) < 1.1 * (ended - began)


def test_marks_go_to_the_stream_that_is_current(marks: DeviceMarks) -> None:
    marks.reset(EVENT_EVERY)
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    marks.mark()
    with torch.cuda.stream(other):
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # some 30 ms of the device alone
        marks.mark()  # after the work of `other`, of which the first stream knows nothing
        work()
    marks.mark()
    busy, first_stream = marks.elapsed_ns()[1:]
    assert busy > 0
    assert marks._stream() == torch.cuda.current_stream()
    assert len(marks._streams) == 2
    assert first_stream < busy
