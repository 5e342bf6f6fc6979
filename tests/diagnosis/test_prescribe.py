"""What a diagnosis recommends after trials, and after too few of them."""

from __future__ import annotations

from loaderdoctor.diagnosis.prescribe import recommendations
from loaderdoctor.diagnosis.verify import Tried, Verification
from loaderdoctor.findings.plan import Candidate, Prescription
from loaderdoctor.report.model import Recommendation
from loaderdoctor.settings import Settings
from tests.findings.builders import healthy

FOUR, SIX = Settings(num_workers=4), Settings(num_workers=6)


def prescribed(*tried: Tried) -> tuple[Recommendation, ...]:
    candidates = tuple(
        Candidate(
            settings=s,
            kinds=(),
            loader="train.py:41",
            predicted_step_ms=4.0,
            prediction="the batch's cost",
            edits=(),
        )
        for s in (SIX, FOUR)
    )
    prescription = Prescription(candidates=candidates, withheld=(), advice=())
    found = Verification(tried=tried, best=None, complete=False)
    return recommendations(healthy(), prescription, found)


def test_what_was_seen_once_and_looked_faster_stays_a_prediction_that_says_so() -> None:
    rows = prescribed(Tried(settings=FOUR, plain_ms=[7.0], step_ms=[4.3]))
    assert [r.to for r in rows] == [4]
    assert rows[0].measured_step_ms is None
    assert "(1) took 4.3 ms a step beside 7 as is: too few" in (rows[0].summary or "")


def test_what_was_seen_once_and_looked_slower_is_not_recommended() -> None:
    rows = prescribed(Tried(settings=FOUR, plain_ms=[7.0], step_ms=[7.5]))
    assert [r.to for r in rows] == [6]  # the one that was not tried


def test_what_had_all_its_visits_and_did_not_help_is_not_recommended() -> None:
    same = [7.0, 7.1, 6.9]
    rows = prescribed(
        *(Tried(settings=s, plain_ms=same, step_ms=[7.0, 6.9, 7.1]) for s in (FOUR, SIX))
    )
    assert rows == ()
