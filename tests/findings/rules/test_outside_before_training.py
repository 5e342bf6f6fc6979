"""Passes that train nothing, before the first step that does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts import Facts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules import find
from loaderdoctor.findings.rules import outside as rules
from loaderdoctor.findings.rules.outside import pass_before_training
from loaderdoctor.instrument.wire.records import PassRecord
from tests.findings.builders import ablation, healthy, step
from tests.findings.input_facts import UNSEEN


def passed(took_s: float | None = 30.0, **more: object) -> PassRecord:
    given: dict[str, object] = {"n_batches": 2000, "n_passes": 8, "calls_model": False}
    return PassRecord(
        loader="train.py:22",
        site="train.py:25",
        took_s=took_s,
        **(given | more),  # type: ignore[arg-type]
    )


def after(*passes: PassRecord, **more: object) -> Facts:
    return replace(healthy(), before_training=passes, **more)  # type: ignore[arg-type]


def test_statistics_over_the_loader_are_named_with_what_shortens_them() -> None:
    finding = pass_before_training(after(passed()))
    assert finding is not None
    assert finding.advice == rules.READS
    assert "8 passes over train.py:22 at train.py:25 that train nothing" in finding.summary
    assert "30.0 s went by before training began" in finding.summary


@pytest.mark.parametrize(
    ("one", "advice"),
    [
        (passed(skips=True, n_passes=1), rules.SKIPS),
        (passed(calls_model=True), rules.EVALUATES),
        (passed(calls_model=None, without_grad=True), rules.EVALUATES),
        (passed(calls_model=False, without_grad=True), rules.READS),
    ],
)
def test_the_advice_fits_what_the_pass_is_for(one: PassRecord, advice: str) -> None:
    finding = pass_before_training(after(one))
    assert finding is not None
    assert finding.advice == advice


def test_batches_skipped_to_resume_are_said_to_be_thrown_away() -> None:
    finding = pass_before_training(after(passed(skips=True, n_passes=1, n_batches=2500)))
    assert finding is not None
    assert "2,500 batches of train.py:22 were read and thrown away" in finding.summary


@pytest.mark.parametrize(("took_s", "severity"), [(20.0, Severity.MODERATE), (8.0, Severity.LOW)])
def test_it_matters_by_the_epochs_of_training_that_fit_into_it(
    took_s: float, severity: Severity
) -> None:
    epoch = step(wall_ms=10.0, steps_per_epoch=1000)
    finding = pass_before_training(after(passed(took_s), step=epoch))
    assert finding is not None
    assert finding.severity is severity
    assert ("as long as 2.0 epochs" in finding.summary) == (took_s == 20.0)


@pytest.mark.parametrize(
    "facts",
    [
        after(),
        after(passed(1.0)),
        after(passed(None)),
        after(passed(60.0), trains=False),
    ],
    ids=["no pass", "a short one", "its time is not known", "inference"],
)
def test_it_is_silent(facts: Facts) -> None:
    assert pass_before_training(facts) is None


def test_what_is_found_in_a_pass_that_is_only_read_is_a_hint() -> None:
    starved = replace(UNSEEN, ablation=ablation(input_ms=9.0))
    assert any(finding.severity is Severity.HIGH for finding in find(starved))
    found = find(replace(starved, trains=False, calls_model=False))
    assert found
    assert {finding.severity for finding in found} <= {Severity.LOW}
