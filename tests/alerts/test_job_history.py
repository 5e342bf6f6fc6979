"""Where a run's time went: all of it, once, in as few rows after a week as after an hour."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from msgspec import structs

from loaderdoctor.alerts.job import MAX_ROWS, Account, History
from loaderdoctor.instrument.recording.stretch import counted
from loaderdoctor.instrument.wire.measured import Dry, LogBins, Sums
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord

NS = 1_000_000_000


def beat(n: int, **more: object) -> Beat:
    """The n-th of 2 s: 1.2 s of steps with 0.3 s of waits, the rest gaps."""
    values: dict[str, object] = {
        "start_ns": 2 * n * NS,
        "end_ns": 2 * (n + 1) * NS,
        "at_s": 1000.0 + 2 * (n + 1),
        "n_steps": 100 * (n + 1),
        "n_epochs": n // 3,
        "sums": Sums(
            n_steps=100, steps_ns=12 * NS // 10, wait_ns=3 * NS // 10, gaps_ns=8 * NS // 10
        ),
        **more,
    }
    return Beat(**values)  # type: ignore[arg-type]


def outside_of(what: Literal["pass", "save"], timed_ns: int) -> OutsideRecord:
    return OutsideRecord(
        what=what, site="train.py:9", n=1, n_visits=1, first_step=1, last_step=1, timed_ns=timed_ns
    )


def parts(account: Account) -> float:
    return (
        account.step_s
        + account.input_s
        + (account.copy_s or 0.0)
        + account.starts_s
        + account.validation_s
        + account.saving_s
        + account.other_s
    )


def test_a_week_has_no_more_rows_than_an_hour_and_loses_no_second() -> None:
    history = History(1000.0)
    for n in range(20_000):
        history.beat(beat(n))
    assert history.total.recorded_s == pytest.approx(40_000)
    for rows in (history.epochs, history.times):
        assert len(rows) <= MAX_ROWS
        assert sum(r.account.recorded_s for r in rows) == pytest.approx(40_000)
        assert sum(r.account.n_steps for r in rows) == 2_000_000
    assert parts(history.total) == pytest.approx(40_000)
    assert history.total.input_share == pytest.approx(0.15)


def test_a_run_that_its_first_window_held_has_steps_and_no_rows() -> None:
    history = History(1000.0)
    account = history.beat(beat(0, end_ns=0, sums=Sums()))
    assert account == Account()
    assert (history.n_steps, history.epochs, history.times) == (100, [], [])


def test_passes_and_saves_are_told_apart_from_other_work_between_epochs() -> None:
    outside = (
        outside_of("pass", 5 * NS // 10),
        outside_of("save", NS // 10),
    )
    account = History(1000.0).beat(beat(0, wall=WallRecord(n_steps=100, outside=outside)))
    assert (account.validation_s, account.saving_s) == (0.5, 0.1)
    assert account.other_s == pytest.approx(0.2)


def test_passes_that_train_on_another_loader_are_no_validation() -> None:
    trains = structs.replace(outside_of("pass", 5 * NS // 10), n_batches=4, n_worked=4, n_stepped=4)
    account = History(1000.0).beat(beat(0, wall=WallRecord(n_steps=100, outside=(trains,))))
    assert account.validation_s == 0.0
    assert account.other_s == pytest.approx(0.8)


def test_with_an_accelerator_only_the_wait_that_leaves_it_dry_is_input() -> None:
    history = History(1000.0)
    account = history.beat(beat(0, dry=Dry(n_sampled=8, dry_ns=8 * 1_000_000)))
    assert account.input_s == pytest.approx(0.1)  # 1 ms in each of 100 steps
    assert account.waited_s == pytest.approx(0.3)
    assert history.beat(beat(1, dry=Dry())).input_s == pytest.approx(0.1)  # as before


def test_quantiles_are_known_to_nine_percent() -> None:
    rng = np.random.default_rng(0)
    took = (rng.lognormal(size=100_000) * 1e7).astype(np.int64)
    bins = LogBins()
    for part in np.array_split(took, 7):
        bins.add(counted(part))
    for q in (0.5, 0.9, 0.99, 0.999):
        assert bins.quantile_ns(q) == pytest.approx(float(np.quantile(took, q)), rel=0.09)
    assert LogBins().quantile_ns(0.5) is None


def test_copies_are_those_of_the_present_not_of_the_warm_up() -> None:
    history = History(1000.0)
    for n in range(40):  # seen often at first, then rarely; batches grow half-way
        ms = 1 if n < 20 else 4
        seen = 8 if n == 0 else int(n % 4 == 0)
        dry = Dry(n_sampled=8, n_copied=seen, copy_ns=seen * ms * 1_000_000)
        last = history.beat(beat(n, dry=dry))
    assert last.copy_s == pytest.approx(0.4)
    assert history.total.copy_s == pytest.approx(20 * 0.1 + 20 * 0.4, rel=0.25)


def test_copies_of_sampled_steps_are_a_part_of_the_steps_and_none_where_none_were_seen() -> None:
    history = History(1000.0)
    nothing = history.beat(beat(0, dry=Dry(n_sampled=8, dry_ns=0)))
    assert nothing.copy_s is None
    copied = history.beat(beat(1, dry=Dry(n_sampled=8, dry_ns=0, n_copied=10, copy_ns=30_000_000)))
    assert copied.copy_s == pytest.approx(0.3)  # 3 ms in each of 100 steps
    assert copied.step_s == pytest.approx(0.9)
    assert history.total.copy_s == pytest.approx(0.3)
    assert parts(copied) == pytest.approx(copied.recorded_s)
    whole = history.beat(beat(2, dry=Dry(n_sampled=8, n_copied=4, copy_ns=NS)))
    assert whole.step_s == pytest.approx(0.0)  # never more than the steps
