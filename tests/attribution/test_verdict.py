from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.ranks import without_peer_wait
from loaderdoctor.attribution.verdict import judge_trace, verdict_from_shares
from loaderdoctor.facts.step import Bound, Shares
from loaderdoctor.report.words.verdict import uncertain_sentence
from tests.attribution.build import TraceBuilder
from tests.findings.builders import trace
from tests.trace_facts import trace_facts


def shares(
    *,
    input: float | None = 0.0,  # noqa: A002  # the share's name
    copy: float | None = 0.0,
    communication: float = 0.0,
    host: float = 0.0,
) -> Shares:
    known = (input or 0.0) + (copy or 0.0) + communication + host
    return Shares(
        compute=1 - known, communication=communication, copy=copy, input=input, host=host, other=0.0
    )


def test_health_is_no_verdict_where_much_was_not_recorded() -> None:
    known = {"communication": 0.0, "copy": 0.0, "input": 0.0, "host": 0.0}
    for compute, bound in ((0.81, "compute"), (0.79, "unknown"), (0.0, "unknown")):
        found = verdict_from_shares(Shares(compute=compute, other=1 - compute, **known))
        assert found == (bound, "none")
    kept = Shares(**{**known, "input": 0.3}, compute=0.0, other=0.7)
    assert verdict_from_shares(kept) == ("input", "high")


@pytest.mark.parametrize(
    ("given", "bound", "severity"),
    [
        (shares(input=0.2), "input", "high"),
        (shares(input=0.21, copy=0.3), "copy", "high"),
        (shares(communication=0.4, input=0.3), "communication", "high"),
        (shares(input=0.2, host=0.7), "input", "high"),  # profiling inflates host
        (shares(input=0.19, host=0.2), "host", "high"),
        (shares(input=0.05, host=0.19), "input", "moderate"),
        (shares(copy=0.06, input=0.05), "copy", "moderate"),
        (shares(input=0.049, host=0.19), "compute", "none"),
        (shares(), "compute", "none"),
        (shares(input=None, copy=None, host=0.9), "host", "high"),
        (shares(input=None, copy=None), "compute", "none"),
        (shares(input=0.3, copy=0.3), "input", "high"),  # a tie
    ],
)
def test_the_first_line_that_applies_is_the_verdict(
    given: Shares, bound: Bound, severity: str
) -> None:
    assert verdict_from_shares(given) == (bound, severity)


@pytest.mark.parametrize(
    ("given", "low", "severity"),
    [
        (shares(input=0.3), {"input": 0.19}, "high"),
        (shares(input=0.3), {"input": 0.17}, "moderate"),
        (shares(input=0.3), {"input": 0.02}, "uncertain"),
        (shares(input=0.3), {"copy": 0.0}, "high"),  # nothing said about input
        (shares(input=0.1), {"input": 0.04}, "moderate"),
        (shares(input=0.1), {"input": 0.001}, "uncertain"),
        (shares(input=0.1), {"input": -0.02}, "uncertain"),
        (shares(host=0.5), {"host": 0.01}, "uncertain"),
    ],
)
def test_the_severity_follows_the_lower_bound(
    given: Shares, low: dict[str, float], severity: str
) -> None:
    bound, found = verdict_from_shares(given, low)
    assert found == severity
    assert bound == verdict_from_shares(given)[0]


def test_too_little_recorded_is_unknown() -> None:
    assert verdict_from_shares(None) == ("unknown", "none")
    assert verdict_from_shares(shares(input=0.9), enough_steps=False) == ("unknown", "none")


def test_one_ranks_communication_may_be_a_wait_for_another() -> None:
    seen = trace(shares=shares(communication=0.45))
    assert judge_trace(seen) == ("communication", "uncertain")
    assert judge_trace(replace(seen, peers_compared=True)) == ("communication", "high")
    said = uncertain_sentence("communication", facts_of_trace(seen), 10.0, None)
    assert "waiting for a rank that comes later" in said and "of all ranks" in said
    assert without_peer_wait(seen, None) is seen
    assert without_peer_wait(seen, 0.0).peers_compared


def test_marks_alone_are_no_host_bound_loop() -> None:
    b = TraceBuilder()
    for i in range(6):
        b.step(i, i * 1000, i * 1000 + 999)
    assert judge_trace(trace_facts(b.trace())) == ("unknown", "none")
