"""What is said of a verdict that may be nothing."""

from __future__ import annotations

from dataclasses import replace

from loaderdoctor.facts.step import Shares
from loaderdoctor.report.words.verdict import uncertain_sentence
from tests.findings.builders import healthy

CROWDED = Shares(compute=0.37, communication=0.0, copy=None, input=0.19, host=0.44, other=0.0)


def test_a_host_that_may_wait_for_a_cpu_is_said_so() -> None:
    beside = replace(healthy(shares=CROWDED), shares_low={"host": 0.0})
    said = uncertain_sentence("host", beside, 56.2, None)
    assert "44 % of 56.2 ms a step" in said
    assert said.endswith("it may be waiting for a CPU that other programs have.")
    alone = replace(beside, shares_low=None)
    assert "CPU" not in uncertain_sentence("host", alone, 56.2, None)
