"""One rule's test: facts on which it fires, look-alikes on which it stays silent, missing facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from loaderdoctor.facts import Facts
from loaderdoctor.findings import Finding, Rule, Severity


@dataclass(frozen=True, kw_only=True)
class Case:
    rule: Rule
    ill: Facts
    share: float | None
    severity: Severity
    evidence: Mapping[str, object]  # a part of it, figures within 1 %
    says: tuple[str, ...]  # words of the summary, the predictions or the advice
    silent: Mapping[str, Facts] = field(default_factory=dict)  # healthy look-alikes
    missing: Mapping[str, Facts] = field(default_factory=dict)  # a needed fact is None

    @property
    def name(self) -> str:
        return str(getattr(self.rule, "__name__", self.rule))


def check_fires(case: Case) -> None:
    finding = case.rule(case.ill)
    assert isinstance(finding, Finding)
    assert finding.kind.value == case.name.replace("_", "-")
    assert finding.severity is case.severity
    assert finding.share == (None if case.share is None else pytest.approx(case.share, rel=0.01))
    for key, value in case.evidence.items():
        expected = pytest.approx(value, rel=0.01) if isinstance(value, float) else value
        assert finding.evidence[key] == expected, key
    said = " ".join([finding.summary, *(p.sentence for p in finding.predictions)])
    advice = finding.advice or ""
    assert not advice or advice not in finding.summary  # it is shown below it
    for words in case.says:
        assert words in said or words in advice
    assert finding.summary.rstrip().endswith((".", ")"))
    assert "  " not in finding.summary
    assert "None" not in said
    for prediction in finding.predictions:
        assert (
            prediction.sentence[0].isupper()
            or prediction.sentence[0].isdigit()
            or "=" in (prediction.sentence.split()[0])
        )
        assert prediction.sentence.endswith(".")
        assert prediction.sentence not in finding.summary


def check_silent(case: Case) -> None:
    for name, facts in {**case.silent, **case.missing}.items():
        assert case.rule(facts) is None, name


def fires(cases: Sequence[Case]) -> Callable[[Case], None]:
    """A test for each rule: on its ill facts it fires, with these figures and words."""

    @_each(cases)
    def test(case: Case) -> None:
        check_fires(case)

    return test


def stays_silent(cases: Sequence[Case]) -> Callable[[Case], None]:
    """A test for each rule: it finds nothing in look-alikes, and without a fact it needs."""

    @_each(cases)
    def test(case: Case) -> None:
        check_silent(case)

    return test


def _each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])
