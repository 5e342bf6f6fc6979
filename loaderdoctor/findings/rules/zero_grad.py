"""Gradients cleared by filling them with zeros."""

from __future__ import annotations

from loaderdoctor import format as fmt
from loaderdoctor.facts.whole import Facts
from loaderdoctor.findings.model import Finding, Kind
from loaderdoctor.findings.rules.hints import computing, hint, input_first, step_share

# Below a hundredth of the step nobody will find the gain again.
MIN_SHARE = 0.01


def grad_not_set_to_none(facts: Facts) -> Finding | None:
    """zero_grad(set_to_none=False) fills every gradient with zeros instead of dropping it.

    Decides on: time of the zero fills inside Optimizer.zero_grad / step time; where the loop was
    seen to call zero_grad(set_to_none=False), of a module too, all zero fills of its thread.
    Abstains: no trace, the fills take less than 1 % of the step, or it waits for its input.
    Fooled by: code that needs zeros rather than no gradient. The backward pass then also adds to
    the zeros, about as much again, which is not counted.
    """
    compute, record = computing(facts), facts.compute
    if compute is None or facts.trace is None or input_first(facts):
        return None
    seen = record is not None and record.n_zero_fills > 0
    fill_ms = compute.zero_fill_ms if seen else compute.zero_grad_fill_ms
    share = step_share(facts, fill_ms)
    if share < MIN_SHARE:
        return None
    site = record.zero_fill_site if record is not None else None
    return hint(
        Kind.GRAD_NOT_SET_TO_NONE,
        share=share,
        summary=(
            f"Filling gradients with zeros takes {fmt.ms(fill_ms)} of the step ({fmt.share(share)})"
            f"{f', at {site}' if site else ''}. Dropping them costs nothing, and the "
            "backward pass then writes them instead of adding to zeros."
        ),
        evidence={
            "zero_fill_ms_per_step": fill_ms,
            "site": site,
            "site_code": record.zero_fill_code if record is not None else None,
        },
        advice="optimizer.zero_grad(), whose default sets gradients to None.",
    )
