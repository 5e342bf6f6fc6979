"""One rank that the others wait for, and ranks that merely differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderdoctor.facts import Facts, RankFacts
from loaderdoctor.facts.step import Shares
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.slowed_compute import slow_rank
from tests.findings.builders import healthy
from tests.findings.case import Case, check_fires, check_silent


def rank(
    number: int,
    wait_ms: float | None,
    *,
    input_ms: float = 1.0,
    compute_ms: float = 6.0,
    copy_ms: float = 0.5,
    host_ms: float = 0.5,
) -> RankFacts:
    communication_ms = 0.5
    own = input_ms + compute_ms + copy_ms + host_ms + communication_ms
    return RankFacts(
        rank=number,
        host="node1",
        source=f"rank{number}.json",
        n_steps=20,
        wall_ms=own + (wait_ms or 0.0),
        own_ms=own,
        shares=Shares(
            compute=compute_ms / own,
            communication=communication_ms / own,
            copy=copy_ms / own,
            input=input_ms / own,
            host=host_ms / own,
            other=0.0,
        ),
        peer_wait_ms=wait_ms,
    )


def job(*ranks: RankFacts) -> Facts:
    return replace(healthy(), ranks=ranks)


STARVED = job(rank(0, 4.0), rank(1, 0.0, input_ms=5.0), rank(2, 4.0), rank(3, 3.9))
CASE = Case(
    rule=slow_rank,
    ill=STARVED,
    share=4.0 / 12.5,
    severity=Severity.HIGH,
    evidence={
        "rank": 1,
        "cause": "input",
        "cause_ms_per_step": 5.0,
        "beyond_peers_ms_per_step": 4.0,
        "peer_wait_ms_per_step": 4.0,
        "n_ranks": 4,
    },
    says=("Rank 1", "getting its batches", "3 other ranks wait 4.00 ms", "not communication"),
    silent={
        "every rank is late in turn": job(*(rank(n, 2.0 + n / 10) for n in range(4))),
        "a wait of less than 5 % of the step": job(rank(0, 0.4), rank(1, 0.0)),
        "one slow step does not make a rank slow": job(rank(0, 0.3), rank(1, 0.2), rank(2, 0.3)),
        "one rank": job(rank(0, 0.0)),
    },
    missing={
        "no rank": healthy(),
        "no collectives": job(rank(0, None), rank(1, None, input_ms=9.0)),
    },
)


def test_the_rank_that_the_others_wait_for_is_named_with_its_cause() -> None:
    check_fires(CASE)


def test_ranks_that_wait_for_one_another_in_turn_are_no_finding() -> None:
    check_silent(CASE)


@pytest.mark.parametrize(
    ("part", "words"),
    [("compute", "computing takes"), ("copy", "copying its batches"), ("host", "host work takes")],
)
def test_the_cause_is_the_part_that_is_longer_than_its_peers(part: str, words: str) -> None:
    slow = {
        "compute": rank(1, 0.0, compute_ms=9.0),
        "copy": rank(1, 0.0, copy_ms=3.5),
        "host": rank(1, 0.0, host_ms=3.5),
    }[part]
    finding = slow_rank(job(rank(0, 3.0), slow))
    assert finding is not None
    assert finding.evidence["cause"] == part
    assert words in finding.summary
    assert "The other rank waits 3.00 ms of 11.5 ms" in finding.summary
    assert finding.severity is Severity.HIGH


def test_a_rank_that_is_late_for_no_visible_reason_is_named_all_the_same() -> None:
    finding = slow_rank(job(rank(0, 3.0), rank(1, 0.0)))
    assert finding is not None
    assert finding.evidence["cause"] is None
    assert "no part of its step stands out" in finding.summary
