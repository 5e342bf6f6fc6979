"""The interval by which shares of a report are judged beside truths from outside."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
claimed = importlib.import_module("claimed")
sys.path.remove(str(BENCHMARKS))


def reported(claims: dict[str, Any], measured: Any = (-20.0, 40.0)) -> dict[str, Any]:
    return {
        "shares": {"input": 0.1},
        "step": {"wall_ms": 50.0},
        "ablation": {"ci_ms": {"input_ms": measured}, "claims": claims},
    }


def test_the_claim_is_what_the_report_bounded_and_not_the_bare_difference() -> None:
    found = claimed.claimed_input(reported({"input_ms": [5.0, [4.0, 7.5]]}))
    assert (found.low, found.high) == (pytest.approx(0.08), pytest.approx(0.15))
    bare = claimed.claimed_input(reported({}))
    assert (bare.low, bare.high) == (0.0, pytest.approx(0.8))


def test_a_share_without_an_interval_claims_to_be_exact() -> None:
    exact = claimed.claimed_input(reported({}, measured=None))
    assert exact.low == exact.share == exact.high
    assert exact.reaches(0.3) == 0.0
    assert claimed.claimed_input({"shares": None, "ablation": None}) is None
    waits = reported({}, measured=None) | {"warnings": [{"kind": "not-compared", "text": "x"}]}
    assert claimed.claimed_input(waits) == claimed.Claim(share=0.1, low=0.1, high=1.0)


def test_it_reaches_towards_the_truth_by_the_side_that_this_is_on() -> None:
    claim = claimed.Claim(share=0.05, low=0.0, high=0.45)
    assert claim.reaches(0.3) == pytest.approx(0.4)
    assert claim.reaches(0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("share", "wrong"), [(0.164, []), (0.4, ["bound: input, not outside"])])
def test_what_lies_outside_may_be_the_larger_cause(share: float, wrong: list[str]) -> None:
    wall = {"total_ms": 110.1, "step_ms": 87.0, "outside_ms": 23.1}
    verdict = {"bound": "outside", "severity": "high"}
    own = claimed.bound_share({"verdict": verdict, "shares": {}, "wall": wall})
    assert own == pytest.approx(23.1 / 87.0)
    said = verdict | {"bound_share": own, "claim": None}
    assert claimed.verdict_wrong(said, share, 0.035) == wrong
