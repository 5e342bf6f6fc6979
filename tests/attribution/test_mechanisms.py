"""By what a loader was seen to hold the step up, of windows with known counters."""

from __future__ import annotations

import pytest
from msgspec import structs

from loaderdoctor.attribution.ablation import Round
from loaderdoctor.attribution.cpu import queued_ns
from loaderdoctor.attribution.mechanisms import LOST_PER_HELD, mechanisms
from loaderdoctor.instrument.wire.measured import CpuRecord, FetchRecord
from loaderdoctor.instrument.wire.protocol import Mode, WindowDone
from loaderdoctor.instrument.wire.records import BoundaryRecord
from tests.attribution.builders import MS, boundary, observed, window

N = 4


def counted(
    mode: Mode,
    *,
    step_ms: float = 10.0,
    wait_ms: float = 0.0,
    got_cpu_ms: float = 0.0,
    got_queued_ms: float = 0.0,
    ran_ms: float = 8.0,
    queued_ms: float = 0.5,
    python_ms: float = 0.0,
    made_ms: float = 0.0,
    boundaries: tuple[BoundaryRecord, ...] = (),
) -> WindowDone:
    """A window of four steps; times are a step's."""
    waits_ms = [wait_ms] * N if wait_ms else []
    made = window(mode, [step_ms] * N, waits_ms=waits_ms, boundaries=boundaries)
    fetches = tuple(
        structs.replace(f, cpu_ns=round(got_cpu_ms * MS), queued_ns=round(got_queued_ms * MS))
        for f in made.fetches
    )
    cpu = CpuRecord(
        wall_ns=round(N * step_ms * MS),
        main_ns=round(N * ran_ms * MS),
        waited_ns=round(N * queued_ms * MS),
        thread_waited_ns=round(N * queued_ms * MS),
        thread_ns=round(N * ran_ms * MS),
        python_ns=round(N * python_ms * MS),
        python_waited_ns=0,
    )
    return structs.replace(made, fetches=fetches, cpu=cpu, worker_cpu_ns=round(N * made_ms * MS))


def rounds(plain: WindowDone, ready: WindowDone, n: int = 3) -> list[Round]:
    return [Round(plain=plain, no_input=ready) for _ in range(n)]


READY = counted("no_input")


def test_each_mechanism_is_read_off_its_own_counter() -> None:
    plain = counted(
        "plain", wait_ms=3.0, got_cpu_ms=1.0, got_queued_ms=1.2, ran_ms=10.5, queued_ms=2.5,
        python_ms=0.6, made_ms=7.0,
    )  # fmt: skip
    seen = mechanisms(rounds(plain, READY), [plain] * 3, observed(workers=1))
    assert seen.wait_ms and seen.run_queue_ms and seen.cpu_ms and seen.interpreter_ms
    assert seen.wait_ms.value == pytest.approx(3.0)
    assert seen.run_queue_ms.value == pytest.approx(2.0)
    assert seen.cpu_ms.value == pytest.approx(10.5 - 1.0 - 8.0)  # receiving is part of the wait
    assert seen.interpreter_ms.value == pytest.approx(0.6 * LOST_PER_HELD)
    assert seen.work_ms is not None
    assert seen.work_ms.value == pytest.approx(7.0 + 0.6 + 1.0)
    assert seen.queued_ms is not None
    assert seen.queued_ms.value == pytest.approx(1.2)
    assert seen.unqueued_ms is not None
    assert seen.unqueued_ms.value == pytest.approx(3.0 - 1.2)
    assert seen.exposed


def test_a_boundary_counts_as_often_as_epochs_end() -> None:
    made = boundary(80.0)
    plain = counted("plain", wait_ms=12.0, boundaries=(made,))
    seen = mechanisms(rounds(plain, READY), [plain] * 2, observed(workers=1), boundary_ms=80.0 / 40)
    assert seen.wait_ms is not None
    assert seen.wait_ms.value == pytest.approx((4 * 12.0 - 40.0) / 4 + 2.0)


@pytest.mark.parametrize("each_step", [False, True])
def test_what_validation_waits_for_is_not_taken_from_the_steps_waits(each_step: bool) -> None:
    """Its loader's first batch, at each epoch's end: of an input-bound loop nothing was left."""
    others = structs.replace(boundary(80.0), loader="train.py:2")
    plain = counted("plain", wait_ms=12.0, got_queued_ms=1.0)
    if each_step:
        plain = structs.replace(plain, boundary_steps=tuple(range(N)))
    beside = structs.replace(plain, boundaries=(others,))
    for windows in ([plain] * 2, [beside] * 2):
        seen = mechanisms(rounds(windows[0], READY), windows, observed(workers=1))
        assert seen.wait_ms is not None and seen.wait_ms.value == pytest.approx(12.0)
        assert seen.unqueued_ms is not None and seen.unqueued_ms.value == pytest.approx(11.0)


def test_with_an_accelerator_waits_may_be_hidden() -> None:
    plain = counted("plain", wait_ms=3.0)
    seen = mechanisms(rounds(plain, READY), [plain] * 2, observed(device="cuda:0"))
    assert not seen.exposed


def test_the_wait_of_one_window_is_known_without_an_interval() -> None:
    plain = counted("plain", wait_ms=3.0)
    seen = mechanisms(rounds(plain, READY)[:1], [plain], observed())
    assert seen.wait_ms is not None and seen.wait_ms.value == pytest.approx(3.0)
    assert not seen.wait_ms.bounded


def test_what_was_not_recorded_is_none() -> None:
    bare = window("plain", [10.0] * N)
    seen = mechanisms(rounds(bare, window("no_input", [9.0] * N)), [bare] * 3, observed())
    assert (seen.wait_ms, seen.run_queue_ms, seen.cpu_ms, seen.interpreter_ms) == (None,) * 4


def test_validation_between_the_steps_is_no_mechanism_of_theirs() -> None:
    plain = counted("plain", wait_ms=1.0)
    with_validation = structs.replace(plain, end_ns=2 * plain.end_ns)
    seen = mechanisms(rounds(with_validation, READY), [plain] * 2, observed())
    assert seen.run_queue_ms is None
    assert seen.cpu_ms is None


def test_fetches_that_were_not_asked_queued_for_the_same_part_of_their_time() -> None:
    plain = counted("plain", wait_ms=3.0, got_queued_ms=1.2)
    some = tuple(
        f if n % 2 else structs.replace(f, queued_ns=None) for n, f in enumerate(plain.fetches)
    )
    none = tuple(structs.replace(f, queued_ns=None) for f in plain.fetches)
    ms = []
    for fetches in (plain.fetches, some, none):
        asked = structs.replace(plain, fetches=fetches)
        seen = mechanisms(rounds(asked, READY), [asked] * 3, observed(workers=1))
        ms.append(None if seen.queued_ms is None else seen.queued_ms.value)
    assert ms == [pytest.approx(1.2), pytest.approx(1.2), None]


def test_of_two_loaders_each_queued_for_its_own_part() -> None:
    fetch = FetchRecord(loader=0, start_ns=0, end_ns=1000, thread=1, queued_ns=100)
    other = structs.replace(fetch, loader=1, end_ns=9000, queued_ns=8100)
    unasked = [structs.replace(x, queued_ns=None) for x in (fetch, other)]
    assert queued_ns([fetch, other, *unasked]) == pytest.approx(2 * (100 + 8100))
    assert queued_ns([fetch, *unasked]) is None  # nothing is known of the second
