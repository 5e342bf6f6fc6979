"""A GPU that is held down while it computes; one with little to do is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.facts.loop import GpuLimitFacts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.slowed_compute import gpu_throttled
from tests.findings.builders import healthy, with_exposed
from tests.findings.case import Case, check_fires, check_silent

# As an H200 told under dense products.
POWER = GpuLimitFacts(
    limit="power",
    share=0.99,
    sm_mhz=1515.0,
    max_sm_mhz=1980.0,
    temperature_c=55.0,
    limit_w=700.0,
    max_limit_w=700.0,
    default_limit_w=700.0,
)


def held(facts: Facts | None = None, **changes: Any) -> Facts:
    return replace(facts or healthy(), gpu_limits=replace(POWER, **changes))


HOT = Case(
    rule=gpu_throttled,
    ill=held(limit="heat", temperature_c=88.0),
    share=(1 - 1515 / 1980) * 0.96,
    severity=Severity.HIGH,
    evidence={"limit": "heat", "held_share": 0.99, "sm_mhz": 1515.0},
    says=("heat (88 °C) for 99 % of the time: 1515 of 1980 MHz", "cooling"),
    silent={
        # What an H200 told of a loop that left it nearly idle, and of an idle one at 345 MHz.
        "lightly used": held(share=0.0, sm_mhz=1980.0),
        "idle": held(share=0.0, sm_mhz=345.0),
        "now and then": held(share=0.1),
        "hardly slower": held(sm_mhz=1950.0),
        "the loop waits for its loader": held(with_exposed(input_=0.9), limit="heat"),
    },
    missing={
        "nothing was counted": healthy(),
        "computing is not known": replace(held(limit="heat"), shares=None),
    },
)


def test_gpu_throttled() -> None:
    check_fires(HOT)
    check_silent(HOT)


def test_a_gpu_at_the_most_power_it_may_take_is_only_a_hint() -> None:
    finding = gpu_throttled(held())
    assert finding is not None
    assert finding.severity is Severity.LOW
    assert "its power limit (700 W)" in finding.summary
    assert "nothing is wrong with it" in (finding.advice or "")


def test_a_limit_is_lowered_only_below_the_default_and_not_below_the_most_that_may_be_set() -> None:
    for facts in (
        held(limit_w=300.0, default_limit_w=300.0, max_limit_w=350.0),
        held(limit_w=300.0, default_limit_w=None, max_limit_w=700.0),
    ):
        finding = gpu_throttled(facts)
        assert finding is not None
        assert finding.severity is Severity.LOW
        assert "nvidia-smi -pl" not in (finding.advice or "")


def test_a_lowered_power_limit_can_be_raised() -> None:
    finding = gpu_throttled(held(limit_w=400.0))
    assert finding is not None
    assert finding.severity is Severity.HIGH
    assert "below this GPU's default of 700 W" in (finding.advice or "")
    board = gpu_throttled(held(limit="board", limit_w=None))
    assert board is not None
    assert "power supply" in (board.advice or "")
