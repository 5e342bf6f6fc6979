"""Subnormal numbers are told where the CPU is slow with them, and never of an accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loaderdoctor.facts import Facts
from loaderdoctor.findings import Severity
from loaderdoctor.findings.rules.compute_hints import subnormal_numbers
from loaderdoctor.instrument.wire.records import SubnormalRecord
from tests.findings.builders import healthy, machine, trace
from tests.findings.case import Case, check_fires, check_silent

SEEN = SubnormalRecord(where="gradients", share=0.3, n_looked_at=65536, slowdown=40.0)


def on_cpu(seen: SubnormalRecord | None = SEEN, **changes: Any) -> Facts:
    return replace(
        healthy(),
        trace=trace(has_accelerator=False),
        machine=machine(device_name=None, device_memory_bytes=None),
        transfers=(),
        subnormals=seen,
        **changes,
    )


def seen(**changes: Any) -> SubnormalRecord:
    fields = {"where": "gradients", "share": 0.3, "n_looked_at": 65536, "slowdown": 40.0}
    return SubnormalRecord(**{**fields, **changes})


CASE = Case(
    rule=subnormal_numbers,
    ill=on_cpu(),
    share=None,
    severity=Severity.LOW,
    evidence={"where": "gradients", "subnormal_share": 0.3, "slowdown": 40.0},
    says=("30 % of the gradients", "40.0 times as long", "torch.set_flush_denormal(True)"),
    silent={
        "few": on_cpu(seen(share=0.005)),
        "this CPU flushes them": on_cpu(seen(slowdown=1.1)),
        "an accelerator computes": replace(healthy(), subnormals=SEEN),
    },
    missing={"not looked for": on_cpu(None)},
)


def test_subnormal_numbers() -> None:
    check_fires(CASE)
    check_silent(CASE)
