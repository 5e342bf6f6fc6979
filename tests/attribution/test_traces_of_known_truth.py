"""Traces of loops whose truth was measured (CPU, H200), or is known as they are simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loaderdoctor.advice.trace_advice import trace_advice
from loaderdoctor.attribution.combine import facts_of_trace
from loaderdoctor.attribution.verdict import judge_trace
from loaderdoctor.findings.rules import find
from loaderdoctor.trace import read_trace
from tests.trace_facts import trace_facts

TRACES = Path(__file__).parents[2] / "traces"
FASTER = 1.05
CASES = [
    (folder, name, case)
    for folder in ("simulated", "cpu", "h200")
    for name, case in json.loads((TRACES / folder / "truth.json").read_text())["cases"].items()
]
# By which setting `diagnose` tries the advice; of code, by its title.
BY_TITLE = {
    "Do less for each batch": "less_work",
    "Copy one packed tensor instead of many small ones": "packed",
    "Make the iterator once per epoch": "iterator",
}


@pytest.mark.parametrize(("folder", "name", "truth"), CASES, ids=[name for _, name, _ in CASES])
def test_the_verdict_is_right_and_the_first_advice_helps(
    folder: str, name: str, truth: dict[str, Any]
) -> None:
    seen = trace_facts(read_trace(TRACES / folder / f"{name}.pt.trace.json.gz"))
    bound, severity = judge_trace(seen)
    assert bound in truth["expect_bound"]
    if bound not in ("input", "copy"):
        return
    assert severity in ("high", "moderate") or (severity == "uncertain" and "uncertain" in truth)
    facts = facts_of_trace(seen)
    first = trace_advice(facts, find(facts), bound)[0]
    helps = truth["helps"]
    change = first.axis or BY_TITLE[first.title]
    assert change in helps if isinstance(helps, list) else helps[change] >= FASTER
