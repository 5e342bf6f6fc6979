"""GPU-busy over wall time: dips of known length, period and cause, and loops without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from loaderdoctor.attribution import attribute, facts_of
from loaderdoctor.attribution.busy import MAX_SHOWN
from loaderdoctor.facts.trace import BusyFacts, IdleGapFacts
from loaderdoctor.trace import read_trace
from tests.attribution.build import TraceBuilder

TRACES = Path(__file__).parents[2] / "traces"
STEP_US, BUSY_US = 100.0, 80.0


def loop(
    wait_us: Callable[[int], float], n: int = 40, *, new_iterator: Iterable[int] = ()
) -> BusyFacts:
    """A blocking loop of n steps: each waits for its batch, then 80 of 100 us are a kernel."""
    return busy_of(wait_us, n, new_iterator=new_iterator, num_workers=None)


def busy_of(
    wait_us: Callable[[int], float],
    n: int,
    *,
    num_workers: int | None,
    new_iterator: Iterable[int] = (),
) -> BusyFacts:
    b, at = TraceBuilder(), 0.0
    seeded = set(new_iterator)
    for i in range(n):
        begin, wait = at, wait_us(i)
        if i in seeded:
            b.seed(at + 0.5)
        b.fetch(at + (6 if i in seeded else 0), at + max(wait, 7.0))
        at += max(wait, 7.0)
        b.kernel(at + 2, at + 5, at + 5 + BUSY_US)
        b.call(at + 4, at + 5 + BUSY_US, "cudaDeviceSynchronize")
        at += STEP_US - 7
        b.step(i, begin, at - 0.5)
    found = facts_of(attribute(b.trace()), num_workers=num_workers).busy
    assert found is not None
    return found


def idle_gaps_of(busy: BusyFacts) -> IdleGapFacts:
    assert busy.idle_gaps is not None
    return busy.idle_gaps


def test_one_worker_of_eight_that_is_slow_makes_dips_of_the_worker_cycle() -> None:
    idle_gaps = idle_gaps_of(busy_of(lambda i: 500.0 if i % 8 == 3 else 7.0, 50, num_workers=8))
    assert (idle_gaps.matches, idle_gaps.match_steps, idle_gaps.regular) == (
        "worker-cycle",
        8,
        True,
    )
    assert idle_gaps.period_steps == 8
    assert idle_gaps.n == 6
    assert idle_gaps.period_ms == pytest.approx((8 * STEP_US + 493) / 1e3, rel=0.02)
    assert idle_gaps.mean_ms == pytest.approx(0.5, rel=0.15)
    assert idle_gaps.usual_share == pytest.approx(0.8, abs=0.02)
    assert idle_gaps.low_share < 0.05
    assert idle_gaps.waiting_share is not None
    assert idle_gaps.waiting_share > 0.9


def test_two_slow_workers_still_repeat_with_the_cycle() -> None:
    slow = {0: 600.0, 3: 400.0}
    idle_gaps = idle_gaps_of(busy_of(lambda i: slow.get(i % 8, 7.0), 60, num_workers=8))
    assert (idle_gaps.matches, idle_gaps.match_steps) == ("worker-cycle", 8)


@pytest.mark.parametrize("wait_us", [7.0, 7.002, 7.006, 7.01, 7.018])
def test_one_long_pause_is_one_gap_of_its_length(wait_us: float) -> None:
    """Whatever a quarter of a step is in nanoseconds: an odd number cut one into hundreds."""
    gaps = idle_gaps_of(loop(lambda i: 9000.0 if i == 20 else wait_us))
    assert (gaps.n, gaps.period_ms, gaps.regular) == (1, None, False)
    assert gaps.mean_ms == pytest.approx(9.0, abs=0.1)


def test_the_same_dips_without_known_workers_are_regular_and_match_nothing() -> None:
    idle_gaps = idle_gaps_of(loop(lambda i: 500.0 if i % 8 == 3 else 7.0))
    assert (idle_gaps.matches, idle_gaps.match_steps) == (None, None)
    assert idle_gaps.regular
    assert idle_gaps.period_steps == 8


def test_waits_at_random_steps_match_no_cycle() -> None:
    rng = np.random.default_rng(5)
    matched = 0
    for _ in range(20):
        slow = set(rng.choice(100, 10, replace=False).tolist())
        busy = busy_of(lambda i, slow=slow: 500.0 if i in slow else 7.0, 100, num_workers=8)  # type: ignore[misc]
        idle_gaps = idle_gaps_of(busy)
        matched += idle_gaps.matches is not None or idle_gaps.regular
    assert matched <= 1


def test_new_iterators_make_dips_of_the_epoch_even_where_workers_would_fit() -> None:
    idle_gaps = idle_gaps_of(
        busy_of(
            lambda i: 700.0 if i % 10 == 0 else 7.0,
            45,
            num_workers=10,
            new_iterator=range(10, 45, 10),
        )
    )
    assert (idle_gaps.matches, idle_gaps.match_steps) == ("epoch", 10)
    assert idle_gaps.n == 4


@pytest.mark.parametrize("wait", [7.0, 60.0, 2000.0])
def test_a_loop_whose_steps_are_alike_has_no_dips(wait: float) -> None:
    busy = loop(lambda i: wait)
    assert busy.idle_gaps is None
    assert np.mean(busy.shares) == pytest.approx(BUSY_US / (wait + 93), rel=0.05)


def test_a_wait_too_short_to_be_seen_makes_no_dip() -> None:
    assert loop(lambda i: 40.0 if i % 8 == 3 else 7.0).idle_gaps is None


def test_every_second_step_slow_is_how_the_loop_is_not_a_dip() -> None:
    assert loop(lambda i: 7.0 if i % 3 == 1 else 500.0).idle_gaps is None


def test_long_windows_are_shown_coarsely_and_dips_keep_their_times() -> None:
    n = 2000
    busy = loop(lambda i: 500.0 if i % 100 == 50 else 7.0, n)
    assert len(busy.shares) <= MAX_SHOWN
    assert busy.every_ms * len(busy.shares) == pytest.approx(busy.window_ms, rel=0.01)
    idle_gaps = idle_gaps_of(busy)
    assert idle_gaps.n == 20
    assert idle_gaps.period_steps == 100
    assert idle_gaps.mean_ms == pytest.approx(0.5, rel=0.15)
    assert sum(b - a for a, b in idle_gaps.spans_ms) == pytest.approx(
        idle_gaps.of_window_share * busy.window_ms, rel=1e-6
    )


def test_a_trace_without_a_device_has_no_series() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10)
    b.step(2, 10, 20)
    assert facts_of(attribute(b.trace())).busy is None


@pytest.mark.parametrize(
    ("case", "n_idle_gaps", "steps", "matches"),
    [("one_slow_sample", 3, 8, None), ("respawn_each_epoch", 5, 4, "epoch")],
)
def test_recorded_dips_have_the_period_they_were_made_with(
    case: str, n_idle_gaps: int, steps: int, matches: str | None
) -> None:
    """A 120 ms sample every 512, in batches of 64; and epochs of four steps."""
    attributed = attribute(read_trace(TRACES / f"{case}.pt.trace.json.gz"))
    idle_gaps = idle_gaps_of(_busy(attributed, num_workers={"one_slow_sample": 4}.get(case, 8)))
    assert (idle_gaps.n, idle_gaps.period_steps, idle_gaps.matches) == (n_idle_gaps, steps, matches)
    assert idle_gaps.regular
    assert idle_gaps.low_share < 0.01
    assert idle_gaps.waiting_share is not None
    assert idle_gaps.waiting_share > 0.95


@pytest.mark.parametrize("case", ["enough_workers", "pinned_same_stream", "gpu_resident"])
def test_recorded_loops_that_run_evenly_have_none(case: str) -> None:
    attributed = attribute(read_trace(TRACES / f"{case}.pt.trace.json.gz"))
    assert _busy(attributed, num_workers=8).idle_gaps is None


def _busy(attributed: object, *, num_workers: int) -> BusyFacts:
    found = facts_of(attributed, num_workers=num_workers).busy  # type: ignore[arg-type]
    assert found is not None
    return found
