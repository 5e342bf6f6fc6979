"""Saving and validation that take a good part of the time are told with their place and period."""

from __future__ import annotations

from typing import Literal

import pytest

from loaderdoctor.alerts import Alert
from loaderdoctor.alerts.watches import PauseWatch
from loaderdoctor.instrument.wire.measured import Collections, Sums
from loaderdoctor.instrument.wire.protocol import Beat
from loaderdoctor.instrument.wire.records import OutsideRecord, WallRecord

NS = 1_000_000_000


def beats(
    what: Literal["pass", "save"],
    *,
    took_s: float,
    every_s: float = 4.0,
    before: int = 0,
    wait_share: float = 0.0,
    in_steps: bool = False,
    trains: bool = False,
) -> list[Alert]:
    """A minute of beats of 2 s, 100 steps each; so long a save or a pass every so many seconds."""
    watch, told = PauseWatch(), []
    for number in range(30):
        n = before + int(2 * number / every_s)
        one = OutsideRecord(
            what=what,
            site="train.py:9",
            n=n,
            n_visits=n,
            first_step=100,
            last_step=100 + max(0, n - 1) * int(50 * every_s),
            n_timed=n,
            timed_ns=int(n * took_s * NS),
            wait_ns=int(n * took_s * NS * wait_share),
            n_batches=n,
            n_worked=n if trains else 0,
            n_stepped=n if trains else 0,
        )
        told += watch.beat(
            Beat(
                start_ns=(2 * number + 10) * NS,
                end_ns=(2 * number + 12) * NS,
                at_s=1e6 + 2 * number,
                n_steps=100 * (number + 1),
                n_epochs=0,
                sums=Sums(n_steps=100),
                collections=Collections(),
                wall=WallRecord(n_steps=100, in_steps=in_steps, outside=(one,)),
            )
        )
    return told


def test_checkpoints_that_take_a_tenth_of_the_time_are_told_once() -> None:
    (alert,) = beats("save", took_s=0.4)
    assert (alert.kind, alert.cause) == ("pauses", "saving")
    assert "Saving at train.py:9 takes 400 ms about every 200 steps, 9 %" in alert.text
    assert alert.step <= 1100  # within half a minute


@pytest.mark.parametrize(
    ("took_s", "wait_share", "cause"),
    [(1.5, 0.1, "validation"), (1.5, 0.8, "validation-input"), (0.4, 0.1, None)],
)
def test_passes_are_told_with_what_they_wait_for(
    took_s: float, wait_share: float, cause: str | None
) -> None:
    told = beats("pass", took_s=took_s, wait_share=wait_share)
    assert [a.cause for a in told] == ([] if cause is None else [cause])


def test_short_ones_and_those_before_the_recording_are_not() -> None:
    assert not beats("save", took_s=0.05)
    assert not beats("save", took_s=2.0, every_s=100.0, before=50)
    assert not beats("save", took_s=0.4, in_steps=True)  # part of every step


def test_passes_that_train_are_no_pause() -> None:
    assert not beats("pass", took_s=1.5, wait_share=0.8, trains=True)
