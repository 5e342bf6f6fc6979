"""Numbers below a float's normal range, with which a CPU computes many times more slowly."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.exposure import has_accelerator
from loaderdoctor.findings.model import Finding, Kind, Severity

# An operation that takes 40 times as long on one value in a hundred takes 1.4 times as long.
MIN_SHARE = 0.01
# Two timings of some microseconds each: less may be the machine's.
MIN_SLOWDOWN = 3.0


def subnormal_numbers(facts: Facts) -> Finding | None:
    """What a loop on the CPU trains holds subnormal numbers, and they cost time here.

    Decides on: their share among parameters, gradients and the optimizer's state, looked at once
    after the first steps, and a product of them timed against one of normal numbers.
    Abstains: an accelerator, no optimizer of torch's, or a CPU that flushes them.
    Fooled by: activations, which are not looked at; and tensors that the step hardly touches.
    """
    seen = facts.subnormals
    if seen is None or has_accelerator(facts):
        return None
    if seen.share < MIN_SHARE or seen.slowdown < MIN_SLOWDOWN:
        return None
    return Finding(
        kind=Kind.SUBNORMAL_NUMBERS,
        severity=Severity.LOW,  # what of the step it is was not measured
        share=None,
        summary=(
            f"{fmt.share(seen.share)} of the {seen.where} are subnormal numbers (below 1.2e-38): "
            f"a product of them takes {fmt.number(seen.slowdown)} times as long on this CPU as one "
            "of others, timed in this run. What they cost a step was not measured."
        ),
        evidence={
            "where": seen.where,
            "subnormal_share": seen.share,
            "values_looked_at": seen.n_looked_at,
            "slowdown": seen.slowdown,
            "step_ms": facts.step_ms,
        },
        advice="torch.set_flush_denormal(True) once, before training: they are then taken for 0, "
        "which changes results by less than 1.2e-38 an operation.",
    )
