"""What the garbage collector took, summed over windows, with how sure so few pauses are."""

from __future__ import annotations

import pytest
from msgspec import structs

from loaderdoctor.attribution.step import collection_facts
from loaderdoctor.instrument.wire.measured import CollectionRecord
from loaderdoctor.instrument.wire.protocol import WindowDone

MS = 1_000_000


def window(*full_ms: int, n_steps: int = 20, asked_ms: int = 0) -> WindowDone:
    record = CollectionRecord(
        n=(40, 4, len(full_ms)),
        ns=(2 * MS, 1 * MS, sum(full_ms) * MS),
        full_ns=tuple(x * MS for x in full_ms),
        asked_ns=asked_ms * MS,
        site="train.py:5" if asked_ms else None,
    )
    steps = (10 * MS,) * n_steps
    return WindowDone(
        id=1, mode="plain", status="ok", n_steps=n_steps, host_step_ns=steps, collections=record
    )


def test_windows_are_summed_and_pauses_counted_against_the_step() -> None:
    found = collection_facts([window(30, 50), window(4), window(60, asked_ms=60)])
    assert found is not None
    assert (found.n, found.n_full, found.n_steps, found.n_longer_than_step) == (136, 4, 60, 3)
    assert found.ms_per_step == pytest.approx((144 + 9) / 60)
    assert found.full_ms_per_step == pytest.approx(144 / 60)
    assert (found.site, found.longest_ms) == ("train.py:5", 60.0)
    assert found.asked_ms_per_step == pytest.approx(1.0)


def test_one_pause_is_no_rate_and_one_in_each_step_is() -> None:
    once = collection_facts([window(300)])
    each = collection_facts([window(*[300] * 20)])
    assert once is not None and once.low_ms_per_step == 0.0
    assert each is not None and each.low_ms_per_step == pytest.approx(each.ms_per_step, rel=0.01)


def test_windows_without_collections_say_nothing() -> None:
    done = WindowDone(id=1, mode="plain", status="ok", n_steps=4)
    assert collection_facts([done]) is None
    assert collection_facts([]) is None


def test_the_ends_of_epochs_are_counted_beside() -> None:
    ended = structs.replace(window(300, asked_ms=300), boundary_steps=(9,))
    found = collection_facts([ended, ended, window(4)])
    assert found is not None and found.n_epoch_ends == 2
