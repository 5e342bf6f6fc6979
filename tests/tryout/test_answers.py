"""Trials of a report as outcomes: which may be compared, and with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderdoctor.facts import own_settings_known
from loaderdoctor.findings import Finding, Kind, Prediction, Severity
from loaderdoctor.report.model import Trial
from loaderdoctor.settings import Settings
from loaderdoctor.tryout.answers import answered, outcomes
from tests.findings.builders import healthy, machine

OWN = {"num_workers": 0, "pin_memory": False}


def trial(settings: Settings, ms: float, margin: float | None = 0.3, **more: Any) -> Trial:
    return Trial(
        settings=settings.as_dict(),
        label=settings.label(),
        status=more.pop("status", "ok"),
        step_ms=ms,
        step_ms_ci=None if margin is None else (ms - margin, ms + margin),
        **more,
    )


BASE = trial(Settings(), 10.0, 0.4)
TWO = Settings(num_workers=2)


def test_a_paired_gain_is_against_the_loop_in_the_same_rounds() -> None:
    (one,) = outcomes(
        (BASE, trial(TWO, 12.0, gain_ms=-1.0, gain_ms_ci=(-1.5, -0.5))), OWN, "diagnose"
    )
    assert (one.step_ms, one.own_ms, one.came) == (12.0, 11.0, "slower")


def test_a_confirmed_gain_is_against_the_table_as_the_recommendation_says_it() -> None:
    (one,) = outcomes(
        (BASE, trial(TWO, 4.0, gain_ms=5.0, gain_ms_ci=(4.0, 6.0), gain_confirmed=True)),
        OWN,
        "sweep",
    )
    assert (one.step_ms, one.own_ms, one.came) == (5.0, 10.0, "faster")
    assert one.confirmed


def test_a_gain_of_the_ranking_rounds_alone_is_marked_as_one() -> None:
    (one,) = outcomes(
        (BASE, trial(TWO, 4.0, gain_ms=5.0, gain_ms_ci=(4.0, 6.0), gain_confirmed=False)),
        OWN,
        "sweep",
    )
    assert one.confirmed is False
    (unpaired,) = outcomes((BASE, trial(TWO, 4.0)), OWN, "sweep")
    assert unpaired.confirmed is False
    (diagnosed,) = outcomes((BASE, trial(TWO, 4.0, gain_ms=5.0)), OWN, "diagnose")
    assert diagnosed.confirmed is None


def test_without_pairs_the_margins_of_both_add_up() -> None:
    (near,) = outcomes((BASE, trial(TWO, 9.6)), OWN, "sweep")
    assert near.gain_low_ms == pytest.approx(0.4 - 0.5)
    assert near.came == "no different"
    (far,) = outcomes((BASE, trial(TWO, 9.4)), OWN, "sweep")
    assert far.came == "faster"
    (alone,) = outcomes((BASE, trial(TWO, 5.0, None)), OWN, "sweep")
    assert alone.came == "undecided"


@pytest.mark.parametrize(
    "other",
    [
        trial(Settings(synthetic=True), 1.0),
        trial(TWO, 5.0, status="failed"),
        trial(TWO, 5.0, group="10 %"),
        trial(TWO, 5.0, hardware="B"),
        trial(Settings(num_workers=0), 9.9),
        trial(Settings(num_workers=2, amp=True), 2.0, changes_numerics=True),
    ],
    ids=["ready batches", "failed", "another portion", "other hardware", "as is", "numerics"],
)
def test_what_compares_with_something_else_is_no_outcome(other: Trial) -> None:
    assert outcomes((BASE, other), OWN, "sweep") == ()


def test_a_trials_trace_is_compared_with_that_trial() -> None:
    (back,) = outcomes((BASE, trial(TWO, 5.0, gain_ms=5.0)), OWN, "diagnose", base=1)
    assert back.settings == Settings(num_workers=0)
    assert (back.step_ms, back.own_ms, back.came) == (10.0, 5.0, "slower")


def finding() -> Finding:
    prediction = Prediction(
        sentence="With fewer threads it should be faster.", setting="num_threads"
    )
    return Finding(
        kind=Kind.THREAD_OVERSUBSCRIPTION,
        severity=Severity.UNCERTAIN,
        share=0.5,
        summary="Two threads fight.",
        predictions=(prediction,),
    )


def test_a_trial_of_threads_answers_what_was_expected_of_them() -> None:
    facts = replace(healthy(), machine=machine(n_threads=2))
    assert own_settings_known(facts).num_threads == 2
    trials = (
        trial(Settings(), 30.0, 1.5),
        trial(Settings(num_threads=1), 6.0, changes_numerics=True),
    )
    (said,) = answered((finding(),), facts, trials)
    tried = "Tried in this run (torch.set_num_threads(1)): 6.00 ms a step against 30.0 ms as it is"
    assert tried in said.summary
    assert "should be faster" not in said.summary


def test_a_trial_that_also_changes_other_numerics_answers_nothing() -> None:
    facts = replace(healthy(), machine=machine(n_threads=2))
    both = Settings(num_threads=1, amp=True)
    trials = (trial(Settings(), 30.0, 1.5), trial(both, 6.0, changes_numerics=True))
    (said,) = answered((finding(),), facts, trials)
    assert "should be faster (predicted, not tried in this run)" in said.summary
