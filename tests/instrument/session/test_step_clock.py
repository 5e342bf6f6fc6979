"""Steps are timed between their boundaries; what lies between epochs is told apart."""

from __future__ import annotations

import random

import pytest

from loaderdoctor.instrument.session.step_clock import EVENT_EVERY, OFTEN, DeviceMarks, StepClock


class FakeDevice(DeviceMarks):
    """An accelerator whose clock is set by hand: marks are reached at `now`."""

    def __init__(self) -> None:
        self.now = 0
        self.at: list[int] = []
        self.every = EVENT_EVERY

    def reset(self, n_steps: int = 0) -> None:
        self.at = []

    def mark(self) -> None:
        self.at.append(self.now)

    def elapsed_ns(self) -> list[int]:
        return [t - self.at[0] for t in self.at]


def test_steps_run_from_boundary_to_boundary() -> None:
    clock = StepClock(None)
    clock.start(100, fresh=False)
    for now in (110, 125, 145):
        clock.mark(now)
    times = clock.finish()
    assert times.host_ns == (10, 15, 20)
    assert times.device_ns is None
    assert (times.start_ns, times.end_ns) == (100, 145)
    assert times.boundary_steps == ()


def test_the_first_step_of_an_epoch_holds_teardown_creation_and_nothing_else_between() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=False)
    clock.mark(10)
    assert clock.mark(20)  # this entry finds the epoch at its end, in 3 ns
    clock.exhausted(3)
    clock.foreign()  # validation, until 1000
    clock.created(7)
    assert not clock.mark(1007)  # begins no span: the boundary belongs to the step that follows
    assert clock.mark(1017)
    times = clock.finish()
    assert times.host_ns == (10, 10, 10 + 3 + 7)
    assert times.boundary_steps == (2,)


def test_a_step_with_validation_inside_does_not_count() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=False)
    clock.mark(10)
    clock.foreign()
    clock.mark(500)
    clock.mark(510)
    assert clock.finish().host_ns == (10, 10)


def test_where_every_step_fetches_from_other_loaders_all_count() -> None:
    clock = StepClock(None)
    clock.accept_foreign()
    clock.start(0, fresh=False)
    for now in (10, 20):
        clock.foreign()
        clock.mark(now)
    assert clock.n_steps == 2


def test_workers_that_end_with_a_dropped_iterator_belong_to_the_boundary() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=False)
    clock.mark(10)
    clock.teardown(50)  # the loop left early: the old iterator dies inside the step
    clock.replaced(70)
    clock.created(5)
    clock.mark(75)
    clock.mark(85)
    times = clock.finish()
    assert times.host_ns == (10, 10, 10 + 5 + 50)
    assert times.boundary_steps == (2,)


def test_a_window_that_begins_with_an_epoch_has_its_boundary_in_the_first_step() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=True)
    clock.mark(10)
    clock.mark(20)
    assert clock.finish().boundary_steps == (0,)


def test_the_device_pays_only_for_the_part_of_a_boundary_it_waited_for() -> None:
    device = FakeDevice()
    clock = StepClock(device)
    device.now = 0
    clock.start(0, fresh=False)
    device.now = 40  # the host ran ahead: it is at 10 when the device is at 40
    clock.mark(10)
    clock.exhausted(0)
    clock.created(100)  # until 110: the device idles from 40 on, 70 of the 100
    device.now = 110
    clock.mark(110)
    device.now = 150
    clock.mark(120)
    times = clock.finish()
    assert times.host_ns == (10, 10 + 100)
    assert times.device_ns == (40, 40 + 70)


def test_validation_between_epochs_is_not_the_devices_either() -> None:
    device = FakeDevice()
    clock = StepClock(device)
    clock.start(0, fresh=False)
    device.now = 10
    clock.mark(10)
    clock.exhausted(2)
    clock.foreign()
    clock.created(3)
    device.now = 900
    clock.mark(900)
    device.now = 910
    clock.mark(910)
    assert clock.finish().device_ns == (10, 10 + 2 + 3)


def sparse(n_steps: int, *, foreign_at: int | None = None) -> tuple[StepClock, FakeDevice]:
    """A window of steps of 10 ns on the device; one may hold a validation of 1000 ns."""
    device = FakeDevice()
    clock = StepClock(device)
    clock.start(0, fresh=False)
    for i in range(1, n_steps + 1):
        device.now += 10
        if i == foreign_at:
            clock.foreign()
            device.now += 1000
        clock.mark(i, edge=i == n_steps)
    return clock, device


def test_most_steps_need_no_event_and_sums_stay_exact() -> None:
    clock, device = sparse(20)
    times = clock.finish()
    assert times.device_ns == (10,) * 20
    assert len(device.at) == 1 + 20 // EVENT_EVERY + 1


def test_uneven_steps_are_spread_but_their_sum_is_kept() -> None:
    device = FakeDevice()
    clock = StepClock(device)
    clock.start(0, fresh=False)
    for i, length in enumerate((5, 36, 5, 36, 5, 36, 5, 36)):
        device.now += length
        clock.mark(i + 1, edge=i == 7)
    times = clock.finish()
    assert times.device_ns is not None
    assert sum(times.device_ns) == 4 * 41


def test_validation_within_a_step_is_not_spread_over_its_neighbours() -> None:
    clock, _ = sparse(20, foreign_at=12)
    times = clock.finish()
    assert times.device_ns is not None
    assert set(times.device_ns) == {10}
    assert len(times.device_ns) < 20


def validating(device: FakeDevice, *, every: int, n_marks: int, training: int = 10) -> StepClock:
    """A window of a loop that validates in each `every`th step."""
    clock = StepClock(device)
    clock.start(0, fresh=False)
    for i in range(1, n_marks + 1):
        device.now += training
        if i % every == 0:
            clock.foreign()
            device.now += 1000
        clock.mark(i, edge=i == n_marks)
    return clock


@pytest.mark.parametrize("every", [2, 3, 4, 5, 8, 9, 16, 50])
def test_a_loop_that_often_validates_keeps_all_other_steps(every: int) -> None:
    device = FakeDevice()
    n_marks = 4 * every
    first = validating(device, every=every, n_marks=n_marks).finish()
    assert first.device_ns is not None
    assert set(first.device_ns) == {10}
    # Only those before the first validation may be lost, and none in the windows that follow.
    assert len(first.device_ns) >= 3 * (every - 1)
    later = validating(device, every=every, n_marks=n_marks).finish()
    assert later.device_ns == (10,) * (4 * (every - 1))


def test_a_loop_that_seldom_validates_needs_no_more_events() -> None:
    device = FakeDevice()
    validating(device, every=OFTEN + 6, n_marks=3 * OFTEN)
    assert device.every == EVENT_EVERY


def test_a_window_cut_short_has_an_event_at_its_end() -> None:
    device = FakeDevice()
    clock = StepClock(device)
    clock.start(0, fresh=False)
    for i in range(3):
        device.now += 10
        clock.mark(i + 1, edge=False)
    assert clock.finish().device_ns == (10, 10, 10)


@pytest.mark.parametrize("seed", range(40))
def test_steps_counted_the_short_way_are_those_counted_in_full(seed: int) -> None:
    """Where nothing lies between two marks less is done; the times are the same."""
    clocks = [StepClock(None), StepClock(None)]
    chance, now = random.Random(seed), 0
    fresh = chance.random() < 0.5
    for clock in clocks:
        clock.start(0, fresh=fresh)
    for _ in range(60):
        now += chance.randrange(1, 100)
        event, ns = chance.randrange(14), chance.randrange(1, 50)
        for clock, edge in zip(clocks, (False, True), strict=True):
            clock.mark(now, edge=edge)
            if event == 0:
                clock.exhausted(ns)
                clock.created(ns + 1)
            elif event == 1:
                clock.teardown(ns)
                clock.replaced(now + ns)
            elif event == 2:
                clock.foreign()
            elif event == 3:
                clock.crossed()
    assert clocks[0].finish() == clocks[1].finish()
    assert clocks[0].n_marks_since_step == clocks[1].n_marks_since_step


def test_an_entry_that_gets_an_error_begins_no_step() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=False)
    clock.mark(10)
    clock.mark(20)
    clock.failed()
    assert clock.outside
    assert not clock.mark(27)  # begins no span in a trace: the one that failed goes on
    assert clock.mark(37)
    assert clock.n_steps == 3
    assert clock.finish().host_ns == (10, 10, 10)


def test_an_epoch_whose_first_batch_fails_begins_with_the_next() -> None:
    clock = StepClock(None)
    clock.start(0, fresh=False)
    clock.mark(10)
    clock.mark(20)
    clock.exhausted(3)
    clock.created(7)
    clock.mark(1007)
    clock.failed()
    clock.mark(1050)
    clock.mark(1060)
    times = clock.finish()
    assert times.host_ns == (10, 10, 10 + 3 + 7)
    assert times.boundary_steps == (2,)


@pytest.mark.parametrize("every", [3, EVENT_EVERY - 1, EVENT_EVERY, 20])
def test_errors_take_no_time_of_the_device_from_the_steps_around_them(every: int) -> None:
    device = FakeDevice()
    clock = StepClock(device)
    clock.start(0, fresh=False)
    for i in range(1, 6 * every):
        device.now += 70 if i % every == 1 and i > 1 else 10  # of the fetch that failed before
        clock.mark(device.now, edge=False)
        if i % every == 0:
            clock.failed()
    times = clock.finish()
    assert times.device_ns is not None
    assert set(times.device_ns) == set(times.host_ns) == {10}
    assert len(times.host_ns) >= 4 * (every - 1)
