"""How often the accelerator is looked at: seldom enough not to be felt, however short the steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loaderdoctor.instrument import recording
from loaderdoctor.instrument.recording import SAMPLE_EVERY, SAMPLE_NS, Recorder, sample_every

SAMPLE_COST_NS = 170_000
DAY_NS = 86_400 * 10**9


def test_no_number_of_workers_divides_how_often_a_step_is_sampled() -> None:
    for n in SAMPLE_EVERY:
        assert all(n % workers for workers in range(2, n))


@pytest.mark.parametrize("step_ms", [0.3, 0.6, 1.0, 2.0, 3.0, 8.0, 50.0, 2000.0])
def test_samples_cost_less_than_half_a_percent_of_a_step(step_ms: float) -> None:
    n = sample_every(step_ms * 1e6)
    assert SAMPLE_COST_NS / n < 0.005 * step_ms * 1e6
    assert n == SAMPLE_EVERY[0] or n * step_ms * 1e6 < 2.5 * SAMPLE_NS  # and not less than needed


class Probe:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.n_begun = self.n_ended = self.n_sampled = 0

    def begin(self) -> None:
        self.n_begun += 1

    def end(self) -> None:
        self.n_ended += 1

    def before_fetch(self) -> None:
        self.n_sampled += 1

    def after_fetch(self) -> None: ...


def test_copies_are_looked_at_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = SimpleNamespace(workers=SimpleNamespace(sums_folder=Path("nothing-there")))
    recorder: Any = Recorder(session)
    dry, copies = recorder._dry, recorder._copies = Probe(), Probe()
    recorder._typical_ns = step_ns = 30 * 10**9
    now = 0
    monkeypatch.setattr(recording, "perf_counter_ns", lambda: now)
    recorder._open(0)
    marks, window, per_day = recorder._marks, session.window, []
    for _ in range(14):
        until = now + DAY_NS
        while now < until:
            now += step_ns
            window.count(now)
            if window.watch_batch is not None:
                window.watch_batch(None)
            marks.take()
            recorder._sample_at -= 1
        per_day.append(copies.n_begun)
    assert dry.n_sampled == pytest.approx(now / step_ns / 13, rel=0.01)
    assert copies.n_ended == pytest.approx(copies.n_begun, abs=1)
    assert 20 < per_day[0] < 100  # many in the first hours
    assert per_day[-1] < 100  # three changes of torch.Tensor each, and a thousand are allowed


def test_copies_are_looked_at_anew_where_steps_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(workers=SimpleNamespace(sums_folder=Path("nothing-there")))
    recorder: Any = Recorder(session)
    recorder._dry, recorder._copies = Probe(), Probe()
    recorder._typical_ns = 1e9
    now = 0
    monkeypatch.setattr(recording, "perf_counter_ns", lambda: now)
    recorder._open(0)
    looks = []
    for hour in range(24):
        begun = recorder._copies.n_begun
        if hour >= 12:
            recorder._typical_ns *= 1.01  # slowly: 1.13 times as long by the end
        if hour == 18:
            recorder._typical_ns *= 2
        for _ in range(3600):
            now += 10**9
            session.window.count(now)
            if session.window.watch_batch is not None:
                session.window.watch_batch(None)
            recorder._marks.take()
            recorder._sample_at -= 1
        looks.append(recorder._copies.n_begun - begun)
    assert looks[0] > 20
    assert sum(looks[6:18]) <= 8  # seldom by now
    assert sum(looks[18:]) >= sum(looks[12:18]) + 2
    assert looks[18] >= 1


def test_a_pace_that_jumps_to_and_fro_makes_no_end_of_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(workers=SimpleNamespace(sums_folder=Path("nothing-there")))
    recorder: Any = Recorder(session)
    recorder._dry, recorder._copies = Probe(), Probe()
    recorder._typical_ns = 1e9
    now = 0
    monkeypatch.setattr(recording, "perf_counter_ns", lambda: now)
    recorder._open(0)
    for n in range(100_000):
        now += 10**9
        recorder._typical_ns = 1e9 if n // 50 % 2 else 2e9
        session.window.count(now)
        if session.window.watch_batch is not None:
            session.window.watch_batch(None)
        recorder._marks.take()
        recorder._sample_at -= 1
    assert recorder._copies.n_begun < 220


def test_a_step_whose_copies_are_seen_is_not_handed_out_quickly() -> None:
    session: Any = SimpleNamespace(workers=SimpleNamespace(sums_folder=Path("nothing-there")))
    recorder: Any = Recorder(session)
    recorder._dry, recorder._copies = Probe(), Probe()
    recorder._typical_ns = 1e6
    recorder._open(0)
    recorder._marks.due_ns = 2**62
    session.window.count(1_000_000)
    assert session.window.watch_batch is not None
    session.window.watch_batch(None)
    assert recorder._copies.n_begun == 1
    assert recorder._marks.left == 0
    session.window.count(2_000_000)
    assert recorder._copies.n_ended == 1
    assert recorder._marks.left > 10
