"""Gains of a loader's settings beside other programs: no more than ready batches would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.advice import Prescription
from loaderdoctor.diagnosis.prescribe import prescribed_rows
from loaderdoctor.diagnosis.verify import Verification, within_reach
from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import CpuFacts
from loaderdoctor.report.words.changes import changes_of
from loaderdoctor.settings import Settings
from tests.diagnosis.test_prescribe import compared_
from tests.findings.builders import machine, step, with_exposed

ONE = Settings(num_workers=1)


def beside(other_cores: float | None) -> Facts:
    """Two CPUs, and so many of them other programs'; the loader costs 20 to 24 % of the step."""
    cpu = CpuFacts(
        other_cores=other_cores, waiting_threads=None, train_wait_share=None, throttled_share=None
    )
    return with_exposed(
        input_=0.22, margin=0.2, step=step(cpu=cpu), machine=machine(usable_cpus=2.0)
    )


def test_a_trial_gains_no_more_than_an_instant_loader_beside_other_programs() -> None:
    lucky = compared_(ONE, plain_ms=[60.0, 66.0, 63.0], step_ms=[21.0, 22.0, 20.0])
    measured, windows_ms = within_reach(lucky, beside(1.6))
    assert measured is not None and windows_ms == pytest.approx(21.0)
    assert measured.value == measured.low == pytest.approx(63.0 * 0.76)
    assert measured.high >= measured.value
    bounded = Verification(tried=(lucky,), best=lucky, complete=True)
    nothing = Prescription(candidates=(), not_advised=(), advice=())
    (change,) = changes_of(prescribed_rows(beside(1.6), nothing, bounded))
    assert change.times_as_fast(63.0) == pytest.approx(1 / 0.76)
    said = change.compared(63.0)
    assert said.startswith(" at most (its windows took 21.0 ms next to 63.0 ms as is")
    assert "other programs' doing" in said


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (ONE, beside(0.1)),  # a CPU to itself: the trial is the surer
        (ONE, beside(None)),
        (ONE, replace(beside(1.6), ablation=None)),
        (Settings(num_workers=1, pin_memory=True), beside(1.6)),  # copies too
        (Settings(background="device"), beside(1.6)),
        (Settings(compile=True), beside(1.6)),
    ],
)
def test_nothing_bounds_it_where_that_is_not_known(settings: Settings, facts: Facts) -> None:
    lucky = compared_(settings, plain_ms=[63.0] * 3, step_ms=[21.0] * 3)
    assert within_reach(lucky, facts) == (lucky.step, None)


def test_a_gain_within_reach_stays_as_it_was_measured() -> None:
    tried = compared_(ONE, plain_ms=[63.0] * 3, step_ms=[50.0] * 3)
    assert within_reach(tried, beside(1.6)) == (tried.step, None)
    assert within_reach(compared_(ONE, failed="no"), beside(1.6)) == (None, None)
    assert within_reach(None, beside(1.6)) == (None, None)
